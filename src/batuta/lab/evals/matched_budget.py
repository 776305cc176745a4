"""Computes how many samples of one worker take as many calls, or as much money, as a system."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from batuta.lab.evals.result_log import TrialResult
from batuta.lab.evals.stats import mean_or_none

EqualResource = Literal["calls", "cost"]
"""The resource in which the systems added for a comparison equal the first system."""

SAMPLE_SLACK = 0.05
"""The number of samples that cost as much is rounded up, unless the remainder is at most this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedBudget:
    """The budget of the systems that are added for a comparison at equal calls or cost."""

    of: str
    """The system whose mean is matched."""
    what: Literal["calls", "dollars", "tokens"]
    amount: float
    """That system's mean per question, in the unit `what`."""
    k: int
    """The number of samples of the best worker that cost as much, rounded up (a cost less
    `SAMPLE_SLACK`); at most those that a record has."""


def match_calls(name: str, runs: Sequence[TrialResult]) -> MatchedBudget | None:
    """Return the budget of the system's mean calls; None if there are no runs or no calls."""
    calls = mean_or_none([run.calls for run in runs])
    if not calls:
        return None
    return MatchedBudget(of=name, what="calls", amount=calls, k=max(1, math.ceil(calls)))


def match_cost(
    name: str, runs: Sequence[TrialResult], single: Sequence[TrialResult]
) -> MatchedBudget | None:
    """Return the budget of the system's mean cost, in dollars or else in tokens, without grading.

    None if neither unit is known and above 0 for both. `single` has the runs of the worker to
    sample, which was asked once per question.
    """
    for unit, read_cost in _UNITS.items():
        total, each = _known_mean(runs, read_cost), _known_mean(single, read_cost)
        if total and each:
            return MatchedBudget(
                of=name, what=unit, amount=total, k=max(1, math.ceil(total / each - SAMPLE_SLACK))
            )
    return None


_UNITS: Mapping[Literal["dollars", "tokens"], Callable[[TrialResult], float | None]] = {
    "dollars": lambda run: None if run.answer_usd is None else float(run.answer_usd),
    "tokens": lambda run: run.tokens,
}
"""Units of cost; the first unit in which both costs are known is used."""


def _known_mean(
    runs: Sequence[TrialResult], read_cost: Callable[[TrialResult], float | None]
) -> float | None:
    """Return the mean of a figure; None if it is unknown for any run."""
    values = [value for run in runs if (value := read_cost(run)) is not None]
    return mean_or_none(values) if len(values) == len(runs) else None
