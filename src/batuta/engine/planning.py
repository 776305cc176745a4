"""Charges drafts to the budget, and checks plans against the Conductor protocol and the plan rules.

A plan that breaks a rule is sent back once to the model that wrote it, if a model did, and is then
repaired or refused. If the budget covers no draft, `find_affordable` finds a worker that can answer
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from batuta.core import (
    AcceptedAnswer,
    Client,
    Decision,
    Failure,
    GuardrailTriggered,
    MalformedPlan,
    Objection,
    Outcome,
    Plan,
    PlanningContext,
    Pool,
    Request,
    ResumeState,
    Round,
    RunFinished,
    Usage,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NullListener
from batuta.core.cost_bound import bound_call_cost
from batuta.engine.budget import Hold
from batuta.engine.context import RunContext
from batuta.engine.step_prompt import able_workers, whole_question_request, workers_before
from batuta.errors import LimitReachedError
from batuta.language.plan_rules import PlanRule, PlanRules
from batuta.usage import Cost


class PlanningListener(NullListener):
    """The listener of the calls of the conductor's model; it reserves and charges each attempt."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.failures: list[Failure] = []
        self.limit_reached = False
        """Whether a limit forbade an attempt."""
        self._hold: Hold | None = None
        self._worker: Worker | None = None

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """Reserve the call; return the request to send.

        The output cap is not lowered, since a truncated workflow is useless.

        Raises:
            LimitReachedError: the tokens are used up, or the call may cost more than the budget has
                left.
        """
        self._worker = worker
        try:
            self._hold = await self.context.reserve(request, worker, whole=True)
        except LimitReachedError:
            self.limit_reached = True
            raise
        return self._hold.request

    def charge(self, usage: Usage, cost: Cost, *, cancelled: bool = False) -> None:
        """Replace an attempt's reservation by what the attempt consumed."""
        self.context.budget.charge(usage, cost, self._hold, cancelled=cancelled)
        self._hold = None

    async def on_failure(self, failure: Failure) -> None:
        """Charge the failed attempt and, unless the call was cancelled, reserve the next one.

        A cancelled call whose reservation was not granted yet is not charged.

        Raises:
            LimitReachedError: the budget forbids another attempt.
        """
        is_cancelled = failure.code == Outcome.CANCELLED
        if is_cancelled and self._worker is not None and self._hold is None:
            return
        self.failures.append(failure)
        if is_cancelled:  # there is no further attempt
            self.charge(failure.usage, failure.cost, cancelled=True)
            return
        request = self._hold.request if self._hold else None
        self.charge(failure.usage, failure.cost)
        if request is not None and self._worker is not None:
            await self.before_call(request, self._worker)
        else:
            self.context.check_budget()

    def with_failed_attempts(self, decision: Decision) -> Decision:
        """Return the decision with the failed attempts' tokens and dollars added to its draft."""
        if not self.failures:
            return decision
        usage = sum((f.usage for f in self.failures), decision.draft.usage)
        cost = sum((f.cost for f in self.failures), decision.draft.cost)
        return replace(decision, draft=replace(decision.draft, usage=usage, cost=cost))


def check_decision(decision: Decision, context: PlanningContext) -> Decision:
    """Return the decision, or a MalformedPlan if it breaks the Conductor protocol."""
    if isinstance(decision, AcceptedAnswer) and not context.previous:
        return MalformedPlan(draft=decision.draft, reason="there is no earlier answer to accept")
    if not isinstance(decision, Plan):
        return decision
    steps = decision.workflow.steps
    if len(steps) > context.max_steps:
        reason = f"the workflow has {len(steps)} steps where {context.max_steps} are allowed"
        return MalformedPlan(draft=decision.draft, reason=reason)
    for index, step in enumerate(steps):
        if step.worker not in context.pool and step.worker not in context.forbidden:
            return MalformedPlan(
                draft=decision.draft, reason=f"step {index} names an unknown worker"
            )
    return decision


async def find_affordable(context: RunContext) -> WorkerId | None:
    """Return the best worker that the budget allows to answer the whole question.

    If there is none, return None and store in `context.limit` the error of the worker that needs
    the fewest dollars.
    """
    refused: list[tuple[Decimal, LimitReachedError]] = []
    for worker in able_workers(context.question, list(context.pool.ranked())):
        request = whole_question_request(context, 0, worker)
        try:
            hold = await context.budget.reserve(request, worker, waits=False)
        except LimitReachedError as error:
            bound = bound_call_cost(request, worker, context.budget.limits.unknown)
            refused.append((bound.min_usd, error))
        else:
            context.budget.release(hold)
            return worker.id
    context.limit = min(refused, key=lambda pair: pair[0])[1]
    return None


