"""Detects workers with a quality or speed that has drifted from the measured or usual interval.

All replicas share the evidence. A call's seconds are counted in the transaction that writes its
run, a score in the transaction that judges the run, each once. Rows are locked while they change.

To detect a change, each value z is a bet against the claim "the mean is still at most p"
(Waudby-Smith and Ramdas 2024). A share f of the wealth is staked, so the wealth is multiplied by
(1 - f) + f z / p. The mean of this factor is at most 1 while the claim holds. The evidence is the
Shiryaev-Roberts sum of these wealths over all possible times of the change (the e-detector of Shin,
Ramdas and Rinaldo 2024). While the claim holds, `evidence - values seen` does not grow on average.
So at least `FALSE_ALARM_VALUES` values pass on average before a false alarm, for any distribution
and however often the evidence is checked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, final

import orjson
from sqlalchemy import Connection, select

from batuta.core import Pool, Reply, Run, Worker
from batuta.core.intervals import Z99, wilson_interval
from batuta.store.codec import sql_text
from batuta.store.database import Database, insert_statement
from batuta.store.models import WORKER_DRIFT

FALSE_ALARM_VALUES = 10_000
"""Minimum average number of values before a false alarm on one side of the interval."""
STAKES = (0.05, 0.15, 0.4)
"""Shares of the wealth that are staked; small stakes detect small changes, but late."""
_MAX_EVIDENCE = 10.0 * FALSE_ALARM_VALUES
"""Maximum evidence, so that the alarm about a worker that has recovered ends in time."""
_CALM_EVIDENCE = FALSE_ALARM_VALUES / 10
"""Evidence below which an alarm ends."""
FIRST_SCORES = 50
"""Judged answers from which a worker's interval is learned if its accuracy was not measured."""
FIRST_SECONDS = 100
"""Calls from which a worker's usual duration is learned."""
_RANK = 5
"""The interval of durations goes from the fifth fastest to the fifth slowest of the first calls."""
SECONDS_SHARE = 0.15
"""Share of calls that may lie beyond either end of the interval. The true share beyond the fifth of
100 calls is distributed as Beta(5, 96), which is above 0.15 in one case of 2,350."""
_SMALLEST_CLAIM = 0.001
"""A claim of a smaller mean counts as this one, since a bet divides by it."""
_RECENT_WEIGHT = 1 / 32


class DriftKind(StrEnum):
    """A quantity that is observed for each worker."""

    RIGHT = "right"
    """Scores in [0, 1] of answers that the worker gave alone."""
    SECONDS = "seconds"
    """Seconds of the worker's calls that succeeded at the first attempt."""


class DriftSide(StrEnum):
    """The position of a worker's newest values relative to its measured or usual interval."""

    LEARNING = "learning"
    """The interval is still being learned from the first values."""
    WITHIN = "within"
    BELOW = "below"
    ABOVE = "above"


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, or a range of usual values."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftState:
    """The evidence on one worker in one measure."""

    kind: DriftKind
    interval: Interval | None = None
    """None: still being learned from the first values."""
    first: tuple[float, ...] = ()
    """The values from which the interval is being learned."""
    count: int = 0
    """Number of values that were compared with the interval."""
    recent: float | None = None
    """Exponential moving average over about thirty values; None: there was no value."""
    below: tuple[float, ...] = (0.0,) * len(STAKES)
    """Evidence that the worker is below its interval, by stake."""
    above: tuple[float, ...] = (0.0,) * len(STAKES)
    """Evidence that the worker is above its interval, by stake."""
    side: DriftSide = DriftSide.LEARNING
    since: float | None = None
    """When the worker left its interval, in seconds since the epoch; None: it has not left."""

    @property
    def has_left(self) -> bool:
        """True if the worker is outside its interval."""
        return self.side in {DriftSide.BELOW, DriftSide.ABOVE}


def card_interval(worker: Worker) -> Interval | None:
    """Return the 99 % interval of the worker's accuracy; None: it was not measured.

    The measured questions of all families count together; scores of public boards do not count.
    """
    measured = [skill for skill in worker.skills if skill.questions and not skill.board]
    count = sum(skill.questions or 0 for skill in measured)
    if not count:
        return None
    right = sum(skill.share * (skill.questions or 0) for skill in measured)
    return Interval(*wilson_interval(min(right, float(count)), count, Z99))


def begin_drift(kind: DriftKind, interval: Interval | None = None) -> DriftState:
    """Return the initial state, without any value; without `interval` it will be learned."""
    side = DriftSide.LEARNING if interval is None else DriftSide.WITHIN
    return DriftState(kind=kind, interval=interval, side=side)


