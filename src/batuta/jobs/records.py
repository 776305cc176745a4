"""Database records of a job: its finished calls, its events and its attempts.

Calls are stored by content: the key is a hash of the job, the position in its run, the worker, its
model and the request. Exactly-once execution of a call to a remote server is impossible: a call may
be executed again after a crash, but a recorded result is never replaced.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any, final

import orjson
from sqlalchemy import (
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    delete,
    func,
    select,
)

from batuta.jobs.protocol import JobEvent, Json
from batuta.store.database import AdvisoryLock, Database, insert_statement

METADATA = MetaData()
CALLS_TABLE = Table(
    "job_calls",
    METADATA,
    Column("key", Text, primary_key=True),
    # Index of a reply among equal calls at one position, such as the votes of one worker.
    Column("sample", Integer, primary_key=True),
    Column("job", Text, nullable=False),
    Column("place", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("kept", Float(53), nullable=False),
    Index("ix_job_calls_job", "job"),
)
EVENTS_TABLE = Table(
    "job_events",
    METADATA,
    Column("job", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("body", Text, nullable=False),
)
ATTEMPTS_TABLE = Table(
    "job_attempts",
    METADATA,
    # The job; `unended` counts its attempts that have a recorded beginning and no recorded end.
    Column("job", Text, primary_key=True),
    Column("unended", Integer, nullable=False),
    # Number of calls stored when the attempt began; progress beyond it restarts `unended`.
    Column("calls", Integer, nullable=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKey:
    """The identity of a call, made of its content."""

    job: str
    place: str
    """Position in the run: `call:{round}:{step}`, or `plan:{round}:{sample}:{seed}`; `call` for a
    call that belongs to no step."""
    worker: str
    model: str
    """Empty for a plan."""
    request: bytes
    """Fingerprint of the request without its output limit; for a plan, the pool as JSON."""

    @property
    def digest(self) -> str:
        """The database key under which the result is stored."""
        parts = (self.job, self.place, self.worker, self.model, self.request.hex())
        return hashlib.sha256(orjson.dumps(parts)).hexdigest()


def encode_json(value: Json) -> str:
    """Return the value as JSON, also if it has lone surrogates or is nested deeply.

    Raises:
        RecursionError: the value is nested about as deeply as Python's stack allows.
    """
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # lone surrogates or deep nesting
        return json.dumps(value)


def decode_json(text: str) -> Json:
    """Return the value that `encode_json` encoded."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def create_tables(connection: Connection) -> None:
    """Create the tables of jobs that do not exist yet."""
    if connection.dialect.name == "postgresql":  # several replicas may start at the same time
        AdvisoryLock.JOB_TABLES.take(connection)
    METADATA.create_all(connection)


@final
class JobRecords:
    """Reads and writes the calls, events and attempts of jobs.

    Every method raises StoreError if the database fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._dialect = database.url.get_backend_name()

    async def unended_attempts(self, job_id: str) -> int:
        """Count the unended attempts that began at the job's current number of stored calls."""
        calls = select(func.count()).where(CALLS_TABLE.c.job == job_id).scalar_subquery()
        query = select(ATTEMPTS_TABLE.c.unended).where(
            ATTEMPTS_TABLE.c.job == job_id, ATTEMPTS_TABLE.c.calls == calls
        )
        rows = await self._database.fetch_rows(query)
        return rows[0]["unended"] if rows else 0

    async def begin_attempt(self, job_id: str) -> None:
        """Record that an attempt at the job begins."""
        count = await self.unended_attempts(job_id) + 1
        calls = select(func.count()).where(CALLS_TABLE.c.job == job_id).scalar_subquery()
        new = insert_statement(self._dialect, ATTEMPTS_TABLE).values(
            job=job_id, unended=count, calls=calls
        )
        changed = {"unended": new.excluded.unended, "calls": new.excluded.calls}
        await self._database.execute(
            new.on_conflict_do_update(index_elements=["job"], set_=changed)
        )

    async def end_attempt(self, job_id: str) -> None:
        """Record that the attempt has ended, whatever its outcome."""
        await self._database.execute(delete(ATTEMPTS_TABLE).where(ATTEMPTS_TABLE.c.job == job_id))

    async def find_calls(self, key: CallKey) -> list[str]:
        """Return the results that are stored under the key, as JSON, by ascending `sample`."""
        query = (
            select(CALLS_TABLE.c.body)
            .where(CALLS_TABLE.c.key == key.digest)
            .order_by(CALLS_TABLE.c.sample)
        )
        return [row["body"] for row in await self._database.fetch_rows(query)]

    async def keep_call(self, key: CallKey, sample: int, body: str) -> None:
        """Store the result, as JSON, under the key and the number `sample`, from 0.

        An existing result is not overwritten.
        """
        row = {"key": key.digest, "sample": sample, "job": key.job, "place": key.place}
        await self._insert(CALLS_TABLE, {**row, "body": body, "kept": time.time()})

    async def count_events(self, job: str) -> int:
        """Return the number of stored events of the job."""
        query = select(func.count().label("events")).where(EVENTS_TABLE.c.job == job)
        return int((await self._database.fetch_rows(query))[0]["events"])

    async def add_event(self, job: str, number: int, body: Json) -> None:
        """Store an event; an existing event with its number is not overwritten."""
        row = {"job": job, "number": number, "body": encode_json(body)}
        await self._insert(EVENTS_TABLE, row)

    async def events(self, job: str, after: int) -> list[JobEvent]:
        """Return the events of the job numbered above `after`, in order."""
        query = (
            select(EVENTS_TABLE.c.number, EVENTS_TABLE.c.body)
            .where(EVENTS_TABLE.c.job == job, EVENTS_TABLE.c.number > after)
            .order_by(EVENTS_TABLE.c.number)
        )
        rows = await self._database.fetch_rows(query)
        return [JobEvent(row["number"], decode_json(row["body"])) for row in rows]

    async def _insert(self, table: Table, row: dict[str, Any]) -> None:
        insertion = insert_statement(self._dialect, table).values(row).on_conflict_do_nothing()
        await self._database.execute(insertion)
