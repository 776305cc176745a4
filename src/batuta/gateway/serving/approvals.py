"""Makes a run wait until a person or the webhook decides about its plan, or the plan expires.

The decision can be made on any replica. A run that is resumed after a restart waits for it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from time import time
from typing import Any

import anyio
import orjson

from batuta.clients.webhook import Webhook
from batuta.core.workflow import steps_json
from batuta.engine.approval_request import (
    UNAVAILABLE,
    ApprovalRequest,
    ApprovalVerdict,
    Approver,
    read_steps,
)
from batuta.errors import StoreError
from batuta.gateway.errors import log_exception
from batuta.gateway.serving.admission import PreparedCall
from batuta.store import Store
from batuta.store.approvals import WAITING, ApprovalError, PendingPlan

_PAUSE_SECONDS = 0.5
"""Seconds between polls of the decision."""
_SHOWN_CHARACTERS = 2000
"""Maximum number of characters of the question that the approver sees."""


NotifyPlan = Callable[[PendingPlan], None]
"""Starts sending a waiting plan to the webhook, if there is one."""


def open_approver(
    store: Store | None, prepared: PreparedCall, webhook: Webhook | None = None
) -> Approver | None:
    """Return the approver of the call's plans; None without a store, which keeps waiting plans."""
    if store is None:
        return None

    async def ask(request: ApprovalRequest) -> ApprovalVerdict:
        # If the store fails, the plan is not approved.
        verdict = ApprovalVerdict(state=UNAVAILABLE)
        async with anyio.create_task_group() as tasks:

            def notify(plan: PendingPlan) -> None:
                if webhook is not None:
                    event = {"type": "approval.waiting", "data": plan_entry(plan)}
                    tasks.start_soon(webhook.send, f"{plan.id}:{plan.digest}", event)

            try:
                verdict = await _await_verdict(store, prepared, request, notify)
            except ApprovalError as error:
                verdict = ApprovalVerdict(state="refused", reason=str(error))
            except StoreError as error:
                log_exception(error)
            tasks.cancel_scope.cancel()
        return verdict

    return ask


async def _await_verdict(
    store: Store, prepared: PreparedCall, request: ApprovalRequest, notify: NotifyPlan
) -> ApprovalVerdict:
    now, original = time(), request
    pending = PendingPlan(
        id=f"{request.run_id}:{request.round}",
        run_id=request.run_id,
        tenant=prepared.caller.tenant,
        rule=request.rule,
        digest=request.digest,
        plan=_describe_plan(request),
        usd=f"{request.usd:f}",
        state=WAITING,
        created=now,
        expires=now + request.expires_in,
    )
    found: PendingPlan | None = await store.approvals.ask(pending)
    found, request = await _restore_edit(store, found, pending, request)
    # The clock may have been set back, which must not extend the wait.
    left = min(request.expires_in, max(0.0, found.expires - now))
    try:
        found, request = await _watch_plan(store, found, request, notify=notify, seconds=left)
    except anyio.get_cancelled_exc_class():
        if not prepared.will_resume():
            await _withdraw_plan(store, pending.id)
        raise
    if found is not None and found.state == WAITING:
        found = await store.approvals.close(pending.id, "expired")
    verdict = _verdict_of(found, request.digest)
    if request is original or found is None:
        return verdict
    return replace(verdict, workflow=request.workflow, edited_by=found.edited_by)


async def _watch_plan(
    store: Store,
    found: PendingPlan | None,
    request: ApprovalRequest,
    *,
    notify: NotifyPlan,
    seconds: float,
) -> tuple[PendingPlan | None, ApprovalRequest]:
    """Wait until the plan is decided, deleted, or has waited for `seconds`.

    Return the plan, or None if it was deleted, and its request with the latest edit.
    """
    noted, ends = "", anyio.current_time() + seconds
    while found is not None and found.state == WAITING and anyio.current_time() < ends:
        if found.digest != noted:
            noted = found.digest
            notify(found)
        try:
            if found.edit:
                request = await _apply_edit(store, found, request)
            await anyio.sleep(min(_PAUSE_SECONDS, ends - anyio.current_time()))
            found = await store.approvals.get(found.id)
        except StoreError as error:  # a decision needs the database too, so keep waiting
            log_exception(error)
            await anyio.sleep(_PAUSE_SECONDS)
    return found, request


