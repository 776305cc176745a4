"""The outer loop: an answer is returned as it is, or a corrective workflow is run.

The engine runs as many rounds as `Limits.rounds` allows and asks the conductor again after each
(Conductor paper, section 3.3). A `LLMConductor` conductor answers for itself; `RecursiveConductor`
lets another one judge what any conductor began.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core import CallListener, Conductor, Decision, PlanningContext
from batuta.core.conductor import NULL_LISTENER, needed_rounds


@dataclass(frozen=True, slots=True)
class RecursiveConductor:
    """`first` writes the first workflow; `then` accepts its answer or corrects it."""

    first: Conductor
    corrector: Conductor

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.first.name}+{self.corrector.name}"

    @property
    def needed_rounds(self) -> int:
        """The rounds of a workflow and a look at its answer, or more if either needs more."""
        return max(2, needed_rounds(self.first), needed_rounds(self.corrector))

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """The decision of whoever's turn it is."""
        conductor = self.corrector if context.previous else self.first
        return await conductor.plan(context, listener)
