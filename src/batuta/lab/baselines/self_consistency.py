"""Self-consistency@k: the most common answer of k samples of the best worker.

The method is that of Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language
Models" (arXiv 2203.11171), section 2: k reasoning paths are sampled, and a majority vote over their
answers marginalises them out.

Deviations
- The worker gets the bare question, without chain-of-thought examples.
- The vote is unweighted: in table 1 of the paper, weights by probability are not better. The first
  answer wins a tie.
- The temperature is 0.7 for every worker; in the paper it is 0.5 or 0.7, depending on the model.

The vote costs no call.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core import Question, Run
from batuta.engine.solver import SolverContext, round_replies, with_final_reply
from batuta.lab.baselines.answers import majority_reply
from batuta.lab.baselines.parallel_answers import sample_best_worker


@dataclass(frozen=True, slots=True)
class SelfConsistency:
    """Asks the pool's best worker k times, and takes the most common answer."""

    calls: int = 5
    """The number k of samples, at least 1."""

    def __post_init__(self) -> None:
        if self.calls < 1:
            raise ValueError(f"self-consistency needs at least one sample, not {self.calls}")

    @property
    def name(self) -> str:
        """The method and its k."""
        return f"self-consistency@{self.calls}"

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Make k concurrent calls; the answer is the first reply with the most common answer."""
        run = await sample_best_worker(self.name, question, context, seed, samples=self.calls)
        return with_final_reply(run, majority_reply(round_replies(run).values()))
