"""Self-consistency@k: k samples of the best worker, the majority of their answers.

Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models"
(arXiv 2203.11171), section 2: sample k reasoning paths, marginalise them out by a majority vote.

Deviations
- The worker gets the bare question, without chain-of-thought examples; it reasons as it does alone.
- The vote is unweighted (the paper finds weights by probability no better, table 1); a tie goes to
  the answer that came first.
- The temperature is 0.7 for every worker; the paper takes 0.5 or 0.7 by model.

The vote is taken from the replies and costs no call.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.baselines.answers import majority
from batuta.baselines.samples import sampled
from batuta.baselines.solver import Players, play, said, settled_on
from batuta.core import Question, Run
from batuta.solvers import Fixed


@dataclass(frozen=True, slots=True)
class SelfConsistency:
    """k samples of the pool's best worker, and a vote."""

    calls: int = 5
    """k."""

    def __post_init__(self) -> None:
        if self.calls < 1:
            raise ValueError(f"self-consistency needs at least one sample, not {self.calls}")

    @property
    def name(self) -> str:
        """The method and its k."""
        return f"self-consistency@{self.calls}"

    async def answer(self, question: Question, players: Players, seed: int) -> Run:
        """The answer of most of k calls made at the same time."""
        who = players.pool.ranked()[0].id
        flow = sampled([who] * self.calls)
        conductor = Fixed(self.name, lambda _: flow)
        alone = players.only(who).sampling(who)
        run = await play(question, conductor, alone, seed, self.calls)
        return settled_on(run, majority(said(run).values()))
