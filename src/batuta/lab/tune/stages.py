"""The stages of a tuning, what each may spend, and small figures about them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import StrEnum

import numpy as np

from batuta.lab.tune.judge import SystemFigures
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.search import Search
from batuta.lab.tune.spending import Allowance

BEST_SINGLE, SELF_CONSISTENCY, ULTRA, MINI = "best single", "self-consistency", "ultra", "mini"
"""What the systems that are judged are called."""


class TuneStage(StrEnum):
    """The stages, in order."""

    CALIBRATE = "calibrate"
    SEARCH = "search"
    SELECT = "select"
    REWRITE = "rewrite"
    JUDGE = "judge"


_PLANNED, _PLANNED_AT_LEAST = 0.98, Decimal("0.6")
"""The share of the budget that is planned with; the rest is for what failed calls have cost. Of the
dollars so much at least, however dear a single call may be."""
_CALIBRATION = 0.15
"""The share of the budget that calibration may take."""
_SELECTION, _SELECTION_CALLS = (0.07, 0.12), 720
"""The least and the greatest share of the selection, and the calls that it gets within them; twice
as many where nothing is judged after it."""
_JUDGEMENT = 0.08, 0.25
"""The least and the greatest share of the judgement; it leaves unspent what it does not need."""
_CALLS_A_JUDGEMENT, _JUDGED = 6, 200
"""Calls for judging one question, those of the nominees and of their opponents; and the most
questions that it is given calls for: half of them suffice to show gains of ten points."""


def plannable_usd(allowance: Allowance, bounds: Iterable[Decimal]) -> Decimal | None:
    """The dollars that can be planned with: the worst case of one call fits beside them.

    Args:
        allowance: the budget.
        bounds: what a call of each worker may cost at most, in dollars.
    """
    if allowance.usd is None:
        return None
    return max(allowance.usd - max(bounds), allowance.usd * _PLANNED_AT_LEAST)


_REWRITING = 0.08
"""The share that rewriting may take, where it is wanted."""


def stage_ends(
    calls: int,
    *,
    judgement: int | None = None,
    rewrites: bool = False,
    last: TuneStage = TuneStage.JUDGE,
) -> Mapping[TuneStage, float]:
    """The share of the budget that may be spent at the end of each stage.

    Args:
        calls: that the whole budget is likely to allow.
        judgement: questions kept back for the judgement.
        rewrites: whether workflows are rewritten.
        last: the stage after which the tuning stops; nothing is kept back for those after it.
    """
    stages = list(TuneStage)
    stages = stages[: stages.index(last) + 1]
    rewriting = _REWRITING if rewrites and TuneStage.REWRITE in stages else 0.0
    selects, judges = TuneStage.SELECT in stages, TuneStage.JUDGE in stages
    by, (least, most) = 1 if judges else 2, _SELECTION
    selection = _share_of(by * _SELECTION_CALLS, calls, least, by * most) if selects else 0.0
    wanted = _CALLS_A_JUDGEMENT * min(judgement or 0, _JUDGED)
    judged = _share_of(wanted, calls, *_JUDGEMENT) if judges else 0.0
    ends = {
        TuneStage.CALIBRATE: _PLANNED if last is TuneStage.CALIBRATE else _CALIBRATION,
        TuneStage.SEARCH: _PLANNED - judged - rewriting - selection,
        TuneStage.SELECT: _PLANNED - judged - rewriting,
        TuneStage.REWRITE: _PLANNED - judged,
        TuneStage.JUDGE: _PLANNED,
    }
    return {stage: ends[stage] for stage in stages}


def _share_of(wanted: int, calls: int, least: float, most: float) -> float:
    """Return the share of the calls that is wanted, within bounds."""
    return min(max(wanted / max(calls, 1), least), most)


_MOST_SAMPLES = 5


def count_calls(entry: Candidate | object) -> int:
    """Calls of it at most."""
    if isinstance(entry, Candidate):
        return len(entry)
    return int(getattr(entry, "calls", None) or 1)


def choose_samples(figures: Mapping[str, SystemFigures]) -> int:
    """Samples of the best single worker for the dollars of a question of ultra; else its calls."""
    ultra, single = figures[ULTRA], figures[BEST_SINGLE]
    ratio = ultra.usd / single.usd if single.usd else ultra.calls
    return max(3, min(_MOST_SAMPLES, round(ratio)))


def expected_accuracy(search: Search) -> float:
    """The share right that the search expects of its winners, over all its questions."""
    total = 0.0
    for group, weight in search.arena.weights.items():
        total += weight * float(np.mean([share for _, share in search.winners(group)]))
    return total / sum(search.arena.weights.values())


def describe_progress(search: Search) -> str:
    """How far the search has come, in a line."""
    many = len(search.tried_anywhere())
    return f"{many} workflows tried; {100 * expected_accuracy(search):.0f} % expected of the best"
