"""One worker answers alone, with the question as it stands.

`Single(worker_id)` is that worker; `SingleWorker()` the best of the pool by `Worker.strength`,
which evaluation replaces with the accuracy measured on calibration questions. Nobody stands in for
a worker that fails, so what is measured is that worker and no other.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.conductors import best_single_worker
from batuta.core import Question, Run, WorkerId
from batuta.engine.solver import SolverContext, run_conductor


@dataclass(frozen=True, slots=True)
class SingleWorker:
    """A worker alone."""

    worker: WorkerId | None = None
    """None: the pool's best."""
    calls: int = 1

    @property
    def name(self) -> str:
        """Who it is."""
        return f"single/{self.worker or 'best'}"

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """One call.

        Raises:
            ValueError: the pool does not have the worker.
        """
        who = self.worker or context.pool.ranked()[0].id
        return await run_conductor(
            question,
            best_single_worker(),
            context=context.restrict_to(who),
            seed=seed,
            max_steps=self.calls,
        )
