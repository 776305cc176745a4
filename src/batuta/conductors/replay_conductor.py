"""A conductor that replays the workflows of a stored run."""

from __future__ import annotations

from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Decision,
    MalformedPlan,
    Plan,
    PlanningContext,
    Run,
    WorkerId,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.workflow import Draft


class ReplayConductor:
    """A conductor that repeats the workflows of a stored run, without drafts.

    Rounds that only evaluated an answer are not repeated.
    """

    def __init__(self, run: Run) -> None:
        self.name = f"recorded/{run.id}"
        self._workflows = [round_.workflow for round_ in run.rounds if not round_.is_aside]

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """All workers that the workflows name."""
        named = (step.worker for flow in self._workflows if flow for step in flow.steps)
        return tuple(dict.fromkeys(named))

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Return the stored run's workflow of this round; without one, accept the answer.

        If the stored run has no workflow for the first round, the plan is malformed.
        """
        number = len(context.previous)
        workflow = self._workflows[number] if number < len(self._workflows) else None
        if workflow is not None:
            return Plan(workflow)
        if number:
            return AcceptedAnswer()
        return MalformedPlan(draft=Draft(), reason="the stored run's first round has no workflow")
