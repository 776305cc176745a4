"""The expected gain of one system over another, from the search and all paired questions. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from batuta.lab.evals.stats import paired_mean

SURE_ENOUGH = 0.8
"""The least probability of being worth more than the best single worker for a recommendation."""
BELIEVED = 0.5
"""The weight of the search's expectation, which is too high because it chose the best of many."""
_LEAST_SPREAD = 0.05
"""The least standard deviation of the prior that follows from the search's expectation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGain:
    """The gain of one system over another in share right, less the price of its further calls."""

    mean: float
    probability: float
    """The probability that the gain is positive."""
    questions: int
    """The number of paired questions behind it."""


def expect_gain(gains: Sequence[float], lead: float) -> ExpectedGain:
    """Return the posterior of a gain, from paired questions and the search's expectation.

    The prior is normal; its mean is half of the lead that the search expects, and its standard
    deviation as much, at least five points. The questions' mean has its standard error.

    Args:
        gains: the first system's gain on each question that both ran, calls counted. They include
            the selection's questions: few systems were compared there, so the bias is small.
        lead: the gain in share right that the search expects.
    """
    believed = BELIEVED * lead
    return update_gain(believed, max(abs(believed), _LEAST_SPREAD), gains)


def update_gain(believed: float, deviation: float, gains: Sequence[float]) -> ExpectedGain:
    """Return the posterior of a gain with a normal prior of that mean and deviation."""
    precision = 1 / deviation**2
    total = precision * believed
    if gains:
        seen, error = paired_mean(gains)
        total, precision = total + seen / error**2, precision + 1 / error**2
    mean = total / precision
    positive = NormalDist().cdf(mean * math.sqrt(precision))
    return ExpectedGain(mean=mean, probability=positive, questions=len(gains))
