"""A bandit over ways to answer: Beta posteriors, Thompson sampling, a careful best. Pure.

The first arm is what would be run without learning. Another one takes its place only where it is
better with 95 % certainty; what is explored is drawn by Thompson sampling, so that what is shown to
be worse is soon left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random

DRAWS = 400
"""Draws of the posteriors from which the chance of each arm is estimated."""
_CERTAIN_Z = 1.6448536269514722
"""One-sided, 95 %."""


@dataclass(frozen=True, slots=True)
class ArmStats:
    """What judgements said of an arm, old ones forgotten."""

    score: float = 0.0
    """The sum of scores in [0, 1]."""
    judged: float = 0.0

    @property
    def wins(self) -> float:
        """The first parameter of its Beta posterior."""
        return 1 + self.score

    @property
    def losses(self) -> float:
        """The second one."""
        return 1 + max(0.0, self.judged - self.score)

    @property
    def mean(self) -> float:
        """The posterior's."""
        return self.wins / (self.wins + self.losses)

    @property
    def variance(self) -> float:
        """The posterior's."""
        total = self.wins + self.losses
        return self.wins * self.losses / (total * total * (total + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmChoice:
    """What is run."""

    place: int
    """Of the arm."""
    explored: bool
    """Whether another one is the best so far."""
    propensity: float
    """How likely this arm was, estimated from `DRAWS` draws."""


def find_best_arm(arms: Sequence[ArmStats]) -> int:
    """The place of the arm that is run where nothing is explored."""
    first = arms[0]
    better = [
        place
        for place, arm in enumerate(arms)
        if arm.mean - first.mean >= _CERTAIN_Z * sqrt(arm.variance + first.variance)
    ]
    return max(better, key=lambda place: arms[place].mean, default=0)


def choose_arm(arms: Sequence[ArmStats], share: float, rng: Random) -> ArmChoice:
    """The best arm, or in that share of cases one drawn by Thompson sampling.

    Args:
        arms: at least one; the first is what is run without learning.
        share: of questions that may explore, in [0, 1].
        rng: draws.
    """
    best = find_best_arm(arms)
    draws = [_draw_winner(arms, rng) for _ in range(DRAWS)]
    explores = rng.random() < share
    place = draws[0] if explores else best
    drawn = share * draws.count(place) / DRAWS
    propensity = drawn + (1 - share if place == best else 0.0)
    return ArmChoice(place=place, explored=place != best, propensity=propensity)


def _draw_winner(arms: Sequence[ArmStats], rng: Random) -> int:
    values = [rng.betavariate(arm.wins, arm.losses) for arm in arms]
    return values.index(max(values))
