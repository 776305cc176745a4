"""A conductor's call: reserved before it is made, charged after it, its decision checked."""

from __future__ import annotations

from dataclasses import replace

from batuta.core import (
    AcceptedAnswer,
    Cost,
    Decision,
    Failure,
    MalformedPlan,
    Plan,
    PlanningContext,
    Request,
    Usage,
    Worker,
)
from batuta.core.conductor import NullListener
from batuta.engine.budget import Hold
from batuta.engine.context import RunContext
from batuta.errors import LimitReachedError


def add_paid_draft(decision: Decision, drafts: list[MalformedPlan]) -> list[MalformedPlan]:
    """The drafts, and one that was broken off if it cost anything."""
    if isinstance(decision, MalformedPlan) and decision.draft.usage.calls > 0:
        return [*drafts, decision]
    return drafts


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
        """The request as it may be made; a workflow is not shortened, for half of one is none.

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

    def charge(self, usage: Usage, cost: Cost) -> None:
        """Counts what an attempt consumed, in the place of what was reserved for it."""
        self.context.budget.charge(usage, cost, self._hold)
        self._hold = None

    async def on_failure(self, failure: Failure) -> None:
        """Count the failed attempt.

        Raises:
            LimitReachedError: the budget forbids another attempt.
        """
        self.failures.append(failure)
        request = self._hold.request if self._hold else None
        self.charge(failure.usage, failure.cost)
        if request is not None and self._worker is not None:
            await self.before_call(request, self._worker)
        else:
            self.context.check_budget()

    def with_failed_attempts(self, decision: Decision) -> Decision:
        """The decision, its draft carrying the failed attempts' tokens and dollars."""
        if not self.failures:
            return decision
        usage = sum((f.usage for f in self.failures), decision.draft.usage)
        cost = sum((f.cost for f in self.failures), decision.draft.cost)
        draft = replace(decision.draft, usage=usage, cost=cost)
        match decision:
            case Plan():
                return Plan(decision.workflow, draft)
            case AcceptedAnswer():
                return AcceptedAnswer(draft)
            case _:
                return MalformedPlan(
                    draft=draft,
                    reason=decision.reason,
                    outage=decision.outage,
                    again=decision.again,
                )


def check_decision(decision: Decision, context: PlanningContext) -> Decision:
    """The decision, or Malformed where it breaks the Conductor's law."""
    if isinstance(decision, AcceptedAnswer) and not context.previous:
        return MalformedPlan(draft=decision.draft, reason="there is no earlier answer to accept")
    if not isinstance(decision, Plan):
        return decision
    steps = decision.workflow.steps
    if len(steps) > context.max_steps:
        reason = f"the workflow has {len(steps)} steps where {context.max_steps} are allowed"
        return MalformedPlan(draft=decision.draft, reason=reason)
    for index, step in enumerate(steps):
        if step.worker not in context.pool:
            return MalformedPlan(
                draft=decision.draft, reason=f"step {index} names an unknown worker"
            )
    return decision
