"""Samples of one worker that come to as many calls, or as much money, as a system took."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from batuta.lab.evals.result_log import TrialResult
from batuta.lab.evals.stats import mean_or_none

EqualResource = Literal["calls", "cost"]
"""What others get as much of as the first system took."""

SAMPLE_SLACK = 0.05
"""Of a sample: so little more is not worth another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedBudget:
    """What the systems were given that were added for an equal comparison."""

    of: str
    """Whose mean they match."""
    what: Literal["calls", "dollars", "tokens"]
    amount: float
    """Its mean."""
    k: int
    """Samples that come to as much, rounded up."""


def match_calls(name: str, runs: Sequence[TrialResult]) -> MatchedBudget | None:
    """As many samples as the system of that name made calls on average; None: it made none."""
    calls = mean_or_none([run.calls for run in runs])
    return (
        MatchedBudget(of=name, what="calls", amount=calls, k=max(1, math.ceil(calls)))
        if calls
        else None
    )


def match_cost(
    name: str, runs: Sequence[TrialResult], single: Sequence[TrialResult]
) -> MatchedBudget | None:
    """As many samples as cost what the system of that name took on average; None: not known.

    Args:
        name: the system's.
        runs: its results.
        single: those of the worker that is sampled, asked once a question.
    """
    for unit, of in _UNITS.items():
        took, one = _known_mean(runs, of), _known_mean(single, of)
        if took and one:
            return MatchedBudget(
                of=name, what=unit, amount=took, k=max(1, math.ceil(took / one - SAMPLE_SLACK))
            )
    return None


def _run_usd(run: TrialResult) -> float | None:
    return None if run.usd is None else float(run.usd)


def _run_tokens(run: TrialResult) -> float | None:
    return run.tokens


_UNITS: Mapping[Literal["dollars", "tokens"], Callable[[TrialResult], float | None]] = {
    "dollars": _run_usd,
    "tokens": _run_tokens,
}
"""What a cost is measured in: the first that is known."""


def _known_mean(
    runs: Sequence[TrialResult], of: Callable[[TrialResult], float | None]
) -> float | None:
    """The mean of a figure; None if it is not known of every run."""
    values = [value for run in runs if (value := of(run)) is not None]
    return mean_or_none(values) if len(values) == len(runs) else None
