"""A multi-armed bandit over ways to answer: Beta posteriors and Thompson sampling. Pure.

The first arm is the default. Another arm replaces it only if that arm is better with a probability
of at least 95 %, by a normal approximation. Exploration uses Thompson sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random

DRAWS = 400
"""The number of posterior draws from which the chosen arm's probability is estimated."""
_CERTAIN_Z = 1.6448536269514722
"""The one-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class ArmStats:
    """The scores of an arm, with old ones discounted."""

    score: float = 0.0
    """The (discounted) sum of scores, each in [0, 1]."""
    judged: float = 0.0
    """The (discounted) number of scores."""

    @property
    def wins(self) -> float:
        """The first parameter of the arm's Beta posterior."""
        return 1 + self.score

    @property
    def losses(self) -> float:
        """The second parameter of the arm's Beta posterior."""
        return 1 + max(0.0, self.judged - self.score)

    @property
    def mean(self) -> float:
        """The mean of the posterior."""
        return self.wins / (self.wins + self.losses)

    @property
    def variance(self) -> float:
        """The variance of the posterior."""
        total = self.wins + self.losses
        return self.wins * self.losses / (total * total * (total + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmChoice:
    """The arm to run, and why."""

    index: int
    """The index of the arm."""
    explored: bool
    """Whether the arm differs from that of `find_best_arm`."""
    propensity: float
    """The probability of this choice, estimated from `DRAWS` draws."""


def find_best_arm(arms: Sequence[ArmStats]) -> int:
    """Return the index of the arm to run without exploration.

    It is the first arm unless another one is better with a probability of at least 95 %; of several
    such arms, it is the one with the highest mean.
    """
    first = arms[0]
    better = [
        index
        for index, arm in enumerate(arms)
        if arm.mean - first.mean >= _CERTAIN_Z * sqrt(arm.variance + first.variance)
    ]
    return max(better, key=lambda index: arms[index].mean, default=0)


def choose_arm(arms: Sequence[ArmStats], share: float, rng: Random) -> ArmChoice:
    """Choose the best arm or, with probability `share`, an arm by Thompson sampling.

    Args:
        arms: at least one arm; the first is the default.
        share: the probability of exploring, in [0, 1].
        rng: the random number generator.
    """
    best = find_best_arm(arms)
    draws = [_draw_winner(arms, rng) for _ in range(DRAWS)]
    explores = rng.random() < share
    index = draws[0] if explores else best
    drawn = share * draws.count(index) / DRAWS
    propensity = drawn + (1 - share if index == best else 0.0)
    return ArmChoice(index=index, explored=index != best, propensity=propensity)


def _draw_winner(arms: Sequence[ArmStats], rng: Random) -> int:
    values = [rng.betavariate(arm.wins, arm.losses) for arm in arms]
    return values.index(max(values))
