"""Holds plans to the rules, and finds who can be paid where no draft can.

A plan that breaks a rule is sent back once, then repaired or refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from batuta.core import (
    Client,
    GuardrailTriggered,
    MalformedPlan,
    Objection,
    Outcome,
    Plan,
    Pool,
    ResumeState,
    Round,
    RunFinished,
    WorkerId,
    Workflow,
)
from batuta.core.cost_bound import bound_call_cost
from batuta.engine.context import RunContext
from batuta.engine.step_prompt import able_workers, whole_question_request, workers_before
from batuta.errors import LimitReachedError
from batuta.language.plan_rules import PlanRule, PlanRules


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
