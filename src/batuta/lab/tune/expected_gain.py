"""The expected gain of one system over another, from the search and all paired questions. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from batuta.lab.evals.stats import paired_mean

SURE_ENOUGH = 0.8
"""Minimum probability of a gain over the best single worker for a recommendation."""
BELIEVED = 0.5
"""Factor on the search's expectation, which is too high as the greatest of many estimates."""
_LEAST_SPREAD = 0.05
"""Minimum standard deviation of a prior that is based on the search's expectation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGain:
    """The gain in accuracy of one system over another, net of the price of calls and dollars."""

    mean: float
    probability: float
    """The probability that the gain is positive."""
    questions: int
    """The number of paired questions."""

    def as_json(self) -> dict[str, float]:
        """Return the rounded gain, its probability and the number of questions."""
        return {
            "gain": round(self.mean, 6),
            "probability": round(self.probability, 6),
            "questions": self.questions,
        }


def expect_gain(gains: Sequence[float], lead: float) -> ExpectedGain:
    """Return the posterior of a gain, from paired questions and the search's expectation.

    The prior is normal. Its mean is half of the lead that the search expects, and its standard
    deviation is the absolute value of the mean, but at least five points.

    Args:
        gains: the first system's gain on each question that both ran, net of the price of
            additional calls and dollars. The questions of the selection may be included: few
            systems were compared on them, so that the bias is small.
        lead: the gain that the search expects, net of the price of calls and dollars.
    """
    prior_mean = BELIEVED * lead
    return update_gain(prior_mean, max(abs(prior_mean), _LEAST_SPREAD), gains)


def update_gain(prior_mean: float, deviation: float, gains: Sequence[float]) -> ExpectedGain:
    """Return the posterior of a gain with a normal prior of that mean and standard deviation."""
    precision = 1 / deviation**2
    total = precision * prior_mean
    if gains:
        seen, error = paired_mean(gains)
        total, precision = total + seen / error**2, precision + 1 / error**2
    mean = total / precision
    positive = NormalDist().cdf(mean * math.sqrt(precision))
    return ExpectedGain(mean=mean, probability=positive, questions=len(gains))
