"""Self-consistency@k: k samples of the best worker, of which the majority's answer is taken.

Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models"
(arXiv 2203.11171), section 2: sample k reasoning paths, marginalise them out by a majority vote.

Deviations
- The worker gets the bare question, without chain-of-thought examples.
- The vote is unweighted (the paper finds weights by probability no better, table 1); the first
  answer wins a tie.
- The temperature is 0.7 for every worker; the paper takes 0.5 or 0.7 by model.

The vote costs no call.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.conductors import FixedConductor
from batuta.core import Question, Run
from batuta.engine.solver import SolverContext, round_replies, run_conductor, with_final_reply
from batuta.lab.baselines.answers import majority_reply
from batuta.lab.baselines.parallel_answers import build_parallel_workflow


@dataclass(frozen=True, slots=True)
class SelfConsistency:
    """Asks the pool's best worker k times, and votes."""

    calls: int = 5
    """The number k of samples."""

    def __post_init__(self) -> None:
        if self.calls < 1:
            raise ValueError(f"self-consistency needs at least one sample, not {self.calls}")

    @property
    def name(self) -> str:
        """The method and its k."""
        return f"self-consistency@{self.calls}"

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Make k calls concurrently, and return the most common answer."""
        who = context.pool.ranked()[0].id
        flow = build_parallel_workflow([who] * self.calls)
        conductor = FixedConductor(self.name, lambda _: flow)
        alone = context.restrict_to(who).with_sampling(who)
        run = await run_conductor(
            question, conductor, context=alone, seed=seed, max_steps=self.calls
        )
        return with_final_reply(run, majority_reply(round_replies(run).values()))
