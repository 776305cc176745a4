"""A served system as a solver, so that `batuta eval` measures what `batuta serve` would run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from batuta.config.served_systems import ServedSystem
from batuta.core import Question, Run
from batuta.lab.baselines import SolverContext


@dataclass(frozen=True, slots=True)
class ServedSolver:
    """A served system, which answers as it would answer a request without options."""

    system: ServedSystem
    calls: None = None

    @property
    def name(self) -> str:
        """The conductor's name, with the maximum number of rounds if it is above one."""
        rounds = self.system.limits.rounds
        several = f", {rounds} rounds" if rounds > 1 else ""
        return f"{self.system.conductor.name}{several}"

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Answer with the context's workers that are also in the system's pool."""
        system, allowed = self.system, context.pool
        if any(worker.id not in system.pool for worker in allowed):
            allowed = allowed.subset(worker.id for worker in allowed if worker.id in system.pool)
        return await replace(system, pool=allowed).answer(
            system.with_effort(question), context.clients, seed=seed, hooks=context.hooks
        )
