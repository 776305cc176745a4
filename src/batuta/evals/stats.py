"""How sure a figure is: intervals and paired differences, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
_CHUNK = 500
"""Resamples drawn at once, to bound memory."""
_Z95 = 1.959963984540054

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better one system is than another on the same questions."""

    questions: int
    mean: float
    low: float
    high: float
    """95% interval by the paired bootstrap over questions."""
    p: float
    """Two-sided: twice the share of resamples on the other side of zero, at most 1."""


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def interval(scores_by_question: Sequence[Sequence[float]], seed: int = 0) -> tuple[float, float]:
    """95% interval of the mean score of all runs.

    Wilson's where every question was run once and is right or wrong, or all scores are alike;
    else the bootstrap over questions, for runs of one question are not independent.

    Raises:
        ValueError: there is no score.
    """
    flat = [score for scores in scores_by_question for score in scores]
    if not flat:
        raise ValueError("an interval needs at least one score")
    once = len(flat) == len(scores_by_question)
    if set(flat) <= {0.0, 1.0} and (once or len(set(flat)) == 1):
        right = sum(scores[0] for scores in scores_by_question)
        return wilson(round(right), len(scores_by_question))
    return bootstrap(scores_by_question, seed)


def wilson(right: int, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share (Wilson 1927, without continuity correction).

    Raises:
        ValueError: n is not positive, or `right` is not in [0, n].
    """
    if not 0 <= right <= n or n < 1:
        raise ValueError(f"{right} of {n} is no share")
    share, z2 = right / n, _Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low = 0.0 if right == 0 else max(0.0, centre - half)
    high = 1.0 if right == n else min(1.0, centre + half)
    return low, high


def bootstrap(scores_by_question: Sequence[Sequence[float]], seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap 95% interval of the mean of all runs, questions resampled."""
    sums = np.array([math.fsum(scores) for scores in scores_by_question])
    counts = np.array([float(len(scores)) for scores in scores_by_question])
    low, high = np.quantile(_resampled(sums, counts, seed), (0.025, 0.975))
    return float(low), float(high)


def difference(
    ours: Mapping[str, float], theirs: Mapping[str, float], seed: int = 0
) -> Difference | None:
    """Mean of `ours` minus `theirs` over the questions that both have; None if there are none.

    Args:
        ours: mean score by question.
        theirs: the same of the other system.
        seed: of the resampling.
    """
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    deltas = np.array([ours[question] - theirs[question] for question in common])
    means = _resampled(deltas, np.ones(len(common)), seed)
    low, high = (float(bound) for bound in np.quantile(means, (0.025, 0.975)))
    beyond = min(int(np.sum(means <= 0)), int(np.sum(means >= 0)))
    p = min(1.0, 2 * (beyond + 1) / (RESAMPLES + 1))
    return Difference(len(common), float(deltas.mean()), low, high, p)


def _resampled(sums: Floats, counts: Floats, seed: int) -> Floats:
    """The mean of all runs in each of `RESAMPLES` draws of as many questions, with return."""
    rng = np.random.default_rng(seed)
    size = len(sums)
    means: list[Floats] = []
    for _ in range(RESAMPLES // _CHUNK):
        drawn = rng.integers(0, size, (_CHUNK, size))
        means.append(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    return np.concatenate(means)
