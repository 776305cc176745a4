"""The screen of plans that wait for approval, which exists for administrators only."""

from __future__ import annotations

from typing import final

from starlette.requests import Request
from starlette.responses import Response

from batuta.gateway.admin.approvals import PlanVerdict
from batuta.gateway.errors import not_found, require_part
from batuta.gateway.serving.approvals import plan_entry
from batuta.gateway.ui.rendering import redirect_to, render_page
from batuta.gateway.ui.session import APPROVALS_SCREEN, WebSession, read_form
from batuta.store import Store
from batuta.store.approvals import MAX_LISTED


@final
class ApprovalPage:
    """Serves /ui/approvals and its form."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show the oldest `MAX_LISTED` waiting plans, and whether there are more.

        Raises:
            APIError: the visitor is not an administrator, or the server has no store.
        """
        store = self._require_store(session)
        found = await store.approvals.list(limit=MAX_LISTED + 1)
        plans = [plan_entry(plan) for plan in found[:MAX_LISTED]]
        more = len(found) > MAX_LISTED
        return render_page(request, "approvals.html.jinja", session=session, plans=plans, more=more)

    async def decide(self, request: Request, session: WebSession) -> Response:
        """Approve, refuse or edit the plan that was shown.

        Raises:
            APIError: the visitor is not an administrator, the server has no store, the form is not
                from one of our pages, or the decision cannot be taken.
        """
        store = self._require_store(session)
        form = await read_form(request, session)
        verdict = PlanVerdict(
            plan_id=request.path_params["id"],
            digest=form.get("digest", ""),
            decision=form.get("decision", ""),
            by=session.caller.actor,
            reason=form.get("reason", "").strip(),
            steps=form.get("steps", ""),
        )
        await verdict.give(store)
        return redirect_to(APPROVALS_SCREEN[0])

    def _require_store(self, session: WebSession) -> Store:
        if not session.is_admin:
            raise not_found(f"The screen {APPROVALS_SCREEN[0]}")
        return require_part(self._store, "This server keeps no plans for approval.")
