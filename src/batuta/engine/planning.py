"""A conductor's call: reserved before it is made, charged after it, its decision checked."""

from __future__ import annotations

from batuta.core import (
    Accepted,
    Brief,
    Cost,
    Decision,
    Draft,
    Failure,
    Malformed,
    Plan,
    Request,
    Usage,
    Worker,
)
from batuta.core.conductor import Silent
from batuta.engine.budget import Hold
from batuta.engine.stage import Stage
from batuta.errors import LimitReached


def with_paid(decision: Decision, drafts: list[Malformed]) -> list[Malformed]:
    """The drafts, and one that was broken off if it cost anything."""
    if isinstance(decision, Malformed) and decision.draft.usage.calls > 0:
        return [*drafts, decision]
    return drafts


class PlanningListener(Silent):
    """Listens to the conductor's model: reserves its attempts and charges them."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.failures: list[Failure] = []
        self.forbidden = False
        """Whether a limit forbade an attempt."""
        self._hold: Hold | None = None
        self._worker: Worker | None = None

    async def admit(self, request: Request, worker: Worker) -> Request:
        """The request as it may be made; a workflow is not shortened, for half of one is none.

        Raises:
            LimitReached: it may cost more than is left.
        """
        self._worker = worker
        try:
            self._hold = await self.stage.reserve(request, worker, whole=True)
        except LimitReached:
            self.forbidden = True
            raise
        return self._hold.request

    def charge(self, usage: Usage, cost: Cost) -> None:
        """Counts what an attempt consumed, in the place of what was reserved for it."""
        self.stage.budget.charge(usage, cost, self._hold)
        self._hold = None

    async def failed(self, failure: Failure) -> None:
        """Count the failed attempt.

        Raises:
            LimitReached: the budget forbids another attempt.
        """
        self.failures.append(failure)
        request = self._hold.request if self._hold else None
        self.charge(failure.usage, failure.cost)
        if request is not None and self._worker is not None:
            await self.admit(request, self._worker)
        else:
            self.stage.permit()

    def charged(self, decision: Decision) -> Decision:
        """The decision, its draft carrying the failed attempts' tokens and dollars."""
        if not self.failures:
            return decision
        usage = sum((f.usage for f in self.failures), decision.draft.usage)
        cost = sum((f.cost for f in self.failures), decision.draft.cost)
        draft = Draft(decision.draft.text, usage, cost, decision.draft.request)
        match decision:
            case Plan():
                return Plan(decision.workflow, draft)
            case Accepted():
                return Accepted(draft)
            case _:
                return Malformed(draft, decision.reason, decision.outage)


def check_decision(decision: Decision, brief: Brief) -> Decision:
    """The decision, or Malformed where it breaks the Conductor's law."""
    if isinstance(decision, Accepted) and not brief.previous:
        return Malformed(decision.draft, "there is no earlier answer to accept")
    if not isinstance(decision, Plan):
        return decision
    steps = decision.workflow.steps
    if len(steps) > brief.max_steps:
        reason = f"the workflow has {len(steps)} steps where {brief.max_steps} are allowed"
        return Malformed(decision.draft, reason)
    for index, step in enumerate(steps):
        if step.worker not in brief.pool:
            return Malformed(decision.draft, f"step {index} names an unknown worker")
    return decision
