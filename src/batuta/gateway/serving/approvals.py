"""A run that waits for a person's approval of its plan, over all replicas and restarts."""

from __future__ import annotations

import json
from time import time

import anyio

from batuta.engine.approval_request import ApprovalRequest, ApprovalVerdict, Approver
from batuta.errors import StoreError
from batuta.gateway.errors import log_exception
from batuta.gateway.serving.admission import PreparedCall
from batuta.store import Store
from batuta.store.approvals import WAITING, ApprovalError, PendingPlan

_PAUSE_SECONDS = 0.5
"""Seconds between two looks."""
_SHOWN_CHARACTERS = 2000
"""Characters of the question and of a subtask that are shown to whoever approves."""


def open_approver(store: Store | None, prepared: PreparedCall) -> Approver | None:
    """Return what asks for approval of the call's plans; None: nobody can be asked."""
    if store is None:
        return None

    async def ask(request: ApprovalRequest) -> ApprovalVerdict:
        try:
            return await _await_verdict(store, prepared, request)
        except ApprovalError as error:
            return ApprovalVerdict(state="refused", reason=str(error))
        except StoreError as error:  # what cannot be asked for is not approved
            log_exception(error)
            return ApprovalVerdict(state="refused", reason="nobody could be asked")

    return ask


async def _await_verdict(
    store: Store, prepared: PreparedCall, request: ApprovalRequest
) -> ApprovalVerdict:
    now = time()
    asked = PendingPlan(
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
    found: PendingPlan | None = await store.approvals.ask(asked)
    # A clock that goes back must not let it wait for longer.
    left = min(request.expires_in, max(0.0, found.expires - now))
    try:
        with anyio.move_on_after(left):
            while found is not None and found.state == WAITING:
                await anyio.sleep(_PAUSE_SECONDS)
                found = await store.approvals.get(asked.id)
    except anyio.get_cancelled_exc_class():
        if not prepared.will_resume():
            with anyio.CancelScope(shield=True):
                await store.approvals.close(asked.id, "withdrawn")
        raise
    if found is not None and found.state == WAITING:
        found = await store.approvals.close(asked.id, "expired")
    return _verdict_of(found, request.digest)


def _verdict_of(found: PendingPlan | None, digest: str) -> ApprovalVerdict:
    """What was decided of that plan and no other."""
    if found is None or found.digest != digest:
        return ApprovalVerdict(state="refused", reason="the request for approval is gone")
    state = found.state if found.state in {"approved", "expired"} else "refused"
    return ApprovalVerdict(state=state, by=found.by, reason=found.reason)


def _describe_plan(request: ApprovalRequest) -> str:
    """Return what whoever approves is shown, as JSON."""
    steps = [
        {
            "worker": step.worker,
            "subtask": step.subtask[:_SHOWN_CHARACTERS],
            "access": list(step.access),
        }
        for step in request.workflow.steps
    ]
    shown = {
        "question": request.question.text[:_SHOWN_CHARACTERS],
        "tools": [tool.name for tool in request.question.tools][:64],
        "steps": steps,
    }
    return json.dumps(shown, ensure_ascii=False)
