"""The workflows of a stored run, played again."""

from __future__ import annotations

from batuta.core import Accepted, Brief, Decision, Listener, Malformed, Plan, Run, WorkerId
from batuta.core.conductor import SILENT, Draft


class Recorded:
    """Decides in each round as was decided then, and drafts nothing."""

    def __init__(self, run: Run) -> None:
        self.name = f"recorded/{run.id}"
        self._workflows = [played.workflow for played in run.rounds]

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Every worker that the workflows name."""
        named = (step.worker for flow in self._workflows if flow for step in flow.steps)
        return tuple(dict.fromkeys(named))

    async def plan(self, brief: Brief, listener: Listener = SILENT) -> Decision:
        """The workflow of that round; none there: the answer stands."""
        number = len(brief.previous)
        workflow = self._workflows[number] if number < len(self._workflows) else None
        if workflow is not None:
            return Plan(workflow)
        if number:
            return Accepted()
        return Malformed(Draft(), "the stored run has no workflow")
