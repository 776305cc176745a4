"""Judgement: the nominees against their opponents, on questions that nothing was learned from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from batuta.core import Task
from batuta.evals.stats import (
    Difference,
    RunKey,
    correct_p_values,
    paired_difference,
    score_interval,
)
from batuta.tune.candidate_runner import CandidateRunner, Entry

MARGIN = 0.02
"""Share right by which a cheaper system may be worse and still count as not worse."""
_ALPHA = 0.05
_Z_BOTH, _Z_ONE, _Z_POWER = 1.959963984540054, 1.6448536269514722, 0.8416212335729143
_FEW = 10
"""Questions below which nothing is compared."""


class Verdict(StrEnum):
    """What the judgement says of a nominee."""

    BETTER = "better"
    CHEAPER = "not worse, and cheaper"
    UNDECIDED = "not shown to be better"
    WORSE = "worse"
    SAME = "the same system"
    UNJUDGED = "not judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFigures:
    """How a system did on the questions of a part."""

    name: str
    questions: int
    share: float | None
    low: float | None
    high: float | None
    usd: float
    """Dollars a question."""
    calls: float
    """A question."""
    seconds: float
    failed: int
    """Runs without a score: outages and undecided grades."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A nominee and its opponent, on the same questions."""

    nominee: str
    opponent: str
    verdict: Verdict
    questions: int
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    p_corrected: float | None
    """For the comparisons of the judgement, by Holm's method."""
    detectable: float | None
    """The smallest gain that so many questions show in 80 of 100 judgements."""
    usd_saved: float
    """Dollars a question by which the nominee is cheaper; negative: dearer."""


Assignment = Mapping[str, Entry]
"""A system, as what it runs on each question."""


def describe_system(
    name: str, runner: CandidateRunner, tasks: Sequence[Task], assignment: Assignment
) -> SystemFigures:
    """What is known of the system on those questions that it has run."""
    found = [
        one for task in tasks if (one := runner.find_result(task, assignment[task.id])) is not None
    ]
    scores = [one.score for one in found if one.score is not None]
    low, high = score_interval([[score] for score in scores]) if scores else (None, None)
    many = max(len(found), 1)
    return SystemFigures(
        name=name,
        questions=len(scores),
        share=sum(scores) / len(scores) if scores else None,
        low=low,
        high=high,
        usd=float(sum(one.usd for one in found)) / many,
        calls=sum(one.calls for one in found) / many,
        seconds=sum(one.seconds for one in found) / many,
        failed=len(found) - len(scores),
    )


def scores_of(
    runner: CandidateRunner, tasks: Sequence[Task], assignment: Assignment
) -> dict[str, float]:
    """The system's score on each question where it has one."""
    found = {task.id: runner.find_result(task, assignment[task.id]) for task in tasks}
    return {key: one.score for key, one in found.items() if one and one.score is not None}


def compare_nominees(
    pairs: Sequence[tuple[SystemFigures, SystemFigures]],
    scores: Mapping[str, Mapping[str, float]],
) -> tuple[Comparison, ...]:
    """Each nominee against its opponent; p corrected for the number of pairs.

    Args:
        pairs: nominee and opponent.
        scores: of each system by question.
    """
    found: dict[str, Difference] = {}
    for nominee, opponent in pairs:
        if scores[nominee.name] != scores[opponent.name]:
            gap = paired_difference(_as_runs(scores[nominee.name]), _as_runs(scores[opponent.name]))
            if gap is not None and gap.questions >= _FEW:
                found[nominee.name] = gap
    found = correct_p_values(found)
    return tuple(_compare_systems(*pair, found.get(pair[0].name), scores) for pair in pairs)


def _as_runs(scores: Mapping[str, float]) -> dict[RunKey, float]:
    """Each question was asked once."""
    return {(question, 0): score for question, score in scores.items()}


def _compare_systems(
    nominee: SystemFigures,
    opponent: SystemFigures,
    gap: Difference | None,
    scores: Mapping[str, Mapping[str, float]],
) -> Comparison:
    ours, theirs = scores[nominee.name], scores[opponent.name]
    common = sorted(ours.keys() & theirs.keys())
    deltas = np.array([ours[key] - theirs[key] for key in common])
    saved = opponent.usd - nominee.usd
    if gap is None:
        same = len(common) >= _FEW
        verdict = Verdict.SAME if same and saved <= 0 else Verdict.UNJUDGED
        if same and saved > 0:
            verdict = Verdict.CHEAPER
    else:
        verdict = _verdict_of(gap, deltas, saved)
    return Comparison(
        nominee=nominee.name,
        opponent=opponent.name,
        verdict=verdict,
        questions=len(common),
        difference=float(deltas.mean()) if common else None,
        low=gap.low if gap else None,
        high=gap.high if gap else None,
        p=gap.p if gap else None,
        p_corrected=gap.p_corrected if gap else None,
        detectable=smallest_gain(deltas) if len(common) >= _FEW else None,
        usd_saved=saved,
    )


def _verdict_of(gap: Difference, deltas: np.ndarray, saved: float) -> Verdict:
    if gap.p_corrected < _ALPHA:
        return Verdict.BETTER if gap.mean > 0 else Verdict.WORSE
    error = float(deltas.std()) / math.sqrt(len(deltas))
    least = float(deltas.mean()) - _Z_ONE * error  # one-sided 95 %
    return Verdict.CHEAPER if saved > 0 and least > -MARGIN else Verdict.UNDECIDED


def smallest_gain(deltas: np.ndarray) -> float:
    """The gain that as many questions, as often in dispute, show with a power of 80 %."""
    spread = max(float((deltas**2).mean()), 1 / len(deltas))
    return (_Z_BOTH + _Z_POWER) * math.sqrt(spread / len(deltas))
