"""Random routing: each question goes to a worker at random.

The line that every router must be above; RouteLLM (arXiv 2406.18665, section 5) and LLMRouterBench
(arXiv 2601.07206) measure against it. The lot depends on the run's seed and on the question, so a
run can be repeated. Nothing is learned: of a history only the workers are taken.
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
    """One worker of the pool, all with the same chance."""

    workers: tuple[WorkerId, ...] = ()
    """Among whom; empty, or none of them in the pool: all of the pool."""
    name: str = "random-routing"

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """One step; in a later round, the answer stands."""
        if context.previous:
            return AcceptedAnswer()
        known = [worker.id for worker in context.pool if worker.id in self.workers]
        rng = Random(f"{context.seed} {context.sample} {context.question.text}")
        who = rng.choice(known or [worker.id for worker in context.pool])
        return Plan(Workflow((Step(subtask="", worker=who),)))


def fit_random_routing(
    history: History,
    *,
    seed: int = 0,  # noqa: ARG001 - see the others
    features: Features | None = None,  # noqa: ARG001 - same
) -> RandomRouting:
    """Among the history's workers."""
    return RandomRouting(history.workers)
