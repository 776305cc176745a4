"""Whether a worker still does as it was measured: a sequential test that can be looked at always.

Each value is a bet against "the mean is still at most p" (Waudby-Smith and Ramdas 2024): a share f
of the wealth is staked, and the wealth is multiplied by (1 - f) + f z / p, whose mean is at most 1
as long as the claim holds. The evidence is the Shiryaev-Roberts sum of these wealths over all times
at which the change may have come (the e-detector of Shin, Ramdas and Rinaldo 2024). While the claim
holds, `evidence - values seen` does not grow on average, so that at least `FALSE_ALARM_VALUES`
values pass on average before a false alarm, whatever the distribution and however often one looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from batuta.core.intervals import Z99, wilson_interval
from batuta.core.worker import Worker

FALSE_ALARM_VALUES = 10_000
"""Values that pass on average, at the least, before a worker within its interval is said to have
left it on one side."""
STAKES = (0.05, 0.15, 0.4)
"""Shares of the wealth that are staked: small ones notice small changes, late."""
_MAX_EVIDENCE = 10.0 * FALSE_ALARM_VALUES
"""Evidence is not hoarded beyond this: a worker that has recovered is believed in time."""
_CALM_EVIDENCE = FALSE_ALARM_VALUES / 10
"""Evidence below which an alarm ends."""
FIRST_SCORES = 50
"""Judged answers that a worker's interval is learned from, where its card has no measured share."""
FIRST_SECONDS = 100
"""Calls that a worker's usual time is learned from."""
_RANK = 5
"""The interval of times goes from the fifth fastest to the fifth slowest of them."""
SECONDS_SHARE = 0.15
"""Share of calls that may be beyond such an end. The true share beyond the fifth of a hundred is
distributed as Beta(5, 96): above 0.15 in one case of 2,350."""
_SMALLEST_SHARE = 0.001
_RECENT_WEIGHT = 1 / 32


class DriftKind(StrEnum):
    """What is watched."""

    RIGHT = "right"
    """Scores in [0, 1] of answers that the worker gave alone."""
    SECONDS = "seconds"
    """What its calls took."""


class DriftSide(StrEnum):
    """Where a worker is."""

    LEARNING = "learning"
    """Its interval is not known yet."""
    WITHIN = "within"
    BELOW = "below"
    ABOVE = "above"


@dataclass(frozen=True, slots=True)
class Interval:
    """From where to where a value was measured to be."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftState:
    """What was seen of one worker, in one respect."""

    kind: DriftKind
    interval: Interval | None = None
    """None: it is learned from the first values."""
    first: tuple[float, ...] = ()
    """The values that it is being learned from."""
    count: int = 0
    """Values that were compared with the interval."""
    recent: float | None = None
    """The mean of the latest values, about thirty of them."""
    below: tuple[float, ...] = (0.0,) * len(STAKES)
    """Evidence that it is below its interval, by stake."""
    above: tuple[float, ...] = (0.0,) * len(STAKES)
    side: DriftSide = DriftSide.LEARNING
    since: float | None = None
    """When it was found outside its interval, in seconds since the epoch; None: it is not."""

    @property
    def has_left(self) -> bool:
        """Whether it is outside its interval."""
        return self.side in {DriftSide.BELOW, DriftSide.ABOVE}


def card_interval(worker: Worker) -> Interval | None:
    """The 99 % interval of the share right that was measured here; None: none was.

    The questions of all families on which it was measured count together.
    """
    measured = [skill for skill in worker.skills if skill.questions and not skill.board]
    count = sum(skill.questions or 0 for skill in measured)
    if not count:
        return None
    right = sum(skill.share * (skill.questions or 0) for skill in measured)
    return Interval(*wilson_interval(min(right, float(count)), count, Z99))


def begin_drift(kind: DriftKind, interval: Interval | None = None) -> DriftState:
    """Nothing seen yet."""
    side = DriftSide.LEARNING if interval is None else DriftSide.WITHIN
    return DriftState(kind=kind, interval=interval, side=side)


def observe_value(state: DriftState, value: float, at: float) -> DriftState:
    """The state after another value.

    Args:
        state: what was seen before.
        value: a score (cut to [0, 1]) or seconds.
        at: when it came, in seconds since the epoch.
    """
    if state.kind is DriftKind.RIGHT:
        value = min(max(value, 0.0), 1.0)
    if state.interval is None:
        return _learn_interval(state, value)
    low, high = state.interval.low, state.interval.high
    if state.kind is DriftKind.RIGHT:
        up, down, may_up, may_down = value, 1 - value, high, 1 - low
    else:
        up, down = float(value > high), float(value < low)
        may_up = may_down = SECONDS_SHARE
    return _with_side(
        replace(
            state,
            count=state.count + 1,
            recent=_mix_recent(state.recent, value),
            above=place_bet(state.above, up, may_up),
            below=place_bet(state.below, down, may_down),
        ),
        at,
    )


def place_bet(evidence: Sequence[float], value: float, most: float) -> tuple[float, ...]:
    """The evidence that values in [0, 1] have a mean above `most`, after another value."""
    claim = max(most, _SMALLEST_SHARE)
    return tuple(
        min((old + 1) * (1 - stake + stake * value / claim), _MAX_EVIDENCE)
        for old, stake in zip(evidence, STAKES, strict=True)
    )


def mean_evidence(evidence: Sequence[float]) -> float:
    """All stakes together."""
    return sum(evidence) / len(evidence)


def _learn_interval(state: DriftState, value: float) -> DriftState:
    first = (*state.first, value)
    learned = replace(state, first=first, recent=_mix_recent(state.recent, value))
    if len(first) < (FIRST_SCORES if state.kind is DriftKind.RIGHT else FIRST_SECONDS):
        return learned
    if state.kind is DriftKind.RIGHT:
        interval = Interval(*wilson_interval(sum(first), len(first), Z99))
    else:
        ordered = sorted(first)
        interval = Interval(ordered[_RANK - 1], ordered[-_RANK])
    return replace(learned, interval=interval, first=(), side=DriftSide.WITHIN)


def _with_side(state: DriftState, at: float) -> DriftState:
    below, above = mean_evidence(state.below), mean_evidence(state.above)
    side = state.side
    if max(below, above) >= FALSE_ALARM_VALUES:
        side = DriftSide.BELOW if below >= above else DriftSide.ABOVE
    elif state.has_left:
        own = below if side is DriftSide.BELOW else above
        side = DriftSide.WITHIN if own < _CALM_EVIDENCE else side
    if side is DriftSide.WITHIN:
        return replace(state, side=side, since=None)
    return replace(state, side=side, since=state.since if side is state.side else at)


def _mix_recent(recent: float | None, value: float) -> float:
    return value if recent is None else recent + _RECENT_WEIGHT * (value - recent)
