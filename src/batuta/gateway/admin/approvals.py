"""/v1/admin/approvals: plans that wait for a person, for the holder of the admin's token."""

from __future__ import annotations

from typing import Any, final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from batuta.gateway.access.caller import actor_of
from batuta.gateway.admin.paging import check_query
from batuta.gateway.errors import APIError, require_part
from batuta.gateway.http.body import json_response, read_fields
from batuta.store import Store
from batuta.store.approvals import ApprovalError, PendingPlan

MAX_REASON = 500
"""Characters of a reason."""


@final
class ApprovalRoutes:
    """The plans that wait, over HTTP."""

    def __init__(self, store: Store | None) -> None:
        self._kept = store

    def routes(self) -> list[Route]:
        """Return the routes; whether a caller may use them was checked before."""
        return [
            Route("/v1/admin/approvals", self.list, methods=["GET"]),
            Route("/v1/admin/approvals/{id}", self.decide, methods=["POST"]),
        ]

    async def list(self, request: Request) -> Response:
        """The plans that wait, oldest first."""
        check_query(request.query_params)
        found = await self._store.approvals.list()
        return json_response({"object": "list", "data": [plan_entry(one) for one in found]})

    async def decide(self, request: Request) -> Response:
        """Decide about a plan: `decision` is `approve` or `refuse`; `digest` of what was seen."""
        body = await read_fields(request.scope, request.receive)
        decision, digest = body.need_text("decision"), body.need_text("digest")
        reason = body.text("reason") or ""
        if decision not in {"approve", "refuse"}:
            message = "'decision' is 'approve' or 'refuse'."
            raise APIError(400, "invalid_value", message, param="decision")
        decided = await decide_plan(
            self._store,
            request.path_params["id"],
            digest,
            approved=decision == "approve",
            by=actor_of(request),
            reason=reason,
        )
        return json_response(plan_entry(decided))

    @property
    def _store(self) -> Store:
        return require_part(self._kept, "This server keeps no plans for approval.")


async def decide_plan(
    store: Store, plan_id: str, digest: str, *, approved: bool, by: str, reason: str
) -> PendingPlan:
    """Decide once about the plan that was seen.

    Raises:
        APIError: it does not wait any more, or is another plan than was seen.
    """
    if len(reason) > MAX_REASON:
        message = f"'reason' exceeds {MAX_REASON} characters."
        raise APIError(400, "invalid_value", message, param="reason")
    try:
        return await store.approvals.decide(
            plan_id, digest, approved=approved, by=by, reason=reason
        )
    except ApprovalError as error:
        sentence = str(error)
        raise APIError(409, "not_waiting", f"{sentence[0].upper()}{sentence[1:]}.") from None


def plan_entry(plan: PendingPlan) -> dict[str, Any]:
    """A plan as an object of the API."""
    shown: dict[str, Any] = orjson.loads(plan.plan) if plan.plan else {}
    return {
        "object": "approval",
        "id": plan.id,
        "run_id": plan.run_id,
        "tenant": plan.tenant,
        "rule": plan.rule,
        "state": plan.state,
        "digest": plan.digest,
        "expected_cost_usd": plan.usd,
        "created": plan.created,
        "expires": plan.expires,
        "by": plan.by,
        "reason": plan.reason,
        **shown,
    }
