"""A prompted conductor: a language model that was not trained to conduct writes the workflow.

As in the Conductor paper (arXiv 2512.04388), a strong model without training gets the conductor's
prompt with the four worked examples. Here that model is the pool's best worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batuta.conductors import LLMConductor
from batuta.core import CallListener, Client, Decision, PlanningContext, WorkerId
from batuta.core.conductor import NULL_LISTENER


@dataclass(frozen=True, slots=True)
class PromptedConductor:
    """The pool's best worker as conductor; its drafts are paid like every other call."""

    clients: Mapping[WorkerId, Client]
    name: str = "prompted/best"

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Return the best worker's decision."""
        best = context.pool.ranked()[0]
        conductor = LLMConductor(name=self.name, client=self.clients[best.id], worker=best)
        return await conductor.plan(context, listener)
