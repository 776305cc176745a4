"""An upper bound, not a method: the accuracy of always choosing a correct sample if there is one.

`PassAtK` draws k samples of the best worker, and a question counts as solved if any sample is
correct. This is pass@k of Chen et al., "Evaluating Large Language Models Trained on Code" (arXiv
2107.03374), section 2.1, with n = k, where the unbiased estimator is the plain share. The
evaluation grades all replies of the run; the run's own answer is the last reply.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core import Question, Run
from batuta.engine.solver import SolverContext
from batuta.lab.baselines.parallel_answers import sample_best_worker


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
        return await sample_best_worker(self.name, question, context, seed, samples=self.calls)
