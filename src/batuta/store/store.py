"""The Store: appends, reads, lists, judges and deletes runs, and opens the other tables."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar, final

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync
from sqlalchemy import Connection, func, select

from batuta.core import Run, RunId
from batuta.errors import StoreError
from batuta.store.answers import AnswerTable
from batuta.store.approvals import ApprovalTable
from batuta.store.audit import AuditTrail
from batuta.store.budgets import LEASE_SECONDS, Budgets
from batuta.store.codec import check_format, encode_run, read_run, sql_text
from batuta.store.database import (
    Database,
    is_sqlite,
    open_database,
    parse_url,
)
from batuta.store.drift import DriftTable
from batuta.store.exploration import ExplorationTable
from batuta.store.files import FileTable
from batuta.store.forgetting import Forgetting, delete_runs
from batuta.store.judgement import Judgement, judge_run
from batuta.store.keys import ApiKeyStore
from batuta.store.leases import Leases
from batuta.store.ledger import RunCharge
from batuta.store.models import CONTENTS, RUNS, SAME_RUN
from batuta.store.refusals import RefusalLog
from batuta.store.responses import ResponseTable
from batuta.store.rows import (
    NO_ACTING_NOTE,
    NO_LABELS,
    ActingNote,
    RequestLabels,
    RunEntry,
    RunSummary,
    summary_from_entry,
    summary_from_row,
)
from batuta.store.run_filter import RunFilter
from batuta.store.run_list import RunPage, RunTotals, find_runs, list_models, sum_runs
from batuta.store.run_search import find_ids_by_prefix, run_conditions
from batuta.store.schema import (
    HEAD_REVISION,
    check_revision,
    stored_revision,
    upgrade_database,
    usable_revision,
)
from batuta.store.waiting_runs import WaitingTable
from batuta.store.writer import QUEUE_CAPACITY, RunWriter

_LOG = logging.getLogger(__name__)
_READY_SECONDS = 2.0
"""Seconds after which a database that does not answer counts as not ready."""
_PAGE_RUNS = 500
_T = TypeVar("_T")


@final
class _OpenTable(Generic[_T]):
    """A descriptor for a table of the store's database; a closed store raises StoreError."""

    def __init__(self, table: Callable[[Database], _T]) -> None:
        self._table = table

    def __get__(self, store: Store, _: type[Store]) -> _T:
        return self._table(store.database)


