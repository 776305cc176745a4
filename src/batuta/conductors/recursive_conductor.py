"""A conductor of several rounds: an answer is accepted, or a corrective workflow is run.

The engine runs as many rounds as `Limits.rounds` allows and asks the conductor again after each
(Conductor paper, section 3.3). A `LLMConductor` decides this itself; `RecursiveConductor` lets
another conductor judge the first one's answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core import CallListener, Conductor, Decision, PlanningContext
from batuta.core.conductor import NULL_LISTENER, needed_rounds


@dataclass(frozen=True, slots=True)
class RecursiveConductor:
    """`first` writes the first workflow; `corrector` accepts its answer or corrects it."""

    first: Conductor
    corrector: Conductor

    @property
    def name(self) -> str:
        """The names of both conductors."""
        return f"{self.first.name}+{self.corrector.name}"

    @property
    def needed_rounds(self) -> int:
        """Two rounds, or more if either conductor needs more."""
        return max(2, needed_rounds(self.first), needed_rounds(self.corrector))

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Ask the conductor of this round."""
        conductor = self.corrector if context.previous else self.first
        return await conductor.plan(context, listener)
