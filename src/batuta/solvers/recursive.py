"""The outer loop: an answer is returned as it is, or a corrective workflow is played.

The engine plays as many rounds as `Limits.rounds` allows and asks the conductor again after each
(Conductor paper, section 3.3). A `Learned` conductor answers for itself; `Recursive` lets another
one judge what any conductor began.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core import Brief, Conductor, Decision, Listener
from batuta.core.conductor import SILENT


@dataclass(frozen=True, slots=True)
class Recursive:
    """`first` writes the first workflow; `then` accepts its answer or corrects it."""

    first: Conductor
    then: Conductor

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.first.name}+{self.then.name}"

    async def plan(self, brief: Brief, listener: Listener = SILENT) -> Decision:
        """The decision of whoever's turn it is."""
        conductor = self.then if brief.previous else self.first
        return await conductor.plan(brief, listener)
