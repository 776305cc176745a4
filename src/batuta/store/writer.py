"""Writes runs in a single task, from a bounded queue, in batches.

A run leaves the queue only when the database has stored it or rejected its values. So a failed
write is retried, and a queued run can be read. Writing a run twice changes nothing, so a write that
may have been committed is simply repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import anyio
from anyio.to_thread import run_sync
from sqlalchemy import Connection, Executable, Table, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.util import await_only

from batuta.core import RunId
from batuta.errors import StoreError
from batuta.store.codec import FORMAT
from batuta.store.database import (
    Database,
    DatabaseFailedError,
    insert_statement,
    is_partitioned,
    is_row_error,
    is_transient,
)
from batuta.store.deleted import forgotten_among
from batuta.store.drift import count_values
from batuta.store.lease_changes import LeaseChanges, LeasedRun
from batuta.store.leases import Leases
from batuta.store.ledger import JOBS_OWNER, AccountPeriod, charged_periods, settle_rows, take_rows
from batuta.store.lost_runs import take_back_lost
from batuta.store.models import CONTENTS, LEDGER, RUNS
from batuta.store.partitions import create_partitions
from batuta.store.rows import PackedRun, RunEntry, pack_run


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert new rows; SQLite ignores rows that exist already.

    Raises:
        IntegrityError: in PostgreSQL, a row exists already; or a row violates another constraint.
        DBAPIError: the database fails or rejects a value.
    """
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        _copy_rows(connection, table, rows)
        return
    insertion = insert_statement(connection.dialect.name, table).on_conflict_do_nothing()
    connection.execute(insertion, [dict(row) for row in rows])


def _copy_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows by the driver's COPY, converting its errors to SQLAlchemy's."""
    import asyncpg  # noqa: PLC0415 - an extra  # pyright: ignore[reportMissingTypeStubs]

    driver: Any = connection.connection.driver_connection
    columns = list(rows[0])
    records = [tuple(row[name] for name in columns) for row in rows]
    try:
        await_only(driver.copy_records_to_table(table.name, records=records, columns=columns))
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if driver.is_closed():
            connection.invalidate(error)
        kind = _ERRORS.get(_sqlstate_class(error), DBAPIError)
        raise kind(f"COPY {table.name}", None, error) from error


_ERRORS = {"22": DataError, "23": IntegrityError}
"""SQLAlchemy's errors by the first two characters of the SQLSTATE."""


def _sqlstate_class(error: BaseException) -> str:
    """Return the first two characters of the SQLSTATE; 22 for a value that the driver rejects."""
    if isinstance(error, ValueError):
        return "22"
    return str(getattr(error, "sqlstate", None) or "")[:2]


BATCH_RUNS = 200
"""Maximum runs of one transaction."""

LINGER_SECONDS = 0.2
"""Maximum seconds that a run waits for others to share its transaction."""

QUEUE_CAPACITY = 2_000
"""Maximum runs in the queue."""

_INSERT_PAGE_ROWS = 16
"""Maximum number of ledger rows that a statement inserts."""

_MAX_LOCKED_ATTEMPTS = 3
"""Consecutive attempts on a locked database after which writing counts as failed."""

_RETRY_PAUSES = (0.05, 0.2, 1.0, 5.0)
"""Seconds between attempts to write; the last value repeats."""

_LOG = logging.getLogger(__name__)


