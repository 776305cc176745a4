"""Confidence intervals and paired differences; the bootstrap is repeatable by its seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from batuta.core.intervals import wilson_interval

RESAMPLES = 10_000
_CHUNK = 500
"""The number of resamples that are drawn together, which bounds memory."""

MIN_GROUPS = 5
"""Minimum number of families for an interval, if whole families are resampled."""

Floats = NDArray[np.float64]
RunKey = tuple[str, int]
"""A question's id and a seed, which identify a run of a system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The mean score of one system less that of another, on the same questions."""

    questions: int
    mean: float
    low: float
    high: float
    """The bounds of the 95% interval by the paired bootstrap over questions or their groups."""
    p: float
    """The two-sided p-value."""
    test: str
    """`McNemar`, or `paired bootstrap`: twice the share of resamples on the other side of 0, but at
    least the p-value of a sign test in which all questions or groups agree."""
    p_corrected: float
    """The p-value corrected for the number of compared systems, by Holm's method."""


def mean_or_none(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; None if there are no values."""
    return math.fsum(values) / len(values) if values else None


def score_interval(
    scores_by_question: Sequence[Sequence[float]], seed: int = 0
) -> tuple[float, float]:
    """Return the 95% interval of the mean score of all runs.

    Wilson's interval is used if all scores are 0 or 1 and every question was run once, or if all
    scores are equal to 0 or to 1. Otherwise questions are resampled by bootstrap, because runs of
    one question are not independent. `seed` is the seed of the bootstrap.

    Raises:
        ValueError: there is no score.
    """
    flat = [score for scores in scores_by_question for score in scores]
    if not flat:
        raise ValueError("an interval needs at least one score")
    once = len(flat) == len(scores_by_question)
    if set(flat) <= {0.0, 1.0} and (once or len(set(flat)) == 1):
        right = sum(scores[0] for scores in scores_by_question)
        return wilson_interval(round(right), len(scores_by_question))
    return bootstrap_interval(scores_by_question, seed)


def bootstrap_interval(
    scores_by_question: Sequence[Sequence[float]], seed: int = 0
) -> tuple[float, float]:
    """Return the 95% interval of the mean score by the percentile bootstrap over questions.

    Each inner sequence has the scores of one question, or of another group that is resampled.
    """
    sums = np.array([math.fsum(scores) for scores in scores_by_question])
    counts = np.array([float(len(scores)) for scores in scores_by_question])
    low, high = np.quantile(_resample_means(sums, counts, seed), (0.025, 0.975))
    return float(low), float(high)


def paired_difference(
    ours: Mapping[RunKey, float],
    theirs: Mapping[RunKey, float],
    families: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Difference | None:
    """Return the mean of `ours` minus `theirs` over the runs that both have, with its test.

    The test is McNemar's if every question was run once, all scores are 0 or 1, and questions are
    independent. Otherwise it is the paired bootstrap, which resamples all runs of a question
    together.

    Scores are by question and seed. `families` has the family of each question if whole families
    were held out and are therefore resampled. The result is None if there is no common run, or if
    there are fewer than `MIN_GROUPS` families.
    """
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    deltas = np.array([ours[run] - theirs[run] for run in common])
    questions = [question for question, _ in common]
    groups = questions if families is None else [families[question] for question in questions]
    sums, counts = _sum_groups(deltas, groups)
    if families is not None and len(sums) < MIN_GROUPS:
        return None
    means = _resample_means(sums, counts, seed)
    low, high = (float(bound) for bound in np.quantile(means, (0.025, 0.975)))
    values = {*ours.values(), *theirs.values()}
    once = len(set(questions)) == len(questions)
    if families is None and once and values <= {0.0, 1.0}:
        test, p = "McNemar", mcnemar_p_value(int(np.sum(deltas > 0)), int(np.sum(deltas < 0)))
    else:
        beyond = min(int(np.sum(means <= 0)), int(np.sum(means >= 0)))
        share = 2 * (beyond + 1) / (RESAMPLES + 1)
        # A few groups on the same side of 0 are never on the other side in a resample. The sign
        # test of n such groups has p = 2^(1-n), which is no small p if they are few.
        test, p = "paired bootstrap", min(1.0, max(share, 2.0 ** (1 - len(sums))))
    return Difference(
        questions=len(set(questions)),
        mean=float(deltas.mean()),
        low=low,
        high=high,
        p=p,
        test=test,
        p_corrected=p,
    )


def paired_mean(deltas: Sequence[float]) -> tuple[float, float]:
    """Return the mean of paired differences and its standard error, which is never zero.

    Half a win, half a loss and one tie are added (Agresti and Min 2005, doi:10.1002/sim.1781).
    Without them, two systems that never differ would seem certainly equal.
    """
    count = len(deltas) + 2
    mean = math.fsum(deltas) / count
    variance = (math.fsum(delta**2 for delta in deltas) + 1) / count - mean**2
    return mean, math.sqrt(variance / count)


def mcnemar_p_value(wins: int, losses: int) -> float:
    """Return the two-sided p-value of McNemar's exact test, from the pairs with unequal scores."""
    n, few = wins + losses, min(wins, losses)
    logs = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2)
        for i in range(few + 1)
    ]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


def correct_p_values(found: Mapping[str, Difference]) -> dict[str, Difference]:
    """Return the differences with each p-value corrected for all of them (Holm 1979)."""
    ranked = sorted(found, key=lambda name: found[name].p)
    least, by_name = 0.0, dict[str, float]()
    for index, name in enumerate(ranked):
        least = max(least, min(1.0, (len(ranked) - index) * found[name].p))
        by_name[name] = least
    return {name: replace(found[name], p_corrected=by_name[name]) for name in found}


def _sum_groups(deltas: Floats, groups: Sequence[str]) -> tuple[Floats, Floats]:
    """Return the sum and the number of the differences of each group."""
    _, numbers = np.unique(np.array(groups), return_inverse=True)
    sums, counts = np.bincount(numbers, deltas), np.bincount(numbers)
    return sums.astype(np.float64), counts.astype(np.float64)


def _resample_means(sums: Floats, counts: Floats, seed: int) -> Floats:
    """Return the mean of all runs in each of `RESAMPLES` resamples with replacement."""
    times_drawn = _draw_counts(len(sums), seed)
    both = np.stack([sums, counts], axis=1)
    chunks = range(0, RESAMPLES, _CHUNK)
    found = np.concatenate([times_drawn[c : c + _CHUNK].astype(np.float64) @ both for c in chunks])
    return found[:, 0] / found[:, 1]


@lru_cache(maxsize=2)
def _draw_counts(size: int, seed: int) -> NDArray[np.uint8]:
    """Return how often each resample has each of `size` groups: (`RESAMPLES`, size).

    Equal arguments give equal counts, so that all systems have the same resamples. A byte suffices,
    because in practice no group is drawn more than 255 times.
    """
    rng = np.random.default_rng(seed)
    times_drawn = np.empty((RESAMPLES, size), np.uint8)
    rows = np.arange(_CHUNK)[:, None] * size
    for start in range(0, RESAMPLES, _CHUNK):
        drawn = rng.integers(0, size, (_CHUNK, size)) + rows
        counted = np.bincount(drawn.ravel(), minlength=_CHUNK * size)
        times_drawn[start : start + _CHUNK] = counted.reshape(_CHUNK, size)
    return times_drawn
