"""Pays for drafts, and holds plans to the law of conductors and to the rules.

Where no draft can be paid, it finds a worker that can.

A plan that breaks a rule is sent back once, then repaired or refused.
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
    """Listens to the conductor's model: reserves its attempts and charges them."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.failures: list[Failure] = []
        self.limit_reached = False
        """Whether a limit forbade an attempt."""
        self._hold: Hold | None = None
        self._worker: Worker | None = None

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """Return the request as it may be made.

        A workflow is not shortened, for half of one is none.

        Raises:
            LimitReachedError: it may cost more than is left.
        """
        self._worker = worker
        try:
            self._hold = await self.context.reserve(request, worker, whole=True)
        except LimitReachedError:
            self.limit_reached = True
            raise
        return self._hold.request

    def charge(self, usage: Usage, cost: Cost, *, cut: bool = False) -> None:
        """Count what an attempt consumed, in the place of what was reserved for it."""
        self.context.budget.charge(usage, cost, self._hold, cut=cut)
        self._hold = None

    async def on_failure(self, failure: Failure) -> None:
        """Count the failed attempt.

        Raises:
            LimitReachedError: the budget forbids another attempt.
        """
        self.failures.append(failure)
        if failure.code == Outcome.CANCELLED:  # there is no further attempt
            self.charge(failure.usage, failure.cost, cut=True)
            return
        request = self._hold.request if self._hold else None
        self.charge(failure.usage, failure.cost)
        if request is not None and self._worker is not None:
            await self.before_call(request, self._worker)
        else:
            self.context.check_budget()

    def with_failed_attempts(self, decision: Decision) -> Decision:
        """Return the decision, its draft carrying the failed attempts' tokens and dollars."""
        if not self.failures:
            return decision
        usage = sum((f.usage for f in self.failures), decision.draft.usage)
        cost = sum((f.cost for f in self.failures), decision.draft.cost)
        draft = replace(decision.draft, usage=usage, cost=cost)
        match decision:
            case Plan():
                return replace(decision, draft=draft)
            case AcceptedAnswer():
                return replace(decision, draft=draft)
            case _:
                return MalformedPlan(
                    draft=draft,
                    reason=decision.reason,
                    outage=decision.outage,
                    again=decision.again,
                )


def check_decision(decision: Decision, context: PlanningContext) -> Decision:
    """Return the decision, or Malformed where it breaks the Conductor's law."""
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
    """Return the best worker whose answer can be paid where no draft can.

    If there is none, the run remembers what the cheapest one needs.
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
"""The error code of a run that was refused because no plan of it keeps the rules."""
PLAN = "plan"
"""The place at which rules for plans act, in the record of a run."""


def restrict_workers(
    rules: PlanRules, pool: Pool, clients: Mapping[WorkerId, Client]
) -> tuple[Pool, Mapping[WorkerId, Client], tuple[GuardrailTriggered, ...]]:
    """Return the workers and clients that may see the question, and which rules left others out.

    A worker without a client cannot be called at all, whoever would ask it. Where nobody may see
    the question, the pool is returned whole, and no client.
    """
    acts = tuple(
        GuardrailTriggered(policy=rule.name, where=PLAN, action="left out", count=count)
        for rule in rules.rules
        if (count := sum(worker.id in rule.forbidden for worker in pool))
    )
    forbidden = rules.forbidden
    if forbidden:
        clients = {key: client for key, client in clients.items() if key not in forbidden}
    left = rules.allowed_workers(pool)
    if not left:
        return pool, {}, acts
    return pool if len(left) == len(pool) else Pool(left), clients, acts


def keep_resumed(rules: PlanRules, resumed: ResumeState | None) -> ResumeState | None:
    """Return the state to go on from.

    None if its workflow breaks a rule, so that it is planned anew.
    """
    if resumed is None:
        return None
    workflow, before = resumed.rounds[-1].workflow, workers_before(resumed.rounds[:-1])
    broken = workflow is not None and rules.find_broken(workflow, before) is not None
    return None if broken else resumed


def refused_end(rule: PlanRule, seconds: float) -> RunFinished:
    """Return the end of a run that a rule forbids."""
    return RunFinished(
        outcome=Outcome.REFUSED,
        answer=None,
        reply=None,
        error=f"the rule {rule.name} for plans: {rule.sentence}",
        error_code=RULE_BROKEN,
        limit=None,
        seconds=seconds,
    )


class PlanCheck:
    """The rules for the plans of one round, and what became of one that broke them."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.rules = context.rules
        self.objection: Objection | None = None
        """This was said of the plan when it was sent back."""
        self.refusal: PlanRule | None = None
        """The rule because of which no workflow is run."""

    async def send_back(self, plan: Plan) -> MalformedPlan | None:
        """Return the plan as a draft to be written again if it breaks a rule and was written.

        None means that it may be run, was sent back before, or cannot be written anew.
        """
        if self.objection is not None or not plan.draft.text:
            return None
        if any(step.worker not in self.context.pool for step in plan.workflow.steps):
            return None  # another worker is put in the place of one that nobody was told of
        rule = self.rules.find_broken(plan.workflow, workers_before(self.context.rounds))
        if rule is None:
            return None
        own = f" ({rule.says})" if rule.says else ""
        reason = f"{rule.demand}{own}"
        self.objection = Objection(workflow=plan.workflow, reason=reason)
        await self._tell(rule, "sent back")
        return MalformedPlan(draft=plan.draft, reason=f"the rule {rule.name}: {reason}")

    async def settle(self, round_: Round, workflow: Workflow) -> Round:
        """Return the round with the workflow that may be run, repaired if need be, or none."""
        context = self.context
        before = workers_before(context.rounds)
        rule = self.rules.find_broken(workflow, before)
        if rule is None:
            return round_
        able = [worker.id for worker in able_workers(context.question, list(context.pool.ranked()))]
        steps = context.budget.limits.steps
        repaired = self.rules.repair(workflow, able, steps, before)
        await self._tell(rule, "refused" if repaired is None else "repaired")
        if repaired is not None:
            return replace(round_, workflow=repaired)
        self.refusal = rule
        reason = f"the rule {rule.name}: {rule.sentence}"
        decision = MalformedPlan(draft=round_.decision.draft, reason=reason)
        return replace(round_, decision=decision, workflow=None)

    def end(self, ended: RunFinished) -> RunFinished:
        """Return the end of the run, which says so if it has no answer because of a rule."""
        if self.refusal is None or ended.error_code != "malformed_plan":
            return ended
        return refused_end(self.refusal, ended.seconds)

    async def _tell(self, rule: PlanRule, action: str) -> None:
        await self.context.publish(GuardrailTriggered(policy=rule.name, where=PLAN, action=action))