RULE_BROKEN = "plan_rule"
"""The error code of a run that a plan rule refused."""
PLAN = "plan"
"""The stage at which plan rules and approval rules act, in the record of a run."""


def restrict_workers(
    rules: PlanRules, pool: Pool, clients: Mapping[WorkerId, Client]
) -> tuple[Pool, Mapping[WorkerId, Client], tuple[GuardrailTriggered, ...]]:
    """Return the workers and clients that may see the question, and the actions of the rules.

    The clients of forbidden workers are removed, so that no component can call them. If no worker
    may see the question, the whole pool is returned, without clients.
    """
    acts = tuple(
        GuardrailTriggered(policy=rule.name, where=PLAN, action="left out", count=count)
        for rule in rules.rules
        if (count := sum(worker.id in rule.forbidden for worker in pool))
    )
    forbidden = rules.forbidden
    if forbidden:
        clients = {key: client for key, client in clients.items() if key not in forbidden}
    allowed = rules.allowed_workers(pool)
    if not allowed:
        return pool, {}, acts
    return pool if len(allowed) == len(pool) else Pool(allowed), clients, acts


def keep_resumed(rules: PlanRules, resumed: ResumeState | None) -> ResumeState | None:
    """Return the state to resume; None if its workflow breaks a rule, so that it is not resumed."""
    if resumed is None:
        return None
    workflow, before = resumed.rounds[-1].workflow, workers_before(resumed.rounds[:-1])
    broken = workflow is not None and rules.find_broken(workflow, before) is not None
    return None if broken else resumed


def refused_end(rule: PlanRule, seconds: float) -> RunFinished:
    """Return the end of a run that a plan rule refuses."""
    return RunFinished(
        outcome=Outcome.REFUSED,
        error=f"the rule {rule.name} for plans: {rule.sentence}",
        error_code=RULE_BROKEN,
        seconds=seconds,
    )


class PlanCheck:
    """The check of one round's plans against the plan rules, with its objection or refusal."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.rules = context.rules
        self.objection: Objection | None = None
        """The objection with which a plan was sent back; None if none was."""
        self.refusal: PlanRule | None = None
        """The rule that no repair can satisfy, so that no workflow is run; else None."""

    async def send_back(self, plan: Plan) -> MalformedPlan | None:
        """Return the plan as a rejected draft if it breaks a rule and can be rewritten.

        Return None if the plan breaks no rule, if a plan of this round was sent back before, if no
        model wrote the plan, or if the plan names a worker that is hidden from the conductor.
        """
        if self.objection is not None or not plan.draft.text:
            return None
        if any(step.worker not in self.context.pool for step in plan.workflow.steps):
            return None  # a forbidden worker: `settle` acts
        rule = self.rules.find_broken(plan.workflow, workers_before(self.context.rounds))
        if rule is None:
            return None
        own = f" ({rule.says})" if rule.says else ""
        reason = f"{rule.demand}{own}"
        self.objection = Objection(workflow=plan.workflow, reason=reason)
        await self._publish(rule, "sent back")
        return MalformedPlan(draft=plan.draft, reason=f"the rule {rule.name}: {reason}")

    async def settle(self, round_: Round, workflow: Workflow) -> Round:
        """Return the round; its workflow is repaired if it breaks a rule.

        If it cannot be repaired, return the round as malformed, without a workflow, and store the
        refusal.
        """
        context = self.context
        before = workers_before(context.rounds)
        rule = self.rules.find_broken(workflow, before)
        if rule is None:
            return round_
        able = [worker.id for worker in able_workers(context.question, list(context.pool.ranked()))]
        steps = context.budget.limits.steps
        repaired = self.rules.repair(workflow, able, steps, before)
        await self._publish(rule, "refused" if repaired is None else "repaired")
        if repaired is not None:
            return replace(round_, workflow=repaired)
        self.refusal = rule
        reason = f"the rule {rule.name}: {rule.sentence}"
        decision = MalformedPlan(draft=round_.decision.draft, reason=reason)
        return replace(round_, decision=decision, workflow=None)

    def end(self, ended: RunFinished) -> RunFinished:
        """Return the end of the run; it is a refusal if a rule is why there is no answer."""
        if self.refusal is None or ended.error_code != "malformed_plan":
            return ended
        return refused_end(self.refusal, ended.seconds)

    async def _publish(self, rule: PlanRule, action: str) -> None:
        await self.context.publish(GuardrailTriggered(policy=rule.name, where=PLAN, action=action))
