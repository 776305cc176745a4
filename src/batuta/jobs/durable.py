"""Jobs that survive the process: `JobTable` stores jobs, `JobRecords` their finished calls.

On PostgreSQL the process that runs a job renews its claim on the job; if it stops doing so, another
process takes the job over. Results of finished calls are stored under a key of the request, so the
new process pays for no stored call again: see design/0003-jobs.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar, final
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from batuta.errors import StoreError
from batuta.jobs.checkpoint import Checkpoint, JobHandler
from batuta.jobs.dbos_import import import_dbos_jobs
from batuta.jobs.dispatcher import JobDispatcher, JobSlots, Notifier
from batuta.jobs.protocol import (
    OPEN_GATE,
    Job,
    JobEnding,
    JobEvent,
    JobGate,
    JobOwner,
    JobState,
    JobStatus,
    Json,
)
from batuta.jobs.records import JobRecords, create_tables, encode_json
from batuta.jobs.table import JOBS_TABLE, JobTable
from batuta.store.database import (
    Database,
    is_sqlite,
    open_database,
    parse_url,
)
from batuta.store.process_lock import ProcessLock
from batuta.store.steady_clock import STEADY_CLOCK, sweep_hourly

logger = logging.getLogger(__name__)

CONCURRENCY = 16
"""Maximum number of jobs that a process runs at the same time."""
WAITING_PER_TENANT = 1000
"""Maximum number of waiting jobs of a tenant."""
KEEP_DAYS = 30.0
"""Days for which a job is kept after it has ended."""
_POLL_SECONDS = 0.25
"""Seconds between polls of a job that another process may be running."""
_RENEWAL_SECONDS = 0.5
"""Seconds between renewals of claims on a shared database."""
_RETRY_SECONDS = 0.5
"""Seconds before a retry after a database failure; doubled for each rerun of a job."""
_MAX_RETRY_SECONDS = 30.0
MAX_RECOVERIES = 20
"""Maximum attempts at a job by one process while the database fails."""
MAX_UNENDED_ATTEMPTS = 2
"""Number of attempts that died without storing a further call, after which a job fails."""
T = TypeVar("T")


class JobFailed(Exception):
    """A job is not run again; the message is the reason, as a sentence."""


@dataclass(slots=True)
class _RunningJob:
    """A job that is being run."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancelled when the job is cancelled."""
    claim: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancelled when another process has taken the job over."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    """Set when this process no longer runs the job."""


@asynccontextmanager
async def open_jobs(
    target: str | Path,
    *,
    concurrency: int = CONCURRENCY,
    kept_days: float = KEEP_DAYS,
    most_waiting: int = WAITING_PER_TENANT,
) -> AsyncGenerator[Jobs]:
    """Open the jobs of a database; on exit requeue the running jobs for the next process.

    Args:
        target: a path of an SQLite file, created with its folder, or a database URL.
        concurrency: maximum number of jobs that run at the same time.
        kept_days: days for which a job is kept after it has ended.
        most_waiting: waiting jobs allowed per tenant.

    Raises:
        StoreError: another process has opened the jobs of the SQLite file, or the database cannot
            be used.
    """
    url = parse_url(target)
    async with AsyncExitStack() as opened:
        if is_sqlite(url):
            path = Path(str(url.database))
            lock = await run_sync(ProcessLock, path.with_name(f"{path.name}.lock"))
            opened.callback(lock.release)
        database = await run_sync(partial(open_database, url, synchronous="FULL"))
        opened.push_async_callback(database.close)
        await database.run_write(create_tables)
        while (await database.run_write(import_dbos_jobs))[0]:
            pass
        jobs = Jobs(
            database, concurrency=concurrency, kept_days=kept_days, most_waiting=most_waiting
        )
        await jobs.requeue_own()
        try:
            yield jobs
        finally:
            with anyio.CancelScope(shield=True), suppress(StoreError):
                await jobs.requeue_own()


@final
class Jobs:
    """Stores jobs in a database and runs them; created by `open_jobs`.

    On SQLite one process runs the jobs. On PostgreSQL several processes may run jobs, and each
    takes over the jobs of a process that died. All methods but `work` raise StoreError if the
    database fails.

    Laws: every job accepted by `submit` ends, unless it is erased; a free slot goes to the tenant
    with the fewest jobs in this process, within the limits of `JobSlots`; a job waits while the
    gate does not admit its owner, without delaying other owners' jobs; a job's events are numbered
    from 0 without a gap; `cancel` stops a paid call within a second and is idempotent; a final
    state does not change; a tenant cannot see another tenant's jobs.
    """

    def __init__(
        self, database: Database, *, concurrency: int, kept_days: float, most_waiting: int
    ) -> None:
        self._database = database
        self._shared = not is_sqlite(database.url)
        """Whether other processes may run jobs of this database too."""
        self._concurrency = concurrency
        self._kept_days = kept_days
        self.most_waiting = most_waiting
        """Waiting jobs allowed per tenant."""
        self._entering: Counter[str] = Counter()
        """Jobs that this process is about to submit, by tenant."""
        self._records = JobRecords(database)
        self._table = JobTable(database, f"batuta-{uuid4()}" if self._shared else "local")
        self._running: dict[str, _RunningJob] = {}
        self._notifier = Notifier()
        self._dispatcher: JobDispatcher | None = None
        self._database_failing = False
        self._suspects = anyio.Lock()
        """Held while a job runs after an attempt that never ended. Such jobs run one at a time, so
        that the death of a process can be attributed to a job."""

    async def requeue_own(self) -> None:
        """Requeue the jobs that this process, or on SQLite an earlier process, was running."""
        await self._table.requeue_own()

    @asynccontextmanager
    async def enter_queue(self, tenant: str) -> AsyncGenerator[bool]:
        """Yield whether the queue has room for a job of the tenant, which the block then submits.

        This process alone never exceeds the queue limit; concurrent replicas may exceed it by the
        jobs that they submit at the same time.
        """
        self._entering[tenant] += 1
        try:
            waiting = await self._table.count_waiting(tenant, self.most_waiting)
            yield waiting + self._entering[tenant] <= self.most_waiting
        finally:
            self._entering[tenant] -= 1
            self._entering += Counter()  # drops the tenants at zero

    async def submit(self, job: Job) -> None:
        """Queue the job; once this returns, the job will be run, unless it is cancelled.

        A job with an id that exists already is ignored.
        """
        await self._table.add(job)
        if self._dispatcher is not None:
            self._dispatcher.look_again()

    async def status(self, job_id: str, tenant: str) -> JobStatus | None:
        """Return the job's status; None if the tenant has no such job."""
        found = await self._table.find(job_id, tenant)
        return None if found is None else found.status

    async def result(self, job_id: str, tenant: str) -> Json | None:
        """Return the job's result; None if it has none, or the tenant has no such job.

        A job has a result when it has ended with a `JobEnding`.
        """
        found = await self._table.find(job_id, tenant)
        return None if found is None else found.result

    async def cancel(self, job_id: str, tenant: str) -> JobStatus | None:
        """Stop the job and its paid calls, unless it has ended, and return the job's status.

        A process that runs the job elsewhere stops it when it next renews its claims. None: the
        tenant has no such job.
        """
        status = await self.status(job_id, tenant)
        if status is None or status.state.is_final:
            return status
        # The database comes first, so that a crash before the next line does not resume the job.
        await self._table.cancel(job_id)
        if (running := self._running.get(job_id)) is not None:
            running.scope.cancel()
        await self._notifier.notify(job_id)
        return await self.status(job_id, tenant)

    async def events(self, job_id: str, tenant: str, after: int = -1) -> AsyncIterator[JobEvent]:
        """Yield the events numbered above `after` as they are stored, until the job has ended.

        If the tenant has no such job, there are none.
        """
        while True:
            status = await self.status(job_id, tenant)  # read before the events, to miss none
            if status is None:
                return
            for event in await self._records.events(job_id, after):
                after = event.number
                yield event
            if status.state.is_final:
                return
            await self._notifier.wait(job_id, _POLL_SECONDS)

    async def forget(self, job_id: str, tenant: str) -> bool:
        """Cancel the job and erase it with its events; return True if it existed."""
        if await self.cancel(job_id, tenant) is None:
            return False
        if (running := self._running.get(job_id)) is not None:
            await running.ended.wait()
        await self._table.erase(job_id)
        await self._database.checkpoint()
        return True

    async def forget_tenant(self, tenant: str) -> int:
        """Cancel and erase every job of the tenant; return the number of jobs erased."""
        total = 0
        while found := await self._table.find_jobs_of(tenant):
            total += sum([await self.forget(job_id, tenant) for job_id in found])
        return total

    async def work(self, perform: JobHandler, gate: JobGate = OPEN_GATE) -> None:
        """Run jobs by `perform` until cancelled, and erase old jobs every hour."""
        async with anyio.create_task_group() as tasks:
            self._dispatcher = JobDispatcher(
                JobSlots(self._concurrency),
                self._find_owners,
                partial(self._start_next, perform, tasks),
            )
            tasks.start_soon(self._sweep)
            if self._shared:
                tasks.start_soon(self._keep_claims)
            await self._dispatcher.run(gate)

    async def _find_owners(self) -> Collection[JobOwner]:
        """Return the owners of waiting jobs; none while the database fails."""
        return await self._try_query(self._table.waiting_owners()) or ()

    async def _start_next(
        self, perform: JobHandler, tasks: TaskGroup, owner: JobOwner
    ) -> anyio.Event | None:
        """Start the owner's oldest waiting job; return an event that is set when the job ends.

        None: no job could be claimed.
        """
        job = await self._try_query(self._table.claim(owner))
        # A claimed job may already run in this process: its claim lapsed and it was requeued.
        if job is None or job.id in self._running:
            return None
        running = self._running[job.id] = _RunningJob()
        tasks.start_soon(self._run_job, perform, job, running)
        return running.ended

    async def _try_query(self, query: Awaitable[T]) -> T | None:
        """Return the query's result; None if the database fails: the caller tries again later."""
        try:
            result = await query
        except StoreError as error:
            if not self._database_failing:  # warn once: queries are repeated every second
                logger.warning("no waiting job can be started now: %s", error)
            self._database_failing = True
            return None
        self._database_failing = False
        return result

    async def _run_job(self, perform: JobHandler, job: Job, running: _RunningJob) -> None:
        """Run a job until it ends, is cancelled or taken over, or this process ends."""
        try:
            with running.claim, running.scope:
                async with AsyncExitStack() as held:
                    await self._end(job.id, *await self._ending_of(perform, job, running, held))
        finally:
            del self._running[job.id]
            running.ended.set()
            await self._notifier.notify(job.id)
            with anyio.CancelScope(shield=True), suppress(StoreError):
                await self._records.end_attempt(job.id)

    async def _ending_of(
        self, perform: JobHandler, job: Job, running: _RunningJob, held: AsyncExitStack
    ) -> tuple[JobState, str | None, str | None]:
        """Run the job; return the final state, the result as JSON, and the reason for a failure."""
        try:
            await self._begin_attempt(job.id, held)
            ending = await self._perform_with_retries(perform, job, running.scope)
            return ending.state, encode_json(ending.result), None
        except JobFailed as error:
            return JobState.FAILED, None, str(error)
        except Exception as error:  # noqa: BLE001 - a fault must end the job, not the server
            kind = type(error).__name__
            logger.error("job %s failed: %s", job.id, kind)  # noqa: TRY400 - no content in logs
            return JobState.FAILED, None, f"the job failed: {kind}"

    async def _end(
        self, job_id: str, state: JobState, result: str | None, error: str | None
    ) -> None:
        """Store the job's ending; retry until the database accepts it."""
        while True:
            try:
                await self._table.end(job_id, state, result, error)
            except StoreError as failure:
                logger.warning("the ending of job %s waits for the database: %s", job_id, failure)
                await anyio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _begin_attempt(self, job_id: str, held: AsyncExitStack) -> None:
        """Record an attempt; if an earlier attempt never ended, take the lock `_suspects`.

        Raises:
            JobFailed: `MAX_UNENDED_ATTEMPTS` attempts never ended and stored no further call.
        """
        while True:
            try:
                earlier = await self._records.unended_attempts(job_id)
                if earlier >= MAX_UNENDED_ATTEMPTS:
                    raise JobFailed(
                        f"the job was run {earlier} times and the server died or froze each time, "
                        "so it is not run again"
                    )
                if earlier:
                    await held.enter_async_context(self._suspects)
                await self._records.begin_attempt(job_id)
            except StoreError as error:
                logger.warning("job %s waits for the database: %s", job_id, error)
                await held.aclose()
                await anyio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _perform_with_retries(
        self, perform: JobHandler, job: Job, scope: anyio.CancelScope
    ) -> JobEnding:
        """Run the job and return its ending; if the database fails, run it again with stored calls.

        Raises:
            StoreError: the database failed `MAX_RECOVERIES` times.
        """
        pause = _RETRY_SECONDS
        for _ in range(MAX_RECOVERIES):
            try:
                stored_events = await self._records.count_events(job.id)
                point = Checkpoint(
                    job,
                    self._records,
                    stored_events=stored_events,
                    notify=self._notifier.notify,
                    scope=scope,
                )
                return await perform(job, point)
            except* StoreError as errors:
                logger.warning("job %s waits for the database: %s", job.id, errors.exceptions[0])
            await anyio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_SECONDS)
        raise StoreError("the database failed too many times")

    async def _sweep(self) -> None:
        complaint = "old jobs cannot be erased now"
        await sweep_hourly(self._database, JOBS_TABLE.c.created, self._forget_old, complaint)

    async def _forget_old(self) -> None:
        limit = STEADY_CLOCK() - self._kept_days * 86_400
        while found := await self._table.find_ended_before(limit):
            for job_id in found:
                await self._table.erase(job_id)

    async def _keep_claims(self) -> None:
        """Renew the claims of this process, and requeue the jobs with an expired claim."""
        failed, importing = False, True
        while True:
            try:
                await self._renew_claims()
                await self._table.requeue_silent()
                if importing:  # a server of an earlier version may still be running DBOS jobs
                    moved, left = await self._database.run_write(import_dbos_jobs)
                    importing = moved + left > 0
                failed = False
            except StoreError as error:
                if not failed:
                    logger.warning("the claims of running jobs cannot be renewed: %s", error)
                failed = True
            await anyio.sleep(_RENEWAL_SECONDS)

    async def _renew_claims(self) -> None:
        """Renew this process's claims; stop jobs that were cancelled or taken over elsewhere."""
        mine = tuple(self._running.items())
        if not mine:
            return
        names = [job_id for job_id, _ in mine]
        lost = set(names) - await self._table.renew(names)
        taken_over = await self._table.find_unended(lost) if lost else set[str]()
        for job_id, running in mine:
            if job_id in taken_over:
                running.claim.cancel()
            elif job_id in lost:
                running.scope.cancel()
