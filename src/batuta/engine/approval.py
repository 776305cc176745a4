"""Plans that a person approves before they are run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from math import inf

from batuta.core import (
    Draft,
    Failure,
    GuardrailTriggered,
    Outcome,
    Reply,
    Round,
    RoundPlanned,
    RunFinished,
    WorkerId,
    Workflow,
)
from batuta.core.formatting import format_usd
from batuta.engine.approval_request import UNAVAILABLE, ApprovalRequest, ApprovalVerdict
from batuta.engine.confidence import SampleSetting
from batuta.engine.context import RunContext
from batuta.engine.planning import PLAN
from batuta.engine.step_prompt import workers_before
from batuta.engine.workflow_estimate import estimate_workflow
from batuta.language.approval_rules import may_change
from batuta.usage import ZERO_COST, Cost, Price, usage_cost

WAITS = "waits for approval"
"""The recorded action of a rule when approval is requested."""
EDITED = "edited"
"""The recorded action when a person changed the plan's steps before the verdict."""


async def gate_round(
    context: RunContext, number: int, round_: Round, *, editable: bool = False
) -> RunFinished | None:
    """Wait for a person's verdict on the round, if a rule requires an approval.

    Return None if the round may be run, else the run's end.

    Args:
        context: the run.
        number: the round's number in this run, from 0.
        round_: the planned round.
        editable: whether the plan may be edited; an edited round is published again.
    """
    workflow = round_.workflow
    if not context.settings.approvals or workflow is None:
        return None
    usd = _expected_usd(context, workflow)
    changes = may_change(context.question, workflow, context.pool, context.settings.tool_classes)
    holding = (
        rule
        for rule in context.settings.approvals
        if rule.holds(context.question, workflow, usd, changes=changes)
    )
    rule = next(holding, None)
    if rule is None:
        return None
    await _publish_act(context, rule.name, WAITS)
    request = ApprovalRequest(
        run_id=context.run_id,
        round=number + context.round_offset,
        rule=rule.name,
        question=context.question,
        workflow=workflow,
        usd=usd,
        expires_in=rule.expires_s,
    )
    if editable:
        request = _make_editable(context, number, request)
    verdict = await _await_verdict(context, request)
    if verdict.workflow is not None:
        await _publish_act(context, rule.name, EDITED, verdict.edited_by)
    await _publish_act(context, rule.name, verdict.state, verdict.by)
    if verdict.state == "approved":
        if verdict.workflow is not None:
            edited = replace(round_, workflow=verdict.workflow)
            await context.publish(RoundPlanned(number, edited))
        return None
    return _refused_end(rule.name, verdict, context.elapsed())


def _make_editable(context: RunContext, number: int, request: ApprovalRequest) -> ApprovalRequest:
    """Return the request with a `revise` function, so that a person can edit the plan."""
    before = workers_before(context.rounds[: number + context.round_offset])

    def revise(workflow: Workflow) -> ApprovalRequest:
        steps = context.budget.limits.steps
        if len(workflow) > steps:
            raise ValueError(f"it has {len(workflow)} steps where {steps} are allowed")
        for step in workflow.steps:
            if step.worker not in context.pool:
                raise ValueError(_describe_absent(context, step.worker))
            if step.previous and not before:
                raise ValueError("there is no previous round to read")
        broken = context.rules.find_broken(workflow, before)
        if broken is not None:
            raise ValueError(f"it breaks the rule {broken.name}: {broken.sentence}")
        usd, limit = _expected_usd(context, workflow), context.budget.limits.usd
        if limit is not None and usd > Decimal(str(limit)):
            expected = f"it is expected to cost {format_usd(usd)}"
            raise ValueError(f"{expected} where {format_usd(Decimal(str(limit)))} are allowed")
        return replace(request, workflow=workflow, usd=usd, revise=revise)

    return replace(request, revise=revise)


def _describe_absent(context: RunContext, worker: WorkerId) -> str:
    """Return why a worker of an edited plan is not in the pool."""
    rule = context.rules.forbidding_rule(worker)
    if rule is not None:
        return f"it breaks the rule {rule.name}: {rule.sentence}"
    return f"no worker here has the id {worker[:80]!r}"


async def _await_verdict(context: RunContext, request: ApprovalRequest) -> ApprovalVerdict:
    """Return the verdict; the run's deadline is suspended until then."""
    if context.approve is None:
        reason = "no person can be asked here; send the question to `batuta serve`"
        return ApprovalVerdict(state="refused", reason=reason)
    scope, began = context.deadline, context.elapsed()
    ends = inf if scope is None else scope.deadline
    if scope is not None:
        scope.deadline = inf
    try:
        return await context.approve(request)
    finally:
        if scope is not None:
            scope.deadline = ends + context.elapsed() - began


async def _publish_act(context: RunContext, rule: str, action: str, by: str = "") -> None:
    await context.publish(GuardrailTriggered(policy=rule, where=PLAN, action=action, by=by))


def _expected_usd(context: RunContext, workflow: Workflow) -> Decimal:
    """Return the dollars that this run has spent and is expected to spend on the workflow.

    The samples of the answer are included; workers without a price count at the assumed price.
    """
    unknown: Price = context.budget.limits.unknown
    costs = [_assumed_cost(part, unknown) for part in _charged_parts(context)]
    again = _expected_samples(context, workflow)
    estimate = estimate_workflow(context.question, workflow, context.pool, again=again)
    costs += [
        usage_cost(usage, context.pool[step.worker].price or unknown)
        for step, usage in zip(workflow.steps, estimate.steps, strict=True)
    ]
    sampler = again and again.find_worker(context.pool, workflow.steps[-1].worker)
    if sampler is not None:
        costs.append(usage_cost(estimate.samples, sampler.price or unknown))
    return sum(costs, ZERO_COST).usd


def _charged_parts(context: RunContext) -> Iterator[Draft | Reply | Failure]:
    """Yield the drafts, replies and failed attempts of the run so far."""
    for round_ in context.recorder.rounds:
        yield from round_.conductor_drafts
        for step in round_.steps:
            yield step.result
            yield from (attempt.failure for attempt in step.attempts)


def _assumed_cost(part: Draft | Reply | Failure, unknown: Price) -> Cost:
    """Return the cost of a part of the run, at the price `unknown` where it has no price."""
    if not part.cost.unpriced_calls:
        return part.cost
    return part.cost + usage_cost(part.usage, unknown)


def _expected_samples(context: RunContext, workflow: Workflow) -> SampleSetting | None:
    model, header = context.settings.confidence, context.recorder.header
    if model is None or header is None:
        return None
    return model.expected_samples(header.conductor, workflow)


def _refused_end(rule: str, verdict: ApprovalVerdict, seconds: float) -> RunFinished:
    needs = f"the rule {rule} requires that a person approves the plan, but"
    if verdict.state == UNAVAILABLE:
        return RunFinished(
            outcome=Outcome.FAILED,
            error=f"{needs} the request cannot be stored now; try again later",
            error_code=f"approval_{UNAVAILABLE}",
            seconds=seconds,
        )
    why = f": {verdict.reason}" if verdict.reason else ""
    refusal = "it was not approved in time" if verdict.state == "expired" else "it was refused"
    return RunFinished(
        outcome=Outcome.REFUSED,
        error=f"{needs} {refusal}{why}",
        error_code=f"approval_{verdict.state}",
        seconds=seconds,
    )
