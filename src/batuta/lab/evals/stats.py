"""How sure a figure is: intervals and paired differences, the same for the same seed."""

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
"""Resamples drawn at once, to bound memory."""

MIN_GROUPS = 5
"""Groups of questions below which nothing can be said of how sure a mean is."""

Floats = NDArray[np.float64]
RunKey = tuple[str, int]
"""A question and a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
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


def mean_or_none(values: Sequence[float]) -> float | None:
    """The arithmetic mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def score_interval(
    scores_by_question: Sequence[Sequence[float]], seed: int = 0
) -> tuple[float, float]:
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
        return wilson_interval(round(right), len(scores_by_question))
    return bootstrap_interval(scores_by_question, seed)


def bootstrap_interval(
    scores_by_question: Sequence[Sequence[float]], seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap 95% interval of the mean of all runs, questions resampled."""
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
    """Mean of `ours` minus `theirs` over the runs that both have, as a table weighs them.

    None if there are none, or fewer than `FEWEST` families.

    The runs of a question are resampled together. McNemar's test where every question was run once,
    is right or wrong and stands for itself, else the bootstrap's.

    Args:
        ours: score by question and seed.
        theirs: the same of the other system.
        families: of questions that were drawn together; None: each was drawn alone.
        seed: of the resampling.
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
        test, p = "paired bootstrap", min(1.0, 2 * (beyond + 1) / (RESAMPLES + 1))
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

    Half a question that is won, half a one that is lost and one on which both do the same are added
    (Agresti and Min 2005, doi:10.1002/sim.1781): where no question, or only one, tells two systems
    apart, they would otherwise be taken for surely alike, or surely different.
    """
    count = len(deltas) + 2
    mean = math.fsum(deltas) / count
    variance = (math.fsum(delta**2 for delta in deltas) + 1) / count - mean**2
    return mean, math.sqrt(variance / count)


def mcnemar_p_value(wins: int, losses: int) -> float:
    """McNemar's exact test: how likely so uneven a split is by tosses of a coin, two-sided."""
    n, few = wins + losses, min(wins, losses)
    logs = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2)
        for i in range(few + 1)
    ]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


def correct_p_values(found: Mapping[str, Difference]) -> dict[str, Difference]:
    """The same, each p corrected for all of them (Holm 1979)."""
    ranked = sorted(found, key=lambda name: found[name].p)
    least, by_name = 0.0, dict[str, float]()
    for place, name in enumerate(ranked):
        least = max(least, min(1.0, (len(ranked) - place) * found[name].p))
        by_name[name] = least
    return {name: replace(found[name], p_corrected=by_name[name]) for name in found}


def _sum_groups(deltas: Floats, groups: Sequence[str]) -> tuple[Floats, Floats]:
    """The sum and the number of the deltas of each group."""
    _, places = np.unique(np.array(groups), return_inverse=True)
    sums, counts = np.bincount(places, deltas), np.bincount(places)
    return sums.astype(np.float64), counts.astype(np.float64)


def _resample_means(sums: Floats, counts: Floats, seed: int) -> Floats:
    """The mean of all runs in each of `RESAMPLES` draws of as many questions, with return."""
    often = _draw_counts(len(sums), seed)
    both = np.stack([sums, counts], axis=1)
    chunks = range(0, RESAMPLES, _CHUNK)
    found = np.concatenate([often[c : c + _CHUNK].astype(np.float64) @ both for c in chunks])
    return found[:, 0] / found[:, 1]


@lru_cache(maxsize=2)
def _draw_counts(size: int, seed: int) -> NDArray[np.uint8]:
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