def observe_value(state: DriftState, value: float, at: float) -> DriftState:
    """Return the state after another value.

    Args:
        state: the state before.
        value: a score (clipped to [0, 1]) or seconds.
        at: the time of the value, in seconds since the epoch.
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
    above, below = place_bet(state.above, up, may_up), place_bet(state.below, down, may_down)
    side = _find_side(state, mean_evidence(below), mean_evidence(above))
    since = None if side is DriftSide.WITHIN else state.since if side is state.side else at
    return replace(
        state,
        count=state.count + 1,
        recent=_mix_recent(state.recent, value),
        above=above,
        below=below,
        side=side,
        since=since,
    )


def place_bet(evidence: Sequence[float], value: float, most: float) -> tuple[float, ...]:
    """Return the evidence, by stake, that values in [0, 1] have a mean above `most`.

    Args:
        evidence: the evidence before `value`, by stake.
        value: the next value.
        most: the claim is that the mean is at most this.
    """
    claim = max(most, _SMALLEST_CLAIM)
    return tuple(
        [
            min((old + 1) * (1 - stake + stake * value / claim), _MAX_EVIDENCE)
            for old, stake in zip(evidence, STAKES, strict=True)
        ]
    )


def mean_evidence(evidence: Sequence[float]) -> float:
    """Return the mean of the evidence over all stakes."""
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


def _find_side(before: DriftState, below: float, above: float) -> DriftSide:
    """Return the side of the interval that the evidence indicates."""
    if max(below, above) >= FALSE_ALARM_VALUES:
        return DriftSide.BELOW if below >= above else DriftSide.ABOVE
    evidence = below if before.side is DriftSide.BELOW else above
    return DriftSide.WITHIN if before.has_left and evidence < _CALM_EVIDENCE else before.side


def _mix_recent(recent: float | None, value: float) -> float:
    return value if recent is None else recent + _RECENT_WEIGHT * (value - recent)


class DriftKey(NamedTuple):
    """Key of a drift state; a new model or a new measurement of the worker starts a new state."""

    worker: str
    model: str
    kind: str
    reference: str
    """The measured interval; empty: the interval is learned."""


class DriftValue(NamedTuple):
    """An observed score or duration."""

    key: DriftKey
    value: float
    at: float
    """Seconds since the epoch."""


def drift_key(worker: Worker, kind: DriftKind) -> DriftKey:
    """Return the key of the worker's state in that measure."""
    interval = card_interval(worker) if kind is DriftKind.RIGHT else None
    reference = "" if interval is None else f"{interval.low:.6f} {interval.high:.6f}"
    return DriftKey(sql_text(worker.id), sql_text(worker.model), kind.value, reference)


def run_seconds(run: Run) -> list[DriftValue]:
    """Return the durations of the run's calls that succeeded at the first attempt."""
    return [
        DriftValue(drift_key(run.header.pool[step.worker], DriftKind.SECONDS), seconds, at)
        for step in run.steps
        if isinstance(step.result, Reply) and not step.attempts and step.worker in run.header.pool
        for seconds, at in [(step.span.seconds, run.header.started + step.span.end)]
    ]


def run_score(run: Run, score: float) -> list[DriftValue]:
    """Return the score as a value of the worker of the run's only step.

    Empty: the run does not have exactly one step, or its worker is not in the pool.
    """
    steps = run.steps
    if len(steps) != 1 or steps[0].worker not in run.header.pool:
        return []
    key = drift_key(run.header.pool[steps[0].worker], DriftKind.RIGHT)
    return [DriftValue(key, score, run.header.started + run.seconds)]


def count_values(connection: Connection, values: Iterable[DriftValue]) -> None:
    """Add values in the caller's transaction; lock rows in sorted order, to avoid deadlocks."""
    seen: dict[DriftKey, list[DriftValue]] = defaultdict(list)
    for value in values:
        seen[value.key].append(value)
    rows: list[dict[str, Any]] = []
    for key in sorted(seen):
        state = _lock_state(connection, key)
        for value in seen[key]:
            state = observe_value(state, value.value, value.at)
        rows.append({**key._asdict(), "state": orjson.dumps(asdict(state)).decode()})
    if rows:
        new = insert_statement(connection.dialect.name, WORKER_DRIFT)
        changed = new.on_conflict_do_update(
            index_elements=list(DriftKey._fields), set_={"state": new.excluded.state}
        )
        connection.execute(changed, rows)


@final
class DriftTable:
    """The evidence on all workers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, pool: Pool) -> dict[str, dict[DriftKind, DriftState]]:
        """Return the states of the pool's workers that have values, by worker id and measure."""
        wanted = {drift_key(worker, kind): worker.id for worker in pool for kind in DriftKind}
        chosen = WORKER_DRIFT.c.worker.in_({key.worker for key in wanted})
        states: dict[str, dict[DriftKind, DriftState]] = defaultdict(dict)
        for row in await self._database.fetch_rows(select(WORKER_DRIFT).where(chosen)):
            key = DriftKey(*(row[name] for name in DriftKey._fields))
            if key in wanted:
                states[wanted[key]][DriftKind(key.kind)] = _parse_state(row["state"])
        return dict(states)


def _lock_state(connection: Connection, key: DriftKey) -> DriftState:
    """Read the state and lock its row until the transaction ends."""
    own = [WORKER_DRIFT.c[name] == value for name, value in key._asdict().items()]
    query = select(WORKER_DRIFT.c.state).where(*own).with_for_update()
    text = connection.execute(query).scalar()
    if text is None:
        fresh = begin_drift(DriftKind(key.kind), _reference_interval(key))
        row = {**key._asdict(), "state": orjson.dumps(asdict(fresh)).decode()}
        new = insert_statement(connection.dialect.name, WORKER_DRIFT).values(row)
        connection.execute(new.on_conflict_do_nothing())
        text = connection.execute(query).scalar_one()
    return _parse_state(text)


def _parse_state(text: str) -> DriftState:
    stored: dict[str, Any] = orjson.loads(text)
    interval = stored.pop("interval")
    lists: dict[str, Sequence[float]] = {
        name: tuple(stored.pop(name)) for name in ("first", "below", "above")
    }
    return DriftState(
        kind=DriftKind(stored.pop("kind")),
        side=DriftSide(stored.pop("side")),
        interval=None if interval is None else Interval(**interval),
        **lists,
        **stored,
    )


def _reference_interval(key: DriftKey) -> Interval | None:
    return Interval(*map(float, key.reference.split())) if key.reference else None
