"""The one task that writes runs: a bounded queue, emptied in batches.

A batch leaves the queue only once the database has it, so a failed write is tried again, and a
run that is queued can still be read. Writing a run twice changes nothing, so a write that may
or may not have been committed is simply repeated.
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
    """Insert rows that are not there yet; in SQLite those that are there are left as they are.

    Raises:
        IntegrityError: PostgreSQL has one of them already, or they break another rule.
    """
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        _copy_rows(connection, table, rows)
        return
    insertion = insert_statement(connection.dialect.name, table).on_conflict_do_nothing()
    connection.execute(insertion, [dict(row) for row in rows])


def _copy_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Copy the rows by the driver itself, whose errors become SQLAlchemy's."""
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
    """Return the first two characters of the SQLSTATE.

    Of values that the driver refuses, a data error's.
    """
    if isinstance(error, ValueError):
        return "22"
    return str(getattr(error, "sqlstate", None) or "")[:2]


BATCH_RUNS = 200
"""Runs of one transaction at most."""

LINGER_SECONDS = 0.2
"""Seconds that a run waits for others to share its transaction."""

QUEUE_CAPACITY = 2_000
"""Runs that wait in memory at most."""

_INSERT_PAGE_ROWS = 16
"""Rows of the ledger that one statement inserts at most."""

_MAX_LOCKED_ATTEMPTS = 3
"""Attempts in a row that may find the database locked before it counts as broken."""

_RETRY_PAUSES = (0.05, 0.2, 1.0, 5.0)
"""Seconds between attempts; the last one repeats."""

_LOG = logging.getLogger(__name__)


class RunWriter:
    """Takes runs without waiting and writes them in batches, in order."""

    def __init__(
        self, database: Database, leases: Leases | None = None, capacity: int = QUEUE_CAPACITY
    ) -> None:
        self._database = database
        self.leases = leases
        """The money that runs may have from memory; None: no budget was asked for yet."""
        self._capacity = capacity
        self._pending: dict[RunId, RunEntry] = {}  # in order; a batch being written is its head
        self._queued = 0
        self._written = 0
        self._failures = 0  # in all
        self._streak = 0  # in a row
        self._hurry = 0  # flushes that wait
        self._closing = False
        self._work = _Signal()
        self._progress = _Signal()
        self._ended = anyio.Event()
        self.failure: StoreError | None = None
        """Why runs cannot be written at the moment; None while they can."""
        self.lost_count = 0
        """Runs that the database refused for their own values; each was logged."""

    def find(self, run_id: RunId) -> RunEntry | None:
        """Return the entry of that id, if it is not yet written."""
        return self._pending.get(run_id)

    @property
    def pending_count(self) -> int:
        """Runs that are not yet written."""
        return len(self._pending)

    async def append(self, entry: RunEntry) -> None:
        """Queue the entry; wait only while the queue is full.

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
        """Wait until everything appended so far is written.

        Raises:
            StoreError: it could not be written; it stays queued and is tried again.
        """
        goal, failures = self._queued, self._failures
        self._hurry += 1
        self._work.notify()
        try:
            while self._written < goal:
                if self._ended.is_set():
                    raise StoreError("the store is closed")
                if self.failure and self._failures > failures:
                    raise self.failure
                await self._progress.wait()
        finally:
            self._hurry -= 1

    async def work(self) -> None:
        """Write until `close`; never raise for a database that fails."""
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
        """End `work` and write what is queued.

        Raises:
            StoreError: some runs could not be written; they are lost.
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
        """Wait until there is something to write and it has waited for company."""
        while not (self._pending or self._closing):
            await self._work.wait()
        with anyio.move_on_after(LINGER_SECONDS):
            while not (len(self._pending) >= BATCH_RUNS or self._hurry or self._closing):
                await self._work.wait()

    async def _pause(self) -> None:
        """Pause after a failure: a moment in any case, longer unless somebody waits."""
        await anyio.sleep(_RETRY_PAUSES[0])
        with anyio.move_on_after(_RETRY_PAUSES[min(self._streak, len(_RETRY_PAUSES)) - 1]):
            while not (self._hurry or self._closing):
                await self._work.wait()

    async def _attempt(self) -> bool:
        """Try to write the head of the queue; return whether it is done with."""
        batch = tuple(islice(self._pending.values(), BATCH_RUNS))
        try:
            # Shielded: a connection cancelled in mid-statement is thrown away with its thread.
            with anyio.CancelScope(shield=True):
                await self._write(await run_sync(_pack_all, batch))
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
            for one in packed:
                await self._write_alone(one)

    async def _write_alone(self, one: PackedRun) -> None:
        """Write the run, or only its numbers, or its money and a line in the log."""
        for attempt in (one, replace(one, body=None)):
            try:
                await self._transact((attempt,))
            except DatabaseFailedError as error:
                if not is_row_error(error):
                    raise
            else:
                return
        self.lost_count += 1
        _LOG.error("the database refused a run: %r", one.row)
        try:
            await self._transact((replace(one, row=None, body=None),))
        except DatabaseFailedError as error:
            if not is_row_error(error):
                raise
            _LOG.error("the database refused a run's money: %r", one.lines)

    async def _transact(self, packed: Sequence[PackedRun]) -> None:
        held = [one.reservation for one in packed if one.reservation is not None]
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
        self._streak = 0
        self.failure = None
        self._progress.notify()

    def _record_failure(self, error: DatabaseFailedError) -> None:
        self._failures += 1
        self._streak += 1
        if not is_transient(error) or self._streak >= _MAX_LOCKED_ATTEMPTS:
            if self.failure is None:
                _LOG.error("runs cannot be written: %s", error)
            self.failure = StoreError(str(error))  # without what its traceback holds
        self._progress.notify()


