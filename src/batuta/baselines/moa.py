"""Mixture-of-Agents: layers of proposers, each reading all answers of the layer before it.

Wang et al., "Mixture-of-Agents Enhances Large Language Model Capabilities" (arXiv 2406.04692),
sections 2.2 and 3.1: L layers, P proposers in each but the last, one aggregator in the last, so
P(L - 1) + 1 calls. The paper's setting is L = 3, P = 6, which is 13 calls; `layers=2, proposers=7`
is the form of 8 calls that the Conductor paper (arXiv 2512.04388) compares with.

Deviations
- The aggregate-and-synthesise instruction is our own wording, and a subtask in the worker's
  prompt, not a system prompt; the answers before it stand between tags, not in a numbered list.
- The proposers are the pool's best P workers; a smaller pool takes turns. The aggregator is the
  worker that is praised most for comparing and for long context; the paper chose it by trial.
- That the Conductor paper's 8 calls are 7 proposers and an aggregator is inferred from its pool.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.baselines.roles import COMBINING, best_worker_for_role
from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Decision,
    MalformedPlan,
    Plan,
    PlanningContext,
    Pool,
    Step,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.decision import Draft

SYNTHESIZE = (
    "Compare the solutions critically, for some may be biased or wrong, combine what is right in "
    "them, and solve the question step by step to one accurate final answer."
)


@dataclass(frozen=True, slots=True)
class MixtureOfAgents:
    """The layers as a workflow."""

    layers: int = 3
    """L, the aggregator's included."""
    proposers: int = 6
    """P."""

    def __post_init__(self) -> None:
        if self.layers < 2 or self.proposers < 1:  # noqa: PLR2004 - a proposing and a last one
            raise ValueError("a mixture of agents needs two layers and a proposer at least")

    @property
    def name(self) -> str:
        """The method, its layers and its proposers."""
        return f"moa/{self.layers}x{self.proposers}"

    @property
    def calls(self) -> int:
        """P(L - 1) + 1."""
        return self.proposers * (self.layers - 1) + 1

    async def plan(
        self, brief: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """The same workflow for every question; in a later round, the answer stands."""
        if brief.previous:
            return AcceptedAnswer()
        if self.calls > brief.max_steps:
            reason = f"{self.name} has {self.calls} steps where {brief.max_steps} are allowed"
            return MalformedPlan(draft=Draft(), reason=reason)
        return Plan(self.layered_workflow(brief.pool))

    def layered_workflow(self, pool: Pool) -> Workflow:
        """The layers over that pool."""
        ranked = [worker.id for worker in pool.ranked()]
        team = [ranked[index % len(ranked)] for index in range(self.proposers)]
        steps = [Step(subtask="", worker=worker) for worker in team]
        for _ in range(self.layers - 2):
            above = self._previous_layer(len(steps))
            steps += [Step(subtask=SYNTHESIZE, worker=worker, access=above) for worker in team]
        last = Step(
            subtask=SYNTHESIZE,
            worker=best_worker_for_role(pool, COMBINING),
            access=self._previous_layer(len(steps)),
        )
        return Workflow((*steps, last))

    def _previous_layer(self, index: int) -> tuple[int, ...]:
        """The steps of the layer that ends before `index`."""
        return tuple(range(index - self.proposers, index))
