"""The stages of a tuning run, their shares of the budget, and figures about a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import StrEnum

import numpy as np

from batuta.lab.tune.candidate_runner import Entry
from batuta.lab.tune.judge import SystemFigures
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.search import Search
from batuta.lab.tune.spending import Allowance

BEST_SINGLE, SELF_CONSISTENCY, ULTRA, MINI = "best single", "self-consistency", "ultra", "mini"
"""The names of the nominees and of their opponents."""


class TuneStage(StrEnum):
    """The stages of a tuning run, in order."""

    CALIBRATE = "calibrate"
    SEARCH = "search"
    SELECT = "select"
    REWRITE = "rewrite"
    JUDGE = "judge"


_PLANNED, _PLANNED_AT_LEAST = 0.98, Decimal("0.6")
"""The share of the budget that is planned, because failed calls cost something too; and the minimum
share of the dollars that is planned, however expensive one call may be."""
_CALIBRATION = 0.15
"""The share of the budget for calibration."""
_SELECTION, _SELECTION_CALLS = (0.07, 0.12), 720
"""The minimum and maximum share of the selection, and the number of its calls within these bounds.
The maximum and the number are doubled if no judgement follows."""
_JUDGEMENT = 0.08, 0.25
"""The minimum and maximum share of the judgement, which may spend less."""
_REWRITING = 0.08
"""The share of rewriting, if it is enabled."""
_SAMPLED = 0.3
"""The maximum share of the calls that ask questions again, for the fit of confidence."""
_CALLS_PER_JUDGED, _MOST_JUDGED = 6, 200
"""The number of calls with which all nominees and opponents answer a question, and the maximum
number of questions to plan for. Half as many questions already show gains of ten points."""


def plannable_usd(allowance: Allowance, bounds: Iterable[Decimal]) -> Decimal | None:
    """Return the dollars to plan; the worst case of one more call should still fit the budget.

    None if the budget has no limit in dollars.

    Args:
        allowance: the budget.
        bounds: the maximum cost of a call of each worker, in dollars.
    """
    if allowance.usd is None:
        return None
    return max(allowance.usd - max(bounds), allowance.usd * _PLANNED_AT_LEAST)


def stage_ends(
    calls: int,
    *,
    judgement: int | None = None,
    rewrites: bool = False,
    last: TuneStage = TuneStage.JUDGE,
    samples: int = 0,
) -> Mapping[TuneStage, float]:
    """Return the share of the budget that may be spent by the end of each stage up to `last`.

    `calls` is the number of calls that the whole budget is expected to allow, `judgement` the
    number of questions of the judgement, and `samples` the number of calls that ask questions again
    after all stages.
    """
    stages = list(TuneStage)
    stages = stages[: stages.index(last) + 1]
    rewriting = _REWRITING if rewrites and TuneStage.REWRITE in stages else 0.0
    selects, judges = TuneStage.SELECT in stages, TuneStage.JUDGE in stages
    factor, (least, most) = 1 if judges else 2, _SELECTION
    selection = (
        _share_of(factor * _SELECTION_CALLS, calls, least, factor * most) if selects else 0.0
    )
    wanted = _CALLS_PER_JUDGED * min(judgement or 0, _MOST_JUDGED)
    judged = _share_of(wanted, calls, *_JUDGEMENT) if judges else 0.0
    ends = {
        TuneStage.CALIBRATE: _PLANNED if last is TuneStage.CALIBRATE else _CALIBRATION,
        TuneStage.SEARCH: _PLANNED - judged - rewriting - selection,
        TuneStage.SELECT: _PLANNED - judged - rewriting,
        TuneStage.REWRITE: _PLANNED - judged,
        TuneStage.JUDGE: _PLANNED,
    }
    kept = _share_of(samples, calls, 0.0, _SAMPLED) if samples else 0.0
    return {stage: ends[stage] * (1 - kept) for stage in stages}


def _share_of(wanted: int, calls: int, least: float, most: float) -> float:
    """Return the wanted number as a share of all calls, within the bounds."""
    return min(max(wanted / max(calls, 1), least), most)


_MOST_SAMPLES = 5
"""Maximum number of samples of self-consistency as an opponent."""


def count_calls(entry: Entry) -> int:
    """Return the maximum number of calls for a question; 1 for a method that does not state it."""
    return len(entry) if isinstance(entry, Candidate) else int(getattr(entry, "calls", 1))


def choose_samples(figures: Mapping[str, SystemFigures]) -> int:
    """Return how many samples of the best single worker, 3 to 5, cost as much as ultra.

    If the worker is free, the number follows from ultra's calls.
    """
    ultra, single = figures[ULTRA], figures[BEST_SINGLE]
    ratio = ultra.usd / single.usd if single.usd else ultra.calls
    return max(3, min(_MOST_SAMPLES, round(ratio)))


def expected_accuracy(search: Search) -> float:
    """Return the mean accuracy that the search expects of the best workflow of each cell."""
    total = 0.0
    for group, weight in search.arena.weights.items():
        total += weight * float(np.mean([share for _, share in search.winners(group)]))
    return total / sum(search.arena.weights.values())


def describe_progress(search: Search) -> str:
    """Return the progress of the search as a line of text."""
    many = len(search.tried_anywhere())
    return f"{many} workflows tried; {100 * expected_accuracy(search):.0f} % expected of the best"
