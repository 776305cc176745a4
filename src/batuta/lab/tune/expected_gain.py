"""The expected gain of one system over another, from all that is known of both. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from batuta.lab.evals.stats import paired_mean

SURE_ENOUGH = 0.8
"""The least probability of being worth more than the best single worker with which a system is
recommended."""
BELIEVED = 0.5
"""The share of the search's expectation that is believed, as it chose the best of many."""
_LEAST_SPREAD = 0.05
"""The least standard deviation of the believed part of the search's expectation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGain:
    """The gain of one system over another, in share right with its calls counted."""

    mean: float
    probability: float
    """The probability that the gain is positive."""
    questions: int
    """The number of paired questions that this is based on."""


def expect_gain(gains: Sequence[float], lead: float) -> ExpectedGain:
    """Return the posterior of a gain, from paired questions and what the search expected.

    Half of the lead that the search expects is the prior's mean, and its standard deviation, or
    five points if that is more. The questions weigh against it by the standard error of their mean.

    Args:
        gains: of the first system on each question that both ran, its calls counted. Questions of
            the selection are among them: few systems were compared there, so choosing the best
            of them biases little.
        lead: share right by which the search expects the first to be worth more.
    """
    believed = BELIEVED * lead
    return update_gain(believed, max(abs(believed), _LEAST_SPREAD), gains)


def update_gain(believed: float, deviation: float, gains: Sequence[float]) -> ExpectedGain:
    """Return the posterior of a gain that was believed to be so much, give or take a deviation."""
    precision = 1 / deviation**2
    total = precision * believed
    if gains:
        seen, error = paired_mean(gains)
        total, precision = total + seen / error**2, precision + 1 / error**2
    mean = total / precision
    chance = NormalDist().cdf(mean * math.sqrt(precision))
    return ExpectedGain(mean=mean, probability=chance, questions=len(gains))
