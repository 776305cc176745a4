"""Compares nominees with their opponents on questions that were not used for learning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np

from batuta.core import Task
from batuta.lab.evals.stats import (
    Difference,
    RunKey,
    correct_p_values,
    paired_difference,
    paired_mean,
    score_interval,
)
from batuta.lab.tune.candidate_runner import CandidateRunner, Entry

MARGIN = 0.02
"""The non-inferiority margin: the accuracy by which a cheaper system may be worse."""
ALPHA = 0.05
"""The family-wise error rate of all comparisons of a judgement."""
_Z_BOTH, _Z_POWER = 1.959963984540054, 0.8416212335729143
_FEW = 10
"""Minimum number of questions for a comparison."""


class Verdict(StrEnum):
    """The judgement's verdict on a nominee."""

    BETTER = "better"
    CHEAPER = "not worse, and cheaper"
    UNDECIDED = "not shown to be better"
    WORSE = "worse"
    SAME = "the same system"
    UNJUDGED = "not judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFigures:
    """The figures of a system on one part of the questions."""

    name: str
    questions: int
    """The number of questions with a score."""
    share: float | None
    """The accuracy, and the bounds of its 95% interval; None if nothing was scored."""
    low: float | None
    high: float | None
    usd: float
    """Mean dollars per question; NaN if they are unknown, as in some records."""
    calls: float
    """Mean calls per question."""
    failed: int
    """The number of runs without a score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison of a nominee with its opponent on the same questions."""

    nominee: str
    opponent: str
    verdict: Verdict
    questions: int
    """The number of questions on which both have a score."""
    difference: float | None
    """The nominee's accuracy less the opponent's; None if there are no such questions."""
    low: float | None
    high: float | None
    """`low` and `high` bound the difference's 95% interval; None without a test."""
    p: float | None
    """The p-value of the test; None without a test."""
    p_corrected: float | None
    """The p-value corrected by Holm's method for all comparisons; None without a test."""
    detectable: float | None
    """The smallest gain that this many questions detect with a power of 80 %; None if they are too
    few."""
    usd_saved: float
    """Dollars per question by which the nominee is cheaper; negative if the nominee costs more, and
    NaN if they are unknown."""


Assignment = Mapping[str, Entry]
"""The workflow or method that a system runs on each question, by the question's id."""


def describe_system(
    name: str, runner: CandidateRunner, tasks: Sequence[Task], assignment: Assignment
) -> SystemFigures:
    """Return the system's figures on the questions that it has run."""
    found = [
        one for task in tasks if (one := runner.find_result(task, assignment[task.id])) is not None
    ]
    scores = [one.score for one in found if one.score is not None]
    low, high = score_interval([[score] for score in scores]) if scores else (None, None)
    count = max(len(found), 1)
    return SystemFigures(
        name=name,
        questions=len(scores),
        share=sum(scores) / len(scores) if scores else None,
        low=low,
        high=high,
        usd=float(sum(one.usd for one in found)) / count,
        calls=sum(one.calls for one in found) / count,
        failed=len(found) - len(scores),
    )


def scores_of(
    runner: CandidateRunner, tasks: Sequence[Task], assignment: Assignment
) -> dict[str, float]:
    """Return the system's scores by question id; questions without a score are left out."""
    found = {task.id: runner.find_result(task, assignment[task.id]) for task in tasks}
    return {key: one.score for key, one in found.items() if one and one.score is not None}


def compare_nominees(
    pairs: Sequence[tuple[SystemFigures, SystemFigures]],
    scores: Mapping[str, Mapping[str, float]],
    alpha: float = ALPHA,
) -> tuple[Comparison, ...]:
    """Compare each nominee with its opponent; the p-values are corrected for the number of pairs.

    `scores` has each system's scores by question id, by the system's name. `alpha` is the error
    rate over all pairs, which is lower at an interim look.
    """
    gaps = {
        (nominee.name, opponent.name): gap
        for nominee, opponent in pairs
        if (gap := _find_gap(scores[nominee.name], scores[opponent.name])) is not None
    }
    corrected = correct_p_values({" ".join(pair): gap for pair, gap in gaps.items()})
    margin_alpha = alpha / 2 / max(len(pairs), 1)  # one-sided, as is usual for non-inferiority
    return tuple(
        _compare_systems(
            nominee,
            opponent,
            corrected.get(f"{nominee.name} {opponent.name}"),
            scores,
            alphas=(alpha, margin_alpha),
        )
        for nominee, opponent in pairs
    )


def _find_gap(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Difference | None:
    """Test the paired difference; return None if the scores are equal or the questions too few."""
    common = ours.keys() & theirs.keys()
    if len(common) < _FEW or all(ours[key] == theirs[key] for key in common):
        return None
    return paired_difference(_as_runs(ours), _as_runs(theirs))


def _as_runs(scores: Mapping[str, float]) -> dict[RunKey, float]:
    return {(question, 0): score for question, score in scores.items()}


def _compare_systems(
    nominee: SystemFigures,
    opponent: SystemFigures,
    gap: Difference | None,
    scores: Mapping[str, Mapping[str, float]],
    *,
    alphas: tuple[float, float],
) -> Comparison:
    ours, theirs = scores[nominee.name], scores[opponent.name]
    common = sorted(ours.keys() & theirs.keys())
    deltas = np.array([ours[key] - theirs[key] for key in common])
    saved = opponent.usd - nominee.usd
    return Comparison(
        nominee=nominee.name,
        opponent=opponent.name,
        verdict=verdict_of(gap, deltas, saved, alphas=alphas),
        questions=len(common),
        difference=float(deltas.mean()) if common else None,
        low=gap.low if gap else None,
        high=gap.high if gap else None,
        p=gap.p if gap else None,
        p_corrected=gap.p_corrected if gap else None,
        detectable=smallest_gain(deltas) if len(common) >= _FEW else None,
        usd_saved=saved,
    )


def verdict_of(
    gap: Difference | None, deltas: np.ndarray, saved: float, *, alphas: tuple[float, float]
) -> Verdict:
    """Return the verdict on the first of two systems from their paired differences.

    Args:
        gap: the test of the difference; None if the scores are equal or the questions too few.
        deltas: the difference on each question.
        saved: dollars per question by which the first is cheaper.
        alphas: the error rate of "better" and "worse", for the corrected p-value, and the one-sided
            error rate of "not worse by more than the margin".
    """
    if len(deltas) < _FEW:
        return Verdict.UNJUDGED
    if gap is not None and gap.p_corrected < alphas[0]:
        return Verdict.BETTER if gap.mean > 0 else Verdict.WORSE
    if saved > 0 and least_difference(deltas, alphas[1]) > -MARGIN:
        return Verdict.CHEAPER
    return Verdict.UNDECIDED if gap is not None or saved > 0 else Verdict.SAME


def least_difference(deltas: np.ndarray, alpha: float) -> float:
    """Return the one-sided lower bound of the mean difference, with an error rate of `alpha`.

    With alpha = 0.025 and equal scores, the bound is above -2 points with 96 or more questions.
    """
    mean, error = paired_mean(deltas.tolist())
    return mean - NormalDist().inv_cdf(1 - alpha) * error


def smallest_gain(deltas: np.ndarray) -> float:
    """Return the gain that these questions would detect with a power of 80 %, tested at 5 %."""
    spread = max(float((deltas**2).mean()), 1 / len(deltas))
    return (_Z_BOTH + _Z_POWER) * math.sqrt(spread / len(deltas))
