"""How sure a figure is: intervals and paired differences, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
_CHUNK = 500
"""Resamples drawn at once, to bound memory."""
_Z95 = 1.959963984540054

FEWEST = 5
"""Groups of questions below which nothing can be said of how sure a mean is."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better one system is than another on the same questions."""

    questions: int
    mean: float
    low: float
    high: float
    """95% interval by the paired bootstrap over questions, or over their groups."""
    p: float
    """Two-sided."""
    test: str
    """`McNemar`, or `paired bootstrap`: twice the share of resamples on the other side of 0."""
    p_corrected: float
    """For the number of systems that are compared, by Holm's method."""


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
    ours: Mapping[str, float],
    theirs: Mapping[str, float],
    groups: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Difference | None:
    """Mean of `ours` minus `theirs` over the questions that both have.

    None if there are none, or fewer than `FEWEST` groups.

    McNemar's test where every question is right or wrong and stands for itself, else the
    bootstrap's.

    Args:
        ours: mean score by question.
        theirs: the same of the other system.
        groups: questions that were drawn together, as by their family; None: each was alone.
        seed: of the resampling.
    """
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    deltas = np.array([ours[question] - theirs[question] for question in common])
    sums, counts = _grouped(deltas, [groups[question] for question in common] if groups else None)
    if groups and len(sums) < FEWEST:
        return None
    means = _resampled(sums, counts, seed)
    low, high = (float(bound) for bound in np.quantile(means, (0.025, 0.975)))
    values = {*ours.values(), *theirs.values()}
    if groups is None and values <= {0.0, 1.0}:
        test, p = "McNemar", mcnemar(int(np.sum(deltas > 0)), int(np.sum(deltas < 0)))
    else:
        beyond = min(int(np.sum(means <= 0)), int(np.sum(means >= 0)))
        test, p = "paired bootstrap", min(1.0, 2 * (beyond + 1) / (RESAMPLES + 1))
    return Difference(len(common), float(deltas.mean()), low, high, p, test, p)


def mcnemar(wins: int, losses: int) -> float:
    """McNemar's exact test: how likely so uneven a split is by tosses of a coin, two-sided."""
    n, few = wins + losses, min(wins, losses)
    logs = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2)
        for i in range(few + 1)
    ]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


def corrected(found: Mapping[str, Difference]) -> dict[str, Difference]:
    """The same, each p corrected for all of them (Holm 1979)."""
    ranked = sorted(found, key=lambda name: found[name].p)
    least, by_name = 0.0, dict[str, float]()
    for place, name in enumerate(ranked):
        least = max(least, min(1.0, (len(ranked) - place) * found[name].p))
        by_name[name] = least
    return {name: replace(found[name], p_corrected=by_name[name]) for name in found}


def _grouped(deltas: Floats, groups: Sequence[str] | None) -> tuple[Floats, Floats]:
    """The sum and the number of the deltas of each group; without groups each is its own."""
    if groups is None:
        return deltas, np.ones(len(deltas))
    _, places = np.unique(np.array(groups), return_inverse=True)
    sums, counts = np.bincount(places, deltas), np.bincount(places)
    return sums.astype(np.float64), counts.astype(np.float64)


def _resampled(sums: Floats, counts: Floats, seed: int) -> Floats:
    """The mean of all runs in each of `RESAMPLES` draws of as many questions, with return."""
    often = _often(len(sums), seed)
    both = np.stack([sums, counts], axis=1)
    chunks = range(0, RESAMPLES, _CHUNK)
    found = np.concatenate([often[c : c + _CHUNK].astype(np.float64) @ both for c in chunks])
    return found[:, 0] / found[:, 1]


@lru_cache(maxsize=2)
def _often(size: int, seed: int) -> NDArray[np.uint8]:
    """How often each of `size` questions is in each of `RESAMPLES` draws: the same for all systems.

    A byte is enough: of more than 255 questions none is drawn as often as that.
    """
    rng = np.random.default_rng(seed)
    often = np.empty((RESAMPLES, size), np.uint8)
    rows = np.arange(_CHUNK)[:, None] * size
    for start in range(0, RESAMPLES, _CHUNK):
        drawn = rng.integers(0, size, (_CHUNK, size)) + rows
        counted = np.bincount(drawn.ravel(), minlength=_CHUNK * size)
        often[start : start + _CHUNK] = counted.reshape(_CHUNK, size)
    return often
