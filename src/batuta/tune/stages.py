"""The stages of a tuning, what each may spend, and small figures about them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import StrEnum

import numpy as np

from batuta.tune.judge import SystemFigures
from batuta.tune.library import Candidate
from batuta.tune.search import Search
from batuta.tune.spending import Allowance

BEST_SINGLE, SELF_CONSISTENCY, ULTRA, MINI = "best single", "self-consistency", "ultra", "mini"
"""What the systems that are judged are called."""


class TuneStage(StrEnum):
    """The stages, in order."""

    CALIBRATE = "calibrate"
    SEARCH = "search"
    SELECT = "select"
    REWRITE = "rewrite"
    JUDGE = "judge"


_PLANNED, _PLANNED_AT_LEAST = 0.98, 0.6
"""The share of the budget that is planned with; the rest is for what failed calls have cost, and
for the worst case of the last call, so that none that was planned is refused."""
CALIBRATION, _SELECTION = 0.15, 0.07
"""The shares that calibration and selection may take."""
_JUDGED_CALLS = 750
"""Calls that the judgement is given where they are between the least and the most of its share:
they show a gain of about ten points."""
_JUDGEMENT = 0.11, 0.30


def planned_share(allowance: Allowance, bounds: Iterable[Decimal]) -> float:
    """The share of the budget that can be planned with.

    Args:
        allowance: the budget.
        bounds: what a call of each worker may cost at most, in dollars.
    """
    if not allowance.usd:
        return _PLANNED
    return max(_PLANNED - float(max(bounds) / allowance.usd), _PLANNED_AT_LEAST)


_REWRITING = 0.12
"""The share that rewriting may take, where it is wanted."""


def stage_ends(
    calls: int, planned: float = _PLANNED, *, rewrites: bool = False
) -> Mapping[TuneStage, float]:
    """The share of the budget that may be spent at the end of each stage.

    Args:
        calls: that the whole budget is likely to allow.
        planned: the share that can be planned with.
        rewrites: whether workflows are rewritten.
    """
    rewriting = _REWRITING if rewrites else 0.0
    least, most = _JUDGEMENT
    judged = min(max(_JUDGED_CALLS / max(calls, 1), least), most)
    return {
        TuneStage.CALIBRATE: CALIBRATION,
        TuneStage.SEARCH: planned - judged - rewriting - _SELECTION,
        TuneStage.SELECT: planned - judged - rewriting,
        TuneStage.REWRITE: planned - judged,
        TuneStage.JUDGE: planned,
    }


_MOST_SAMPLES = 9


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
