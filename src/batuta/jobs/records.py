"""The records of a job on disk: its finished calls and its events.

The calls are a journal by content: the key is made of the job, the place in its run, the worker,
its model and the whole request. No engine gives exactly-once for a call to somebody else's
machine; what can be had is at-least-once execution and exactly-once record, and this is the record.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final

import orjson
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    select,
)
from sqlalchemy.exc import SQLAlchemyError

from batuta.errors import StoreError
from batuta.jobs.protocol import JobEvent, Json
from batuta.store.database import (
    database_name,
    insert_statement,
    make_private_file,
    truncate_log,
)
from batuta.store.postgres import connect_psycopg

BUSY_SECONDS = 30
"""How long SQLite waits for another writer."""

T = TypeVar("T")
METADATA = MetaData()
CALLS_TABLE = Table(
    "job_calls",
    METADATA,
    Column("key", Text, primary_key=True),
    # Equal calls of one place, as those of a vote by one worker, in the order of their replies.
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
    # The number of attempts that began and whose end no process has recorded.
    Column("job", Text, primary_key=True),
    Column("unended", Integer, nullable=False),
    # The number of calls kept by then: an attempt that gets further starts the count anew.
    Column("calls", Integer, nullable=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKey:
    """A call by its content."""

    job: str
    place: str
    """`call:{round}:{step}`, or `plan:{round}:{sample}:{seed}`."""
    worker: str
    model: str
    request: bytes
    """The hash of the whole request."""

    @property
    def digest(self) -> str:
        """The key under which the reply is kept."""
        parts = (self.job, self.place, self.worker, self.model, self.request.hex())
        return hashlib.sha256(orjson.dumps(parts)).hexdigest()


class ErasingConnection(sqlite3.Connection):
    """A connection to SQLite that overwrites what it deletes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute("PRAGMA secure_delete=ON")


_TABLES_LOCK = 7092011
"""The lock under which the tables are made."""


