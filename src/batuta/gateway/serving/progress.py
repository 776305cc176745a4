"""What a reader is told of a run while it is played. The same words in every dialect."""

from __future__ import annotations

from typing import final

from batuta.core import Delta, Event, MalformedPlan, RoundPlanned, StepDelta, StepStarted, Workflow
from batuta.gateway.serving.execute import PreparedCall

_MAX_SUBTASK = 80
"""Characters of a subtask that a line of progress shows."""


@final
class RunProgress:
    """Follows a run's events and says what of them is shown."""

    def __init__(self, prepared: PreparedCall) -> None:
        self.direct = prepared.served_model.direct
        """One worker is passed through: its own reasoning is shown, and no progress."""
        self.can_stream = prepared.can_stream
        """The last step's text is shown as it comes."""
        self._workflow: Workflow | None = None
        self._last = 0

    def visible_delta(self, event: StepDelta) -> Delta | None:
        """What the reader may see of a fragment as it comes; None if nothing."""
        return event.delta if self.can_stream and event.index == self._last else None

    def progress_line(self, event: Event) -> str:
        """A line of progress without its end; empty if there is nothing to tell."""
        match event:
            case RoundPlanned():
                return self._plan_line(event)
            case StepStarted() if not self.direct:
                return self._step_line(event)
            case _:
                return ""

    def _plan_line(self, event: RoundPlanned) -> str:
        played = event.played
        self._workflow = played.workflow
        self._last = len(played.workflow) - 1 if played.workflow else 0
        if self.direct or played.workflow is None:
            return ""
        if isinstance(played.decision, MalformedPlan):
            return "No plan could be made; the best worker answers."
        steps = len(played.workflow)
        again = f" (round {event.round + 1})" if event.round else ""
        return f"Plan: {steps} step{'s' if steps > 1 else ''}{again}"

    def _step_line(self, event: StepStarted) -> str:
        if self._workflow is None:
            return ""
        subtask = " ".join(self._workflow.steps[event.index].subtask.split())
        told = (
            f" — {subtask[:_MAX_SUBTASK]}{'…' if len(subtask) > _MAX_SUBTASK else ''}"
            if subtask
            else ""
        )
        return f"Step {event.index + 1}/{len(self._workflow)}: {event.worker}{told}"
