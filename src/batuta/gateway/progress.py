"""What a reader is told of a run while it is played. The same words in every dialect."""

from __future__ import annotations

from typing import final

from batuta.core import Began, Delta, Event, Malformed, Planned, Spoke, Workflow
from batuta.gateway.play import Booking

_SHORT = 80
"""Characters of a subtask that a line of progress shows."""


@final
class Progress:
    """Follows a run's events and says what of them is shown."""

    def __init__(self, booking: Booking) -> None:
        self.direct = booking.served.direct
        """One worker is passed through: its own reasoning is shown, and no progress."""
        self.live = booking.live
        """The last step's text is shown as it comes."""
        self._workflow: Workflow | None = None
        self._last = 0

    def fragment(self, event: Spoke) -> Delta | None:
        """What the reader may see of a fragment as it comes; None if nothing."""
        return event.delta if self.live and event.index == self._last else None

    def line(self, event: Event) -> str:
        """A line of progress without its end; empty if there is nothing to tell."""
        match event:
            case Planned():
                return self._planned(event)
            case Began() if not self.direct:
                return self._began(event)
            case _:
                return ""

    def _planned(self, event: Planned) -> str:
        played = event.played
        self._workflow = played.workflow
        self._last = len(played.workflow) - 1 if played.workflow else 0
        if self.direct or played.workflow is None:
            return ""
        if isinstance(played.decision, Malformed):
            return "No plan could be made; the best worker answers."
        steps = len(played.workflow)
        again = f" (round {event.round + 1})" if event.round else ""
        return f"Plan: {steps} step{'s' if steps > 1 else ''}{again}"

    def _began(self, event: Began) -> str:
        if self._workflow is None:
            return ""
        subtask = " ".join(self._workflow.steps[event.index].subtask.split())
        told = f" — {subtask[:_SHORT]}{'…' if len(subtask) > _SHORT else ''}" if subtask else ""
        return f"Step {event.index + 1}/{len(self._workflow)}: {event.worker}{told}"
