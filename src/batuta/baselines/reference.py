"""Reference lines, no methods: what there is to be won by choosing well.

`Everyone`: every worker answers once; right if any answer is (the oracle over single workers).
`Samples`: k samples of the best worker; right if any is (pass@k; Chen et al., "Evaluating Large
Language Models Trained on Code", arXiv 2107.03374, section 2.1, with n = k, where the unbiased
estimator is the plain one). Who plays them judges all replies; the run's own answer is the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batuta.baselines.samples import sampled
from batuta.baselines.solver import Players, play
from batuta.core import Question, Run, WorkerId
from batuta.solvers import Fixed


@dataclass(frozen=True, slots=True)
class Everyone:
    """Every worker of the pool, once."""

    name: str = "oracle"
    calls: None = None

    async def answer(self, question: Question, players: Players, seed: int) -> Run:
        """As many calls as there are workers, at the same time."""
        return await _at_once(self.name, [w.id for w in players.pool], question, players, seed)


@dataclass(frozen=True, slots=True)
class Samples:
    """k samples of the pool's best worker."""

    calls: int = 5
    """k."""

    def __post_init__(self) -> None:
        if self.calls < 1:
            raise ValueError(f"pass@k needs at least one sample, not {self.calls}")

    @property
    def name(self) -> str:
        """The line and its k."""
        return f"pass@{self.calls}"

    async def answer(self, question: Question, players: Players, seed: int) -> Run:
        """Its calls are made at the same time."""
        who = players.pool.ranked()[0].id
        alone = players.only(who).sampling(who)
        return await _at_once(self.name, [who] * self.calls, question, alone, seed)


async def _at_once(
    name: str, who: Sequence[WorkerId], question: Question, players: Players, seed: int
) -> Run:
    conductor = Fixed(name, lambda _: sampled(who))
    return await play(question, conductor, players, seed, len(who))
