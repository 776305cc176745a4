"""Random routing: each question goes to a random worker.

Every router should beat random routing; RouteLLM (arXiv 2406.18665, section 5) and LLMRouterBench
(arXiv 2601.07206) compare with it. The choice depends on the run's seed, the sample and the
question, so that a run can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from batuta.conductors.features import Features
from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Decision,
    Plan,
    PlanningContext,
    Step,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.lab.learners.history import History


@dataclass(frozen=True, slots=True)
class RandomRouting:
    """Chooses a worker of the pool, all with equal probability."""

    workers: tuple[WorkerId, ...] = ()
    """The workers to choose from; if the pool has none of them, its own workers are used."""
    name: str = "random-routing"

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan one step; accept the answer in a later round."""
        if context.previous:
            return AcceptedAnswer()
        known = [worker.id for worker in context.pool if worker.id in self.workers]
        rng = Random(f"{context.seed} {context.sample} {context.question.text}")
        who = rng.choice(known or [worker.id for worker in context.pool])
        return Plan(Workflow((Step(subtask="", worker=who),)))


def fit_random_routing(
    history: History,
    *,
    seed: int = 0,  # noqa: ARG001 - every fit has one
    features: Features | None = None,  # noqa: ARG001 - every fit has them
) -> RandomRouting:
    """Return a router that chooses at random among the history's workers."""
    return RandomRouting(history.workers)