async def _withdraw_plan(store: Store, plan_id: str) -> None:
    """Withdraw the plan of a cancelled run; if the store fails, the plan expires."""
    with anyio.CancelScope(shield=True):
        try:
            await store.approvals.close(plan_id, "withdrawn")
        except StoreError as error:
            log_exception(error)


async def _restore_edit(
    store: Store, found: PendingPlan, pending: PendingPlan, request: ApprovalRequest
) -> tuple[PendingPlan, ApprovalRequest]:
    """Return the plan and its request, with an edit that was made before a restart.

    An edit that may no longer run is dropped, even if it was approved: the original plan waits
    again, with the reason for this.
    """
    if found.digest == request.digest or found.state not in {WAITING, "approved"}:
        return found, request
    why = "its steps are not those that were shown"
    try:
        revised = _revise_plan(request, found.steps)
        if revised.digest == found.digest:
            return found, revised
    except ValueError as error:
        why = str(error)
    reason = f"the edited plan may not be run any more: {why}"
    return await store.approvals.ask(replace(pending, reason=reason), anew=True), request


async def _apply_edit(
    store: Store, found: PendingPlan, request: ApprovalRequest
) -> ApprovalRequest:
    """Check and price the edit of a waiting plan, replace the plan by it, and return its request.

    An edit that may not run is dropped, and the plan waits with the reason for this.
    """
    revised = request
    try:
        revised = _revise_plan(request, found.edit)
        plan = replace(
            found,
            digest=revised.digest,
            plan=_describe_plan(revised),
            usd=f"{revised.usd:f}",
            by="",
            reason="",
            edit="",
            written=found.written or found.digest,
            steps=found.edit,
            edited_by=found.by,
        )
    except ValueError as error:
        plan = replace(found, reason=f"the edit was rejected: {error}", edit="", by="")
    return revised if await store.approvals.take_edit(found, plan) else request


def _revise_plan(request: ApprovalRequest, steps: str) -> ApprovalRequest:
    """Return the request with the edited steps.

    Raises:
        ValueError: the plan cannot be edited, or the edited steps may not run.
    """
    if request.revise is None:
        raise ValueError("this plan cannot be edited")
    return request.revise(read_steps(steps))


def _verdict_of(found: PendingPlan | None, digest: str) -> ApprovalVerdict:
    """Return the verdict; an approval of a plan with another digest counts as a refusal."""
    if found is None or (found.state == "approved" and found.digest != digest):
        return ApprovalVerdict(state="refused", reason="the request for approval no longer exists")
    state = found.state if found.state in {"approved", "expired"} else "refused"
    return ApprovalVerdict(state=state, by=found.by, reason=found.reason)


def _describe_plan(request: ApprovalRequest) -> str:
    """Return what the approver sees of the plan, as JSON."""
    text = request.question.text
    if len(text) > _SHOWN_CHARACTERS:  # the approver must see that text is missing
        left = len(text) - _SHOWN_CHARACTERS
        text = f"{text[:_SHOWN_CHARACTERS]} [… and {left} more characters]"
    shown = {
        "question": text,
        "tools": [tool.name for tool in request.question.tools][:64],
        "steps": steps_json(request.workflow),
    }
    return json.dumps(shown, ensure_ascii=False)


def plan_entry(plan: PendingPlan) -> dict[str, Any]:
    """Return a plan as an object of the API."""
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
        "edited_by": plan.edited_by,
        **shown,
    }