class RunWriter:
    """Queues runs and writes the queue in batches, in order."""

    def __init__(
        self, database: Database, leases: Leases | None = None, capacity: int = QUEUE_CAPACITY
    ) -> None:
        self._database = database
        self.leases = leases
        """The leases of this process; None: budgets are not in use."""
        self._capacity = capacity
        self._pending: dict[RunId, RunEntry] = {}  # in order; the batch being written is the head
        self._queued = 0  # total
        self._written = 0  # total
        self._failures = 0  # total
        self._failures_in_row = 0
        self._waiting_flushes = 0
        self._closing = False
        self._work = _Signal()
        self._progress = _Signal()
        self._ended = anyio.Event()
        self.failure: StoreError | None = None
        """Why runs cannot be written at present; None while they can."""
        self.lost_count = 0
        """Number of runs that the database rejected, even without content; each was logged."""

    def find(self, run_id: RunId) -> RunEntry | None:
        """Return the queued entry of that id; None: the run is written or unknown."""
        return self._pending.get(run_id)

    @property
    def pending_count(self) -> int:
        """Number of runs that are not yet written."""
        return len(self._pending)

    async def append(self, entry: RunEntry) -> None:
        """Queue the entry, unless its run is queued already; wait only while the queue is full.

        Raises:
            StoreError: the writer has ended, or the queue is full and cannot be written.
        """
        while len(self._pending) >= self._capacity:
            self._refuse_if_stuck()
            await self._progress.wait()
        if self._closing:
            raise StoreError("the store is closed")
        run_id = entry.run.header.id
        if run_id in self._pending:
            return
        self._pending[run_id] = entry
        self._queued += 1
        if len(self._pending) in {1, BATCH_RUNS}:
            self._work.notify()

    async def flush(self) -> None:
        """Wait until every run appended so far is written.

        Raises:
            StoreError: the store is closed, or runs could not be written; they stay queued and are
                retried.
        """
        goal, failures = self._queued, self._failures
        self._waiting_flushes += 1
        self._work.notify()
        try:
            while self._written < goal:
                if self._ended.is_set():
                    raise StoreError("the store is closed")
                if self.failure and self._failures > failures:
                    raise self.failure
                await self._progress.wait()
        finally:
            self._waiting_flushes -= 1

    async def work(self) -> None:
        """Write until `close`; a failing database raises no error here."""
        try:
            while not self._closing:
                await self._wait_until_due()
                if self._pending and not await self._attempt():
                    await self._pause()
        finally:
            self._closing = True
            self._ended.set()
            self._progress.notify()

    async def close(self) -> None:
        """End `work` and write queued runs.

        Raises:
            StoreError: some runs could not be written and are lost.
        """
        self._closing = True
        self._work.notify()
        await self._ended.wait()
        while self._pending:
            if await self._attempt():
                continue
            if self.failure:
                count = len(self._pending)
                runs = "1 run" if count == 1 else f"{count} runs"
                raise StoreError(f"{runs} could not be written: {self.failure}")
            await anyio.sleep(_RETRY_PAUSES[0])

    def _refuse_if_stuck(self) -> None:
        if self._closing:
            raise StoreError("the store is closed")
        if self.failure:
            raise StoreError(f"{len(self._pending)} runs wait to be written: {self.failure}")

    async def _wait_until_due(self) -> None:
        """Wait until a run is queued, and then until its batch is full or has waited enough."""
        while not (self._pending or self._closing):
            await self._work.wait()
        with anyio.move_on_after(LINGER_SECONDS):
            while not (len(self._pending) >= BATCH_RUNS or self._waiting_flushes or self._closing):
                await self._work.wait()

    async def _pause(self) -> None:
        """Pause after a failure; the pause is short if a flush is waiting."""
        await anyio.sleep(_RETRY_PAUSES[0])
        with anyio.move_on_after(_RETRY_PAUSES[min(self._failures_in_row, len(_RETRY_PAUSES)) - 1]):
            while not (self._waiting_flushes or self._closing):
                await self._work.wait()

    async def _attempt(self) -> bool:
        """Try to write the head of the queue; return True on success."""
        batch = tuple(islice(self._pending.values(), BATCH_RUNS))
        try:
            # Shielded: cancelling a statement would discard the connection and its thread.
            with anyio.CancelScope(shield=True):
                await self._write(await run_sync(lambda: [pack_run(entry) for entry in batch]))
        except DatabaseFailedError as error:
            self._record_failure(error)
            return False
        self._remove_written(batch)
        return True

    async def _write(self, packed: Sequence[PackedRun]) -> None:
        try:
            await self._transact(packed)
        except DatabaseFailedError as error:
            if not is_row_error(error):
                raise
            for item in packed:
                await self._write_alone(item)

    async def _write_alone(self, item: PackedRun) -> None:
        """Write the run, or else only its numbers, or else only its ledger lines."""
        for attempt in (item, replace(item, body=None)):
            try:
                await self._transact((attempt,))
            except DatabaseFailedError as error:
                if not is_row_error(error):
                    raise
            else:
                return
        self.lost_count += 1
        _LOG.error("the database rejected the run %s", item.lines[0]["run_id"])
        try:
            await self._transact((replace(item, row=None, body=None),))
        except DatabaseFailedError as error:
            if not is_row_error(error):
                raise
            _LOG.error("the database rejected a run's ledger lines: %r", item.lines)

    async def _transact(self, packed: Sequence[PackedRun]) -> None:
        held = [item.reservation for item in packed if item.reservation is not None]
        leases = self.leases
        if leases is None or not any(map(leases.find, held)):
            await self._database.run_write(lambda connection: _write_runs(connection, packed))
            return
        async with leases.lock:
            leased = {name: run for name in held if (run := leases.find(name))}
            changes = LeaseChanges()
            await self._database.run_write(
                lambda connection: _write_runs(connection, packed, leased, changes)
            )
            leases.note_changes(leased.values(), changes)

    def _remove_written(self, batch: tuple[RunEntry, ...]) -> None:
        for entry in batch:
            del self._pending[entry.run.header.id]
        self._written += len(batch)
        self._failures_in_row = 0
        self.failure = None
        self._progress.notify()

    def _record_failure(self, error: DatabaseFailedError) -> None:
        self._failures += 1
        self._failures_in_row += 1
        if not is_transient(error) or self._failures_in_row >= _MAX_LOCKED_ATTEMPTS:
            if self.failure is None:
                _LOG.error("runs cannot be written: %s", error)
            self.failure = StoreError(str(error))  # a new error without the traceback's objects
        self._progress.notify()


