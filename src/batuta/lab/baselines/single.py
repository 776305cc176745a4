"""One worker alone, which is asked the unchanged question.

`SingleWorker(worker_id)` asks that worker; `SingleWorker()` asks the first of `Pool.ranked`, for
which evaluations set `Worker.strength` to the accuracy on calibration questions. A worker
that fails has no substitute, so no other worker is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.conductors import best_single_worker
from batuta.core import Question, Run, WorkerId
from batuta.engine.solver import SolverContext, run_conductor


@dataclass(frozen=True, slots=True)
class SingleWorker:
    """Asks a single worker."""

    worker: WorkerId | None = None
    """None: the pool's best worker."""
    calls: int = 1
    """Maximum number of steps; one is planned."""

    @property
    def name(self) -> str:
        """The method with the worker's name."""
        return f"single/{self.worker or 'best'}"

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Ask the worker the unchanged question, in one call.

        Raises:
            ValueError: the worker is not in the context's pool.
        """
        who = self.worker or context.pool.ranked()[0].id
        return await run_conductor(
            question,
            best_single_worker(),
            context=context.restrict_to(who),
            seed=seed,
            max_steps=self.calls,
        )