class Store:
    """Runs in a database; an asynchronous context manager with a task that writes the runs.

        async with Store("runs.db") as store:
            await store.append(run)

    A run that is kept can be read as soon as `append` returns. After `flush` it survives the
    process. Appending a run with an id that is stored changes nothing. For a week, a run that
    `forgetting` has erased is not stored again. With a `tenant` argument, runs of other tenants are
    not found.

    While the store is closed, methods that read or write raise StoreError.
    """

    keys = _OpenTable(ApiKeyStore)
    """Tenants and their keys."""
    forgetting = _OpenTable(Forgetting)
    """Erasure of runs, responses and tenants; call `flush` before."""
    answers = _OpenTable(AnswerTable)
    """The index of the answer cache."""
    approvals = _OpenTable(ApprovalTable)
    """Plans that wait for a person's approval."""
    audit = _OpenTable(AuditTrail)
    """The tamper-evident audit trail of actions, such as a new key or a deleted run."""
    drift = _OpenTable(DriftTable)
    """Evidence that workers have drifted from their measured quality or speed."""
    files = _OpenTable(FileTable)
    """Uploaded files."""
    waiting = _OpenTable(WaitingTable)
    """Runs paused on client tools, shared by all replicas."""
    exploration = _OpenTable(ExplorationTable)
    """Scores of systems that explore, and the daily budgets of exploration and comparisons."""

    def __init__(self, target: str | Path, *, capacity: int = QUEUE_CAPACITY) -> None:
        """Set up the store; `async with` opens it.

        Args:
            target: a path of an SQLite file, created with its folder, or a database URL.
            capacity: runs that may wait in memory before `append` waits.

        Raises:
            StoreError: the target is not a supported database.
        """
        self.url = parse_url(target)
        """The URL of the database, with its driver."""
        self._capacity = capacity
        self._database: Database | None = None
        self._writer: RunWriter | None = None
        self._budgets: Budgets | None = None
        self._responses: ResponseTable | None = None
        self._refusals: RefusalLog | None = None
        self._tasks: TaskGroup | None = None
        self._was_ready = True

    @classmethod
    def open(cls, target: str | Path, *, capacity: int = QUEUE_CAPACITY) -> Self:
        """Return the store at `target`, to be entered with `async with`; see `Store`."""
        return cls(target, capacity=capacity)

    async def __aenter__(self) -> Self:
        """Open the database and migrate it if needed.

        Raises:
            StoreError: the database cannot be used, or is newer than this code.
        """
        database = await run_sync(open_database, self.url)
        try:
            revision = await stored_revision(database)
            check_revision(revision, self.url)
            if revision != HEAD_REVISION:
                await run_sync(upgrade_database, self.url)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await database.close()
            raise
        self._database = database
        self._writer = RunWriter(database, capacity=self._capacity)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._writer.work, name="batuta store writer")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Write queued runs, then close; an error of the block is raised unwrapped.

        Raises:
            StoreError: queued runs could not be written, and the block raised no error.
        """
        assert self._tasks is not None  # noqa: S101 - entered
        failure = await self._close_all()
        try:
            handled = await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            if error is None or any(inner is not error for inner in group.exceptions):
                raise
            handled = False
        if failure is not None and error is None:
            raise failure
        return handled

    async def append(
        self,
        run: Run,
        tenant: str = "local",
        *,
        content: bool = True,
        keep: bool = True,
        charge: RunCharge | None = None,
        session: str | None = None,
        labels: RequestLabels = NO_LABELS,
        alone_usd: Decimal | None = None,
        acted: ActingNote = NO_ACTING_NOTE,
    ) -> None:
        """Queue the run to be written; wait only while the queue is full.

        Args:
            run: the run; ignored if its id is already stored.
            tenant: the owner of the run.
            content: False: store it without its texts, user, tags, turn and reason.
            keep: False: write only its ledger lines.
            charge: the payer; None: the tenant, from no budget.
            session: the id of its session; None: the run has none.
            labels: the user and tags of its request.
            alone_usd: estimated dollars that the best single worker would have cost; None: not
                known.
            acted: the worker that acted, and the reason.

        Raises:
            StoreError: the store is closed, or the queue is full because the database fails.
        """
        payer = charge or RunCharge(tenant=sql_text(tenant))
        await self._open_writer.append(
            RunEntry(
                run=run,
                tenant=tenant,
                content=content,
                charge=payer,
                keep=keep,
                session=session,
                labels=labels,
                alone_usd=alone_usd,
                acted=acted,
            )
        )

    async def flush(self) -> None:
        """Wait until every run appended so far is in the database.

        Raises:
            StoreError: the database fails; the runs stay queued and are retried.
        """
        await self._open_writer.flush()

    async def get(self, run_id: str, tenant: str | None = None) -> Run | None:
        """Return the run; None if it does not exist (for that tenant), or its content is not kept.

        Raises:
            StoreError: the database fails, or the stored bytes cannot be read.
        """
        entry = self._open_writer.find(RunId(run_id))
        if entry is not None and entry.keep and tenant in {None, entry.tenant}:
            return entry.run if entry.content else None
        body = await self.get_encoded(run_id, tenant)
        return None if body is None else await read_run(body)

    async def measure(self, run_id: str, tenant: str | None = None) -> int:
        """Return the bytes that `get_encoded` would read from the database; 0: none."""
        query = (
            select(func.length(CONTENTS.c.body).label("size"))
            .join(RUNS, SAME_RUN)
            .where(*run_conditions(run_id, tenant))
        )
        return next((int(row["size"]) for row in await self.database.fetch_rows(query)), 0)

    async def get_encoded(self, run_id: str, tenant: str | None = None) -> bytes | None:
        """Return a run as the bytes of `encode_run`; None where `get` returns None.

        The bytes are not decoded, as decoding may take long.

        Raises:
            StoreError: the database fails, another version has written the run, or a queued run
                cannot be encoded.
        """
        entry = self._open_writer.find(RunId(run_id))
        if entry is not None and entry.keep and tenant in {None, entry.tenant}:
            return encode_run(entry.run) if entry.content else None
        query = (
            select(CONTENTS.c.body, CONTENTS.c.format)
            .join(RUNS, SAME_RUN)
            .where(*run_conditions(run_id, tenant))
        )
        row = next(iter(await self.database.fetch_rows(query)), None)
        if row is None:
            return None
        check_format(row["format"])
        return row["body"]

    async def list(
        self,
        limit: int = 50,
        before: str | None = None,
        tenant: str | None = None,
    ) -> list[RunSummary]:
        """Return runs, newest first.

        Args:
            limit: maximum number.
            before: the `cursor` of the last summary of the previous page; None: the first page.
            tenant: only that tenant's; None: of all tenants.

        Raises:
            ValueError: `before` is not a cursor.
        """
        return (await self.find(RunFilter(tenant=tenant), limit, before)).rows

    async def read_all(self) -> AsyncIterator[RunSummary]:
        """Yield the runs of all tenants, newest first, reading page by page."""
        before: str | None = None
        while page := await self.list(_PAGE_RUNS, before):
            for row in page:
                yield row
            before = page[-1].cursor

    async def find(self, wanted: RunFilter, limit: int = 50, after: str | None = None) -> RunPage:
        """Return a page of the runs that a filter finds, in its order; see `find_runs`.

        Raises:
            ValueError: `after` is not a cursor of a list in this order.
        """
        await self._flush_if_possible()
        return await find_runs(self.database, wanted, limit, after)

    async def totals(self, wanted: RunFilter) -> RunTotals:
        """Return the totals of the runs that a filter finds; see `RunTotals.searched_to`."""
        await self._flush_if_possible()
        return await sum_runs(self.database, wanted)

    async def models(self) -> list[str]:
        """Return the systems of all written runs, the first `MOST_MODELS` by name."""
        return await self.database.run_read(list_models)

    async def find_session(self, run_id: str, tenant: str) -> str | None:
        """Return the session of a tenant's run; None: the run does not exist or has no session."""
        entry = self._open_writer.find(RunId(run_id))
        if entry is not None:
            return entry.session if entry.tenant == tenant else None
        rows = await self.database.fetch_rows(
            select(RUNS.c.session).where(*run_conditions(run_id, tenant))
        )
        return rows[0]["session"] if rows else None

    async def find_ids(self, prefix: str, limit: int = 2) -> list[str]:
        """Return at most `limit` ids with that prefix, newest first.

        The prefix may leave out `run_`; an empty prefix finds none.
        """
        await self._flush_if_possible()
        return await find_ids_by_prefix(self.database, prefix, limit)

    async def summary(self, run_id: str, tenant: str | None = None) -> RunSummary | None:
        """Return the run's summary; None if it does not exist (for that tenant)."""
        await self._flush_if_possible()
        entry = self._open_writer.find(RunId(run_id))
        if entry is not None and entry.keep and tenant in {None, entry.tenant}:
            return summary_from_entry(entry)
        rows = await self.database.fetch_rows(select(RUNS).where(*run_conditions(run_id, tenant)))
        return summary_from_row(rows[0]) if rows else None

    async def score(
        self, run_id: str, value: float | None, comment: str = "", tenant: str | None = None
    ) -> bool:
        """Judge a run, replacing any earlier judgement; return whether the run exists.

        If the run's content is kept, its first score also counts for the worker of its only step
        (`drift`), and for the arm of a system that explores (`exploration`).

        Args:
            run_id: the run.
            value: the score; None: remove an earlier score.
            comment: a comment on the score; empty: none.
            tenant: the tenant that must own the run; None: any tenant.

        Raises:
            ValueError: `value` is not finite.
        """
        if value is not None and not isfinite(value):
            raise ValueError(f"a score must be a finite number or None, not {value}")
        await self._open_writer.flush()
        judgement = Judgement(value, sql_text(comment) or None)
        own = run_conditions(run_id, tenant)
        return await self.database.run_write(
            lambda connection: judge_run(connection, judgement, *own)
        )

    async def score_runs(self, judgements: Mapping[RunId, Judgement]) -> None:
        """Judge many runs in one transaction, as `score` does; runs that do not exist are ignored.

        The scores must be finite.
        """
        await self._open_writer.flush()

        def write(connection: Connection) -> None:
            for run_id, judgement in judgements.items():
                plain = replace(judgement, comment=sql_text(judgement.comment or "") or None)
                judge_run(connection, plain, *run_conditions(run_id, None))

        await self.database.run_write(write)

    async def delete(self, run_id: str, tenant: str | None = None) -> bool:
        """Delete a run with its content and numbers; return whether it existed.

        Its ledger lines, its cached answer and the runs that continue it stay; `forgetting` erases
        more.
        """
        await self._open_writer.flush()
        own = run_conditions(run_id, tenant)
        return await self.database.run_write(lambda connection: delete_runs(connection, *own)) > 0

    async def is_ready(self) -> bool:
        """Return True if the database answers in time, has this version's schema, and can be used.

        False also while runs cannot be written, another program blocks an SQLite file, or the store
        is closed.
        """
        if self._database is None or self.failure is not None:
            return False
        revision = None
        with anyio.move_on_after(_READY_SECONDS):
            try:
                revision = await usable_revision(self._database)
            except StoreError as error:
                if self._was_ready:  # log once: health checks may come every second
                    _LOG.warning("the store is not ready: %s", error)
                self._was_ready = False
                return False
        self._was_ready = revision == HEAD_REVISION
        return self._was_ready

    @property
    def failure(self) -> StoreError | None:
        """Why runs cannot be written at present; None while they can."""
        return None if self._writer is None else self._writer.failure

    @property
    def pending_count(self) -> int:
        """Number of runs that are queued and not yet written."""
        return 0 if self._writer is None else self._writer.pending_count

    @property
    def lost_count(self) -> int:
        """Number of runs that the database rejected, even without content; each was logged."""
        return 0 if self._writer is None else self._writer.lost_count

    @property
    def is_shared(self) -> bool:
        """True if replicas on other machines can use the same database."""
        return not is_sqlite(self.url)

    @property
    def database(self) -> Database:
        """The database itself, for other tables."""
        return self._require_open(self._database)

    @property
    def budgets(self) -> Budgets:
        """The budgets; starts their maintenance, see `look_after_budgets`."""
        self.look_after_budgets()
        return self._require_open(self._budgets)

    def look_after_budgets(self) -> None:
        """Start the task that renews this process's reservations and ends abandoned reservations.

        A server calls this at its start, even if no key has a budget. A short-lived process need
        not, since it would not run long enough to notice that another process is dead.
        """
        database, writer = self.database, self._open_writer
        if self._budgets is None:
            writer.leases = leases = Leases(database, seconds=LEASE_SECONDS)
            self._budgets = Budgets(database, writer, leases)
            self._require_open(self._tasks).start_soon(
                self._budgets.work, name="batuta store budgets"
            )

    @property
    def refusals(self) -> RefusalLog:
        """Counts of requests that were refused by rates or budgets; starts the task that writes."""
        database = self.database
        if self._refusals is None:
            self._refusals = RefusalLog(database)
            self._require_open(self._tasks).start_soon(
                self._refusals.work, name="batuta store refusals"
            )
        return self._refusals

    @property
    def responses(self) -> ResponseTable:
        """Responses of the Responses API."""
        database = self.database
        if self._responses is None:
            self._responses = ResponseTable(database)
        return self._responses

    @property
    def _open_writer(self) -> RunWriter:
        return self._require_open(self._writer)

    def _require_open(self, part: _T | None) -> _T:
        if self._database is None or part is None:
            raise StoreError("the store is closed")
        return part

    async def _close_all(self) -> StoreError | None:
        """Write queued runs and disconnect, even if cancelled; return an error if runs are lost."""
        assert self._writer is not None  # noqa: S101 - entered
        database, failure = self.database, None
        with anyio.CancelScope(shield=True):
            if self._budgets is not None:
                await self._budgets.close()
            if self._refusals is not None:
                await self._refusals.close()
            try:
                await self._writer.close()
            except StoreError as error:
                failure = error
            else:
                if self._budgets is not None:
                    await self._budgets.give_back_leases()
            self._database = self._responses = self._refusals = self._budgets = None
            await database.close()
        return failure

    async def _flush_if_possible(self) -> None:
        """Write queued runs if possible; stored runs can be read in any case."""
        if self.pending_count and self.failure is None:
            try:
                await self._open_writer.flush()
            except StoreError:
                return