class _Signal:
    """Wakes everyone who waits at this moment."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def wait(self) -> None:
        await self._event.wait()


def _pack_all(batch: tuple[RunEntry, ...]) -> list[PackedRun]:
    return [pack_run(entry) for entry in batch]


def _write_runs(
    connection: Connection,
    packed: Sequence[PackedRun],
    leased: Mapping[str, LeasedRun] | None = None,
    changes: LeaseChanges | None = None,
) -> None:
    """Write the runs, what they say, and their money, in the caller's transaction."""
    kept = _drop_deleted_runs(connection, packed)
    billed = _write_charges(connection, packed, leased or {}, changes or LeaseChanges())
    kept = _drop_stored_runs(connection, kept, billed)
    rows = [one.row for one in kept if one.row is not None]
    bodies = [
        {
            "run_id": one.row["id"],
            "format": FORMAT,
            "body": one.body,
            "created": one.row["created"],
        }
        for one in kept
        if one.row is not None and one.body is not None
    ]
    if is_partitioned(connection):
        create_partitions(connection, (row["created"] for row in rows))
    insert_rows(connection, RUNS, rows)
    insert_rows(connection, CONTENTS, bodies)
    count_values(connection, (value for one in kept for value in one.seconds))


def _drop_deleted_runs(connection: Connection, packed: Sequence[PackedRun]) -> list[PackedRun]:
    """Return the runs that nobody deleted meanwhile, with what they continued from."""
    rows = [one.row for one in packed if one.row is not None]
    ids = [row[name] for row in rows for name in ("id", "parent") if row[name] is not None]
    gone = forgotten_among(connection, ids, [(row["tenant"], row["created"]) for row in rows])
    if not gone:
        return list(packed)

    def is_gone(row: dict[str, Any]) -> bool:
        return not gone.isdisjoint({row["id"], row["parent"], (row["tenant"], row["created"])})

    return [one for one in packed if one.row is None or not is_gone(one.row)]


def _drop_stored_runs(
    connection: Connection, packed: Sequence[PackedRun], new: set[str]
) -> list[PackedRun]:
    """Return the runs that are not stored yet, whatever time they tell."""
    again = [one.row["id"] for one in packed if one.row is not None and one.row["id"] not in new]
    if not again:
        return list(packed)
    query = select(RUNS.c.id).where(RUNS.c.id.in_(again))
    stored = {row[0] for row in connection.execute(query)}
    return [one for one in packed if one.row is None or one.row["id"] not in stored]


def _write_charges(
    connection: Connection,
    packed: Sequence[PackedRun],
    leased: Mapping[str, LeasedRun],
    changes: LeaseChanges,
) -> set[str]:
    """Return the money of these runs; the ids of those that were not billed before."""
    new = _new_ledger_lines(connection.dialect.name)
    lines = [line for one in packed for line in one.lines]
    found = {row[0] for row in connection.execute(new, lines)} if lines else set[str]()
    spent: dict[AccountPeriod, int] = {}
    for one in packed:
        first = one.lines[0]
        if first["run_id"] not in found:
            continue
        for period in charged_periods(first):
            spent[period] = spent.get(period, 0) + one.nano
    costs = [
        (leased[one.reservation], one.nano if one.lines[0]["run_id"] in found else 0)
        for one in packed
        if one.reservation is not None and one.reservation in leased
    ]
    returned = changes.settle(connection, costs) if costs else {}
    # A leased run has a row of its own only if it went on for long.
    held = tuple(
        one.reservation
        for one in packed
        if one.reservation is not None
        and (one.reservation not in leased or leased[one.reservation].has_row)
    )
    ended = take_rows(connection, held)
    # Somebody thought the process dead, or gave up a job that was run again.
    if found and (len(ended) < len(held) or any(row["owner"] == JOBS_OWNER for row in ended)):
        for period, nano in take_back_lost(connection, found).items():
            spent[period] = spent.get(period, 0) - nano
    settle_rows(connection, ended, spent, returned)
    return found


@cache
def _new_ledger_lines(dialect: str) -> Executable:
    """Insert lines that are not there yet, and tell which runs' they were."""
    statement = insert_statement(dialect, LEDGER).on_conflict_do_nothing()
    # Without a page each number of rows would be a statement of its own, prepared and kept.
    return statement.returning(LEDGER.c.run_id).execution_options(
        insertmanyvalues_page_size=_INSERT_PAGE_ROWS
    )
