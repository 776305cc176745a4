"""How workers do beside what was measured of them, shared by all replicas.

Seconds are counted in the transaction that writes the runs, scores in the one that judges a run,
each once; rows are locked while they change, so that replicas take turns.

To find a change, each value is a bet against "the mean is still at most p" (Waudby-Smith and Ramdas
2024): a share f of the wealth is staked, and the wealth is multiplied by (1 - f) + f z / p, whose
mean is at most 1 as long as the claim holds. The evidence is the Shiryaev-Roberts sum of these
wealths over all times at which the change may have come (the e-detector of Shin, Ramdas and Rinaldo
2024). While the claim holds, `evidence - values seen` does not grow on average, so that at least
`FALSE_ALARM_VALUES` values pass on average before a false alarm, whatever the distribution and
however often one looks.
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
    """The respects in which a worker is watched."""

    RIGHT = "right"
    """Scores in [0, 1] of answers that the worker gave alone."""
    SECONDS = "seconds"
    """The seconds that its calls took."""


class DriftSide(StrEnum):
    """The place of a worker's newest values beside its usual interval."""

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
    """The evidence on one worker, in one respect."""

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
        """Return True if it is outside its interval."""
        return self.side in {DriftSide.BELOW, DriftSide.ABOVE}


def card_interval(worker: Worker) -> Interval | None:
    """Return the 99 % interval of the share right that was measured here; None: none was.

    The questions of all families on which it was measured count together.
    """
    measured = [skill for skill in worker.skills if skill.questions and not skill.board]
    count = sum(skill.questions or 0 for skill in measured)
    if not count:
        return None
    right = sum(skill.share * (skill.questions or 0) for skill in measured)
    return Interval(*wilson_interval(min(right, float(count)), count, Z99))


def begin_drift(kind: DriftKind, interval: Interval | None = None) -> DriftState:
    """Return a watch that has seen nothing yet."""
    side = DriftSide.LEARNING if interval is None else DriftSide.WITHIN
    return DriftState(kind=kind, interval=interval, side=side)


def observe_value(state: DriftState, value: float, at: float) -> DriftState:
    """Return the state after another value.

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
    """Return the evidence that values in [0, 1] have a mean above `most`, after another value."""
    claim = max(most, _SMALLEST_SHARE)
    return tuple(
        [
            min((old + 1) * (1 - stake + stake * value / claim), _MAX_EVIDENCE)
            for old, stake in zip(evidence, STAKES, strict=True)
        ]
    )


def mean_evidence(evidence: Sequence[float]) -> float:
    """Return all stakes together."""
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
    """Return where it is by that evidence."""
    if max(below, above) >= FALSE_ALARM_VALUES:
        return DriftSide.BELOW if below >= above else DriftSide.ABOVE
    own = below if before.side is DriftSide.BELOW else above
    return DriftSide.WITHIN if before.has_left and own < _CALM_EVIDENCE else before.side


def _mix_recent(recent: float | None, value: float) -> float:
    return value if recent is None else recent + _RECENT_WEIGHT * (value - recent)


class DriftKey(NamedTuple):
    """The key of what is watched: another model, or another measurement of it, begins anew."""

    worker: str
    model: str
    kind: str
    reference: str
    """The card's interval; empty: it is learned."""


class DriftValue(NamedTuple):
    """Something that was seen."""

    key: DriftKey
    value: float
    at: float
    """Seconds since the epoch."""


def drift_key(worker: Worker, kind: DriftKind) -> DriftKey:
    """Return the key under which the worker is watched in that respect."""
    interval = card_interval(worker) if kind is DriftKind.RIGHT else None
    reference = "" if interval is None else f"{interval.low:.6f} {interval.high:.6f}"
    return DriftKey(sql_text(worker.id), sql_text(worker.model), kind.value, reference)


def run_seconds(run: Run) -> list[DriftValue]:
    """Return the seconds of the run's calls that gave a reply at the first attempt."""
    return [
        DriftValue(drift_key(run.header.pool[step.worker], DriftKind.SECONDS), seconds, at)
        for step in run.steps
        if isinstance(step.result, Reply) and not step.attempts and step.worker in run.header.pool
        for seconds, at in [(step.span.seconds, run.header.started + step.span.end)]
    ]


def run_score(run: Run, score: float) -> list[DriftValue]:
    """Return a judgement's value for the worker that answered alone, if one did."""
    steps = run.steps
    if len(steps) != 1 or steps[0].worker not in run.header.pool:
        return []
    key = drift_key(run.header.pool[steps[0].worker], DriftKind.RIGHT)
    return [DriftValue(key, score, run.header.started + run.seconds)]


def count_values(connection: Connection, values: Iterable[DriftValue]) -> None:
    """Add what was seen, in the caller's transaction; rows are locked in one order."""
    seen: dict[DriftKey, list[DriftValue]] = defaultdict(list)
    for one in values:
        seen[one.key].append(one)
    rows: list[dict[str, Any]] = []
    for key in sorted(seen):
        state = _lock_state(connection, key)
        for one in seen[key]:
            state = observe_value(state, one.value, one.at)
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
        """Return how each worker of the pool does, by its id, as far as anything was seen."""
        wanted = {drift_key(worker, kind): worker.id for worker in pool for kind in DriftKind}
        chosen = WORKER_DRIFT.c.worker.in_({key.worker for key in wanted})
        found: dict[str, dict[DriftKind, DriftState]] = defaultdict(dict)
        for row in await self._database.fetch_rows(select(WORKER_DRIFT).where(chosen)):
            key = DriftKey(*(row[name] for name in DriftKey._fields))
            if key in wanted:
                found[wanted[key]][DriftKind(key.kind)] = _parse_state(row["state"])
        return dict(found)


def _lock_state(connection: Connection, key: DriftKey) -> DriftState:
    """Read what was seen so far; nobody else changes it until the transaction ends."""
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
