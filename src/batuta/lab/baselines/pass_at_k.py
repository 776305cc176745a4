"""An upper bound, not a method: the gain possible by choosing well among samples.

`PassAtK`: k samples of the best worker; right if any is (pass@k; Chen et al., "Evaluating Large
Language Models Trained on Code", arXiv 2107.03374, section 2.1, with n = k, where the unbiased
estimator is the plain one). Its runner grades all replies; the run's own answer is the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.conductors import FixedConductor
from batuta.core import Question, Run
from batuta.engine.solver import SolverContext, run_conductor
from batuta.lab.baselines.parallel_answers import build_parallel_workflow


@dataclass(frozen=True, slots=True)
class PassAtK:
    """Asks the pool's best worker k times."""

    calls: int = 5
    """The number k of samples."""

    def __post_init__(self) -> None:
        if self.calls < 1:
            raise ValueError(f"pass@k needs at least one sample, not {self.calls}")

    @property
    def name(self) -> str:
        """The bound and its k."""
        return f"pass@{self.calls}"

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Make the calls concurrently."""
        who = context.pool.ranked()[0].id
        alone = context.restrict_to(who).with_sampling(who)
        conductor = FixedConductor(self.name, lambda _: build_parallel_workflow([who] * self.calls))
        return await run_conductor(
            question, conductor, context=alone, seed=seed, max_steps=self.calls
        )