class _Signal:
    """Wakes all tasks that are waiting now."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def wait(self) -> None:
        await self._event.wait()


def _write_runs(
    connection: Connection,
    packed: Sequence[PackedRun],
    leased: Mapping[str, LeasedRun] | None = None,
    changes: LeaseChanges | None = None,
) -> None:
    """Write the runs, their contents and their ledger lines, in the caller's transaction."""
    kept = _drop_deleted_runs(connection, packed)
    billed = _write_charges(connection, packed, leased or {}, changes or LeaseChanges())
    kept = _drop_stored_runs(connection, kept, billed)
    rows = [item.row for item in kept if item.row is not None]
    bodies = [
        {
            "run_id": item.row["id"],
            "format": FORMAT,
            "body": item.body,
            "created": item.row["created"],
        }
        for item in kept
        if item.row is not None and item.body is not None
    ]
    if is_partitioned(connection):
        create_partitions(connection, (row["created"] for row in rows))
    insert_rows(connection, RUNS, rows)
    insert_rows(connection, CONTENTS, bodies)
    count_values(connection, (value for item in kept for value in item.seconds))


def _drop_deleted_runs(connection: Connection, packed: Sequence[PackedRun]) -> list[PackedRun]:
    """Return the runs that have not been deleted and do not continue a deleted run."""
    rows = [item.row for item in packed if item.row is not None]
    ids = [row[name] for row in rows for name in ("id", "parent") if row[name] is not None]
    gone = forgotten_among(connection, ids, [(row["tenant"], row["created"]) for row in rows])
    if not gone:
        return list(packed)

    def is_gone(row: dict[str, Any]) -> bool:
        return not gone.isdisjoint({row["id"], row["parent"], (row["tenant"], row["created"])})

    return [item for item in packed if item.row is None or not is_gone(item.row)]


def _drop_stored_runs(
    connection: Connection, packed: Sequence[PackedRun], new: set[str]
) -> list[PackedRun]:
    """Return the runs whose ids are not stored yet, whatever the start time of a stored run.

    `new` are the ids of newly billed runs, which cannot be stored yet.
    """
    again = [
        item.row["id"] for item in packed if item.row is not None and item.row["id"] not in new
    ]
    if not again:
        return list(packed)
    query = select(RUNS.c.id).where(RUNS.c.id.in_(again))
    stored = {row[0] for row in connection.execute(query)}
    return [item for item in packed if item.row is None or item.row["id"] not in stored]


def _write_charges(
    connection: Connection,
    packed: Sequence[PackedRun],
    leased: Mapping[str, LeasedRun],
    changes: LeaseChanges,
) -> set[str]:
    """Write the ledger lines of these runs and settle their reservations.

    Returns:
        The ids of the runs that were not billed before.
    """
    new = _new_ledger_lines(connection.dialect.name)
    lines = [line for item in packed for line in item.lines]
    newly_billed = {row[0] for row in connection.execute(new, lines)} if lines else set[str]()
    spent: dict[AccountPeriod, int] = {}
    for item in packed:
        first = item.lines[0]
        if first["run_id"] not in newly_billed:
            continue
        for period in charged_periods(first):
            spent[period] = spent.get(period, 0) + item.nano
    costs = [
        (leased[item.reservation], item.nano if item.lines[0]["run_id"] in newly_billed else 0)
        for item in packed
        if item.reservation is not None and item.reservation in leased
    ]
    returned = changes.settle(connection, costs) if costs else {}
    # A leased run has its own row only if it took long.
    held = tuple(
        item.reservation
        for item in packed
        if item.reservation is not None
        and (item.reservation not in leased or leased[item.reservation].has_row)
    )
    ended = take_rows(connection, held)
    # Another process considered this process dead, or a job was given up and then run again.
    if newly_billed and (
        len(ended) < len(held) or any(row["owner"] == JOBS_OWNER for row in ended)
    ):
        for period, nano in take_back_lost(connection, newly_billed).items():
            spent[period] = spent.get(period, 0) - nano
    settle_rows(connection, ended, spent, returned)
    return newly_billed


@cache
def _new_ledger_lines(dialect: str) -> Executable:
    """Return the statement that inserts new ledger lines and returns their run ids; cached."""
    statement = insert_statement(dialect, LEDGER).on_conflict_do_nothing()
    # With a fixed page size few distinct statements are prepared and cached.
    return statement.returning(LEDGER.c.run_id).execution_options(
        insertmanyvalues_page_size=_INSERT_PAGE_ROWS
    )