@final
class JobRecords:
    """The tables, through connections that block: call it from a thread."""

    def __init__(self, url: URL) -> None:
        """Make the tables."""
        self._url = url
        try:
            self._engine = _create_engine(url)
            with self._engine.begin() as connection:
                if url.get_backend_name() == "postgresql":  # of replicas that start together one
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_TABLES_LOCK})")
                METADATA.create_all(connection)
        except (SQLAlchemyError, OSError, sqlite3.Error) as error:
            raise self._store_error(error) from None

    def close(self) -> None:
        """Disconnects."""
        self._engine.dispose()

    @property
    def dialect(self) -> str:
        """The name of the database's dialect."""
        return self._engine.dialect.name

    def unended_attempts(self, job_id: str) -> int:
        """Count the runs of the job that began at this point of it and never ended."""
        calls = select(func.count()).where(CALLS_TABLE.c.job == job_id).scalar_subquery()
        query = select(ATTEMPTS_TABLE.c.unended).where(
            ATTEMPTS_TABLE.c.job == job_id, ATTEMPTS_TABLE.c.calls == calls
        )
        rows = self.read(query)
        return rows[0][0] if rows else 0

    def begin_attempt(self, job_id: str) -> None:
        """Write down that a run of the job begins."""
        count = self.unended_attempts(job_id) + 1
        calls = select(func.count()).where(CALLS_TABLE.c.job == job_id).scalar_subquery()
        new = insert_statement(self.dialect, ATTEMPTS_TABLE).values(
            job=job_id, unended=count, calls=calls
        )
        changed = {"unended": new.excluded.unended, "calls": new.excluded.calls}
        self.write(new.on_conflict_do_update(index_elements=["job"], set_=changed))

    def end_attempt(self, job_id: str) -> None:
        """Write down that the job's run is over, however it ended."""
        self.write(delete(ATTEMPTS_TABLE).where(ATTEMPTS_TABLE.c.job == job_id))

    def find_calls(self, key: CallKey) -> list[str]:
        """Return what was kept under the key, in order."""
        query = (
            select(CALLS_TABLE.c.body)
            .where(CALLS_TABLE.c.key == key.digest)
            .order_by(CALLS_TABLE.c.sample)
        )
        return [row[0] for row in self.read(query)]

    def keep_call(self, key: CallKey, sample: int, body: str) -> None:
        """Keep it as the key's `sample`; what was kept first stays."""
        row = {"key": key.digest, "sample": sample, "job": key.job, "place": key.place}
        self._insert(CALLS_TABLE, {**row, "body": body, "kept": time.time()})

    def count_events(self, job: str) -> int:
        """Return how many events of the job are kept."""
        return int(self.read(select(func.count()).where(EVENTS_TABLE.c.job == job))[0][0])

    def add_event(self, job: str, number: int, body: Json) -> None:
        """Keep an event."""
        text = orjson.dumps(body).decode()
        self._insert(EVENTS_TABLE, {"job": job, "number": number, "body": text})

    def events(self, job: str, after: int) -> list[JobEvent]:
        """Return the events of the job numbered above `after`."""
        query = (
            select(EVENTS_TABLE.c.number, EVENTS_TABLE.c.body)
            .where(EVENTS_TABLE.c.job == job, EVENTS_TABLE.c.number > after)
            .order_by(EVENTS_TABLE.c.number)
        )
        return [JobEvent(number, orjson.loads(body)) for number, body in self.read(query)]

    def erase(self, job: str) -> None:
        """Forgets what the job left."""
        tables = (CALLS_TABLE, EVENTS_TABLE, ATTEMPTS_TABLE)
        self.write(*(delete(table).where(table.c.job == job) for table in tables))

    def truncate(self) -> None:
        """Lets nothing that was erased lie about in the log of an SQLite file."""
        if not is_sqlite_file(self._url):
            return
        try:
            truncate_log(self._engine)
        except SQLAlchemyError as error:
            raise self._store_error(error) from None

    def read(self, query: Any) -> list[Any]:
        """Return the rows of a query."""
        try:
            with self._engine.connect() as connection:
                rows: Any = connection.execute(query)
                return list(rows)
        except SQLAlchemyError as error:
            raise self._store_error(error) from None

    def write(self, *statements: Any) -> list[Any]:
        """Execute the statements in one transaction; return the rows that they return."""

        def execute(connection: Connection) -> list[Any]:
            done: list[Any] = [connection.execute(statement) for statement in statements]
            return [row for result in done if result.returns_rows for row in result]

        return self.transact(execute)

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Return what the work returns that is done in one transaction."""
        try:
            with self._engine.begin() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            raise self._store_error(error) from None

    def _insert(self, table: Table, row: dict[str, Any]) -> None:
        self.write(insert_statement(self.dialect, table).values(row).on_conflict_do_nothing())

    def _store_error(self, error: Exception) -> StoreError:
        cause = getattr(error, "orig", None) or error
        return StoreError(f"the jobs in {database_name(self._url)} cannot be kept: {cause}")


def is_sqlite_file(url: URL) -> bool:
    """Return True if the database is an SQLite file."""
    return url.get_backend_name() == "sqlite"


def _create_engine(url: URL) -> Engine:
    if not is_sqlite_file(url):
        engine = create_engine(url)
        event.listen(engine, "do_connect", _connect_database)
        return engine
    path = Path(str(url.database))
    make_private_file(path)
    engine = create_engine(
        url, connect_args={"timeout": BUSY_SECONDS, "factory": ErasingConnection}
    )
    event.listen(engine, "connect", _set_pragmas)
    return engine


def _connect_database(_dialect: object, _record: object, args: Any, options: Any) -> Any:
    return connect_psycopg(*args, **options)


def _set_pragmas(connection: Any, _record: object) -> None:
    """WAL stays with the file, so the job engine's own connections have it too."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")  # a kept call was paid for
