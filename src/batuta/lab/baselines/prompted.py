"""A prompted conductor: a language model that was not trained for it writes the workflow.

Conductor paper (arXiv 2512.04388), its untrained conductors: the conductor's prompt, with the four
worked examples, is given to a strong model. Here it is the pool's own best worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batuta.conductors import LLMConductor
from batuta.core import CallListener, Client, Decision, PlanningContext, WorkerId
from batuta.core.conductor import NULL_LISTENER


@dataclass(frozen=True, slots=True)
class PromptedConductor:
    """The pool's best worker as the conductor; its drafts are paid like every other call."""

    clients: Mapping[WorkerId, Client]
    name: str = "prompted/best"

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """The best worker's decision."""
        best = context.pool.ranked()[0]
        learned = LLMConductor(name=self.name, client=self.clients[best.id], worker=best)
        return await learned.plan(context, listener)
