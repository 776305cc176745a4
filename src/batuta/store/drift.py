"""How workers do beside what was measured of them, shared by all replicas.

Seconds are counted in the transaction that writes the runs, scores in the one that judges a run,
each once; rows are locked while they change, so that replicas take turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, final

import orjson
from sqlalchemy import Connection, select

from batuta.core import Pool, Reply, Run, Worker
from batuta.core.drift import (
    DriftKind,
    DriftSide,
    DriftState,
    Interval,
    begin_drift,
    card_interval,
    observe_value,
)
from batuta.store.codec import sql_text
from batuta.store.database import Database
from batuta.store.models import WORKER_DRIFT
from batuta.store.upsert import insert_statement


class DriftKey(NamedTuple):
    """What is watched: another model, or another measurement of it, begins anew."""

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
    """Under what the worker is watched in that respect."""
    interval = card_interval(worker) if kind is DriftKind.RIGHT else None
    reference = "" if interval is None else f"{interval.low:.6f} {interval.high:.6f}"
    return DriftKey(sql_text(worker.id), sql_text(worker.model), kind.value, reference)


def run_seconds(run: Run) -> list[DriftValue]:
    """What the run's calls took, of those that gave a reply at the first attempt."""
    return [
        DriftValue(drift_key(run.header.pool[step.worker], DriftKind.SECONDS), seconds, at)
        for step in run.steps
        if isinstance(step.result, Reply) and not step.attempts and step.worker in run.header.pool
        for seconds, at in [(step.span.seconds, run.header.started + step.span.end)]
    ]


def run_score(run: Run, score: float) -> list[DriftValue]:
    """What a judgement says of a worker: of the one who answered alone, if one did."""
    steps = run.steps
    if len(steps) != 1 or steps[0].worker not in run.header.pool:
        return []
    key = drift_key(run.header.pool[steps[0].worker], DriftKind.RIGHT)
    return [DriftValue(key, score, run.header.started + run.seconds)]


def count_values(connection: Connection, values: Iterable[DriftValue]) -> None:
    """Adds what was seen, in the caller's transaction; rows are locked in one order."""
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
    """What is known of workers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, pool: Pool) -> dict[str, dict[DriftKind, DriftState]]:
        """How each worker of the pool does, by its id, as far as anything was seen.

        Raises:
            StoreError: the database fails.
        """
        wanted = {drift_key(worker, kind): worker.id for worker in pool for kind in DriftKind}
        chosen = WORKER_DRIFT.c.worker.in_({key.worker for key in wanted})
        found: dict[str, dict[DriftKind, DriftState]] = defaultdict(dict)
        for row in await self._database.fetch_rows(select(WORKER_DRIFT).where(chosen)):
            key = DriftKey(*(row[name] for name in DriftKey._fields))
            if key in wanted:
                found[wanted[key]][DriftKind(key.kind)] = _parse_state(row["state"])
        return dict(found)


def _lock_state(connection: Connection, key: DriftKey) -> DriftState:
    """What was seen so far; nobody else changes it until the transaction ends."""
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
    said: dict[str, Any] = orjson.loads(text)
    interval = said.pop("interval")
    lists: dict[str, Sequence[float]] = {
        name: tuple(said.pop(name)) for name in ("first", "below", "above")
    }
    return DriftState(
        kind=DriftKind(said.pop("kind")),
        side=DriftSide(said.pop("side")),
        interval=None if interval is None else Interval(**interval),
        **lists,
        **said,
    )


def _reference_interval(key: DriftKey) -> Interval | None:
    return Interval(*map(float, key.reference.split())) if key.reference else None
