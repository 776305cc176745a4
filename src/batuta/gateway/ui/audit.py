"""The screen of the audit trail, which exists for administrators only."""

from __future__ import annotations

import json
from typing import Any, cast, final

from starlette.requests import Request
from starlette.responses import Response

from batuta.core.formatting import escape_json_controls
from batuta.gateway.errors import invalid_value, not_found, require_part
from batuta.gateway.ui.rendering import render_page
from batuta.gateway.ui.session import AUDIT_SCREEN, WebSession
from batuta.store import Store
from batuta.store.audit import AuditRecord

PAGE_SIZE = 50
_LONGEST_NUMBER = 18
"""Maximum number of digits of a cursor."""


@final
class AuditPage:
    """Serves /ui/audit."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show a page of records, newest first, of all actions or of those selected by `action`.

        Raises:
            APIError: the visitor is not an administrator, the server has no store, or the cursor is
                invalid.
        """
        if not session.is_admin:
            raise not_found(f"The screen {AUDIT_SCREEN[0]}")
        store = require_part(self._store, "This server keeps no audit trail.")
        after = request.query_params.get("after", "")
        action = request.query_params.get("action", "").strip()
        if after and not (after.isascii() and after.isdigit() and len(after) <= _LONGEST_NUMBER):
            raise invalid_value("after", "it is not a cursor of this list.")
        before = int(after) if after else None
        found = await store.audit.list(PAGE_SIZE + 1, before=before, action=action)
        shown = found[:PAGE_SIZE]
        return render_page(
            request,
            "audit.html.jinja",
            session=session,
            records=[(record, describe_details(record)) for record in shown],
            action=action,
            older=shown[-1].seq if len(found) > PAGE_SIZE else None,
            is_first=not after,
        )


def describe_details(record: AuditRecord) -> str:
    """Return the record's details in one line, with their values as JSON."""
    found = record.parsed_details
    details = cast("dict[str, Any]", found if isinstance(found, dict) else {"": found})
    values = {name: json.dumps(value, ensure_ascii=False) for name, value in details.items()}
    return escape_json_controls(", ".join(f"{name}: {value}" for name, value in values.items()))
