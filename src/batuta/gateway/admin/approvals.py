"""Decisions about plans that wait for approval.

Administrators use /v1/admin/approvals, and programs that sign their messages /webhooks/approvals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from batuta.clients.webhook import ForgedMessageError
from batuta.core.formatting import as_sentence
from batuta.core.workflow import MAX_STEPS
from batuta.engine.approval_request import read_steps
from batuta.gateway.access.caller import actor_of
from batuta.gateway.admin.paging import MAX_PAGE, check_query, list_page, parse_limit
from batuta.gateway.errors import APIError, invalid_value, require_part
from batuta.gateway.http.body import (
    Fields,
    decode_object,
    encode_json,
    json_response,
    read_checked_body,
    read_fields,
)
from batuta.gateway.serving.approvals import plan_entry
from batuta.gateway.serving.models import Catalogue
from batuta.store import Store
from batuta.store.approvals import MAX_REASON, ApprovalError, PendingPlan

WEBHOOK_PATH = "/webhooks/approvals"


@final
class ApprovalRoutes:
    """Lists and decides the waiting plans over HTTP.

    Each route raises `APIError` if the server keeps no plans, and `StoreError` if the database
    fails.
    """

    def __init__(self, store: Store | None, catalogue: Catalogue) -> None:
        self._optional_store = store
        self._catalogue = catalogue

    def routes(self) -> list[Route]:
        """Return the routes.

        The middleware admits only the admin to the first two; the third is open to programs that
        sign their message with the webhook's secret.
        """
        return [
            Route("/v1/admin/approvals", self.list, methods=["GET"]),
            Route("/v1/admin/approvals/{id}", self.decide, methods=["POST"]),
            Route(WEBHOOK_PATH, self.take_message, methods=["POST"]),
        ]

    async def list(self, request: Request) -> Response:
        """Return a page of the waiting plans, oldest first."""
        query = request.query_params
        check_query(query, "limit", "after")
        limit = parse_limit(query, MAX_PAGE)
        try:
            found = await self._store.approvals.list(limit=limit + 1, after=query.get("after"))
        except ValueError:
            raise invalid_value("after", "it is not a cursor of this list.") from None
        return json_response(list_page(found, limit, plan_entry, lambda plan: plan.cursor))

    async def decide(self, request: Request) -> Response:
        """Decide about a plan: the body's `decision` is `approve`, `refuse` or `edit`.

        The body's `digest` names the version of the plan that the decision is about; `reason` is
        the reason for an approval or refusal, and `steps` are the edited steps.

        Raises:
            APIError: the body is invalid or has an unknown field, or as for `PlanVerdict.give`.
        """
        body = await read_fields(request.scope, request.receive)
        body.check_names({"digest", "decision", "reason", "steps"})
        steps = body.array("steps", MAX_STEPS)
        verdict = PlanVerdict(
            plan_id=request.path_params["id"],
            digest=body.need_text("digest"),
            decision=body.need_text("decision"),
            by=actor_of(request),
            reason=body.text("reason") or "",
            steps="" if steps is None else encode_json(steps).decode(),
        )
        return json_response(plan_entry(await verdict.give(self._store)))

    async def take_message(self, request: Request) -> Response:
        """Approve or refuse a plan by a signed message; no API key is needed besides the signature.

        The body has the fields `id`, `digest`, `decision` and perhaps `reason`.

        Raises:
            APIError: the server has no webhook, the signature or the body is invalid, or as for
                `PlanVerdict.give`.
        """
        missing = "This server has no webhook for approvals."
        webhook = require_part(self._catalogue.approval_webhook, missing)
        body = await read_checked_body(request.receive)
        try:
            webhook.check(request.headers, body)
        except ForgedMessageError as error:
            raise APIError(401, "invalid_signature", as_sentence(error)) from None
        fields = Fields(decode_object(body))
        plan_id, digest = fields.need_text("id"), fields.need_text("digest")
        fields.need("decision")
        verdict = PlanVerdict(
            plan_id=plan_id,
            digest=digest,
            decision=fields.choice("decision", ("approve", "refuse")) or "",
            by="webhook",
            reason=fields.text("reason") or "",
        )
        return json_response(plan_entry(await verdict.give(self._store)))

    @property
    def _store(self) -> Store:
        return require_part(self._optional_store, "This server keeps no plans for approval.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanVerdict:
    """A decision about a plan, valid only for the plan with this digest."""

    plan_id: str
    digest: str
    decision: str
    """`approve`, `refuse` or `edit`."""
    by: str
    """The actor, as named in the audit trail."""
    reason: str = ""
    steps: str = ""
    """The edited steps as JSON; empty: none, as for every decision but `edit`."""

    async def give(self, store: Store) -> PendingPlan:
        """Decide about the plan and return it; a plan that is edited still waits.

        Raises:
            APIError: the decision, its reason or its steps are invalid, no such plan waits, or the
                plan has changed.
            StoreError: the database fails.
        """
        if self.decision not in {"approve", "refuse", "edit"}:
            message = "'decision' must be 'approve', 'refuse' or 'edit'."
            raise APIError(400, "invalid_value", message, param="decision")
        if self.steps and self.decision != "edit":
            message = (
                "'steps' replace the plan only with the decision 'edit': send that first, then "
                "decide about the edited plan."
            )
            raise APIError(400, "invalid_value", message, param="steps")
        if len(self.reason) > MAX_REASON:
            message = f"'reason' exceeds {MAX_REASON} characters."
            raise APIError(400, "invalid_value", message, param="reason")
        plans = store.approvals
        try:
            if self.decision == "edit":
                read_steps(self.steps or "[]")
                return await plans.edit(self.plan_id, self.digest, self.steps, by=self.by)
            approved = self.decision == "approve"
            return await plans.decide(
                self.plan_id, self.digest, approved=approved, by=self.by, reason=self.reason
            )
        except ValueError as error:
            raise APIError(400, "invalid_value", as_sentence(error), param="steps") from None
        except ApprovalError as error:
            raise APIError(409, "not_waiting", as_sentence(error)) from None
