"""Jobs that survive the process: a table has them, `JobRecords` keeps what they paid for.

The process that runs a job renews its claim; another takes over when it is silent. What a job's
calls gave is kept by what was asked, so whoever takes it over pays for no finished call again: see
design/0003-jobs.md.
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
from batuta.jobs.dispatcher import JobDispatcher, JobPlaces, Notifier
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
from batuta.jobs.records import JobRecords, create_tables
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
"""Jobs that one process runs at the same time."""
WAITING_PER_TENANT = 1000
"""Jobs of one tenant that may wait."""
KEEP_DAYS = 30.0
"""How long a job can be asked for after it has ended."""
_POLL_SECONDS = 0.25
"""Seconds between looks at a job that another process may be running."""
_RENEWAL_SECONDS = 0.5
"""Seconds between renewals of claims on a shared database."""
_RETRY_SECONDS = 0.5
"""Seconds before a job is taken up again that the database stopped; each time twice as long."""
_MAX_RETRY_SECONDS = 30.0
MAX_RECOVERIES = 20
"""Times that a job is taken up again by the same process while the database fails."""
MAX_UNENDED_ATTEMPTS = 2
"""The most attempts of a job that may begin at one point of it and never end."""
T = TypeVar("T")


class JobFailed(Exception):
    """The reason for which a job is not run again, in a sentence."""


@dataclass(slots=True)
class _RunningJob:
    """A job that is being run."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancelled when the job is."""
    claim: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancelled when another process has taken the job over."""
    ended: anyio.Event = field(default_factory=anyio.Event)


@asynccontextmanager
async def open_jobs(
    target: str | Path,
    *,
    concurrency: int = CONCURRENCY,
    kept_days: float = KEEP_DAYS,
    most_waiting: int = WAITING_PER_TENANT,
) -> AsyncGenerator[Jobs]:
    """Open the jobs of a database; at the end let go of what is run: the next process takes it up.

    Args:
        target: a path of an SQLite file, created with its folder, or a database URL.
        concurrency: jobs that run at the same time.
        kept_days: how long a job is kept after its end.
        most_waiting: jobs of one tenant that may wait.

    Raises:
        StoreError: another process has it, or it cannot be used.
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
        await jobs.let_go()
        try:
            yield jobs
        finally:
            with anyio.CancelScope(shield=True), suppress(StoreError):
                await jobs.let_go()


@final
class Jobs:
    """Keeps jobs in a database, opened by `open_jobs`, and runs them.

    On SQLite one process runs them; on PostgreSQL many may, and take over from one that died.

    Laws: a job that `submit` took in ends; places that come free go to tenants by turns; a job
    whose owner the gate does not let in waits, and holds up no job of another owner; its events
    are numbered from 0 without a gap; `cancel` stops a paid call within a second, and is
    idempotent; a state that is final does not change; another tenant's job does not exist.
    """

    def __init__(
        self, database: Database, *, concurrency: int, kept_days: float, most_waiting: int
    ) -> None:
        self._database = database
        self._shared = not is_sqlite(database.url)
        """Whether other processes may run its jobs too."""
        self._concurrency = concurrency
        self._kept_days = kept_days
        self.most_waiting = most_waiting
        """Jobs of one tenant that may wait."""
        self._entering: Counter[str] = Counter()
        """Jobs that are about to be submitted here, by tenant."""
        self._records = JobRecords(database)
        self._table = JobTable(database, f"batuta-{uuid4()}" if self._shared else "local")
        self._running: dict[str, _RunningJob] = {}
        self._notifier = Notifier()
        self._dispatcher: JobDispatcher | None = None
        self._asks_in_vain = False
        self._suspects = anyio.Lock()
        """Held by a job whose process died: such jobs run one at a time, so that after another
        death it is known which of them caused it."""

    async def let_go(self) -> None:
        """Let the jobs wait again that this process was running, or one before it on its file."""
        await self._table.requeue_own()

    @asynccontextmanager
    async def enter_queue(self, tenant: str) -> AsyncGenerator[bool]:
        """Say whether one more job of the tenant may wait, which the block then submits.

        However many are submitted here at once, no more wait than may; replicas that do so in the
        same moment may pass it by as many as they submit.

        Raises:
            StoreError: the database fails.
        """
        self._entering[tenant] += 1
        try:
            waiting = await self._table.count_waiting(tenant, self.most_waiting)
            yield waiting + self._entering[tenant] <= self.most_waiting
        finally:
            self._entering[tenant] -= 1
            self._entering += Counter()  # forgets who submits nothing

    async def submit(self, job: Job) -> None:
        """Take the job in; once this returns it will be run.

        Raises:
            StoreError: it could not be kept.
        """
        await self._table.add(job)
        if self._dispatcher is not None:
            self._dispatcher.look_again()

    async def status(self, job_id: str, tenant: str) -> JobStatus | None:
        """Return where the job stands; None if there is none."""
        found = await self._table.find(job_id, tenant)
        return None if found is None else found.status

    async def result(self, job_id: str, tenant: str) -> Json | None:
        """Return the ending's result; None as long as there is none."""
        found = await self._table.find(job_id, tenant)
        return None if found is None else found.result

    async def cancel(self, job_id: str, tenant: str) -> JobStatus | None:
        """Stop the job and its paid calls; None if there is none."""
        status = await self.status(job_id, tenant)
        if status is None or status.state.is_final:
            return status
        # First the word on disk: between the two a crash must not bring the job back.
        await self._table.cancel(job_id)
        if (running := self._running.get(job_id)) is not None:
            running.scope.cancel()
        await self._notifier.notify(job_id)
        return await self.status(job_id, tenant)

    async def events(self, job_id: str, tenant: str, after: int = -1) -> AsyncIterator[JobEvent]:
        """Tell the events numbered above `after`, as they come, until the job has ended."""
        while True:
            status = await self.status(job_id, tenant)  # before the events, or the last is missed
            if status is None:
                return
            for event in await self._records.events(job_id, after):
                after = event.number
                yield event
            if status.state.is_final:
                return
            await self._notifier.wait(job_id, _POLL_SECONDS)

    async def forget(self, job_id: str, tenant: str) -> bool:
        """Cancel the job and erase it with its events; tell whether there was one."""
        if await self.cancel(job_id, tenant) is None:
            return False
        if (running := self._running.get(job_id)) is not None:
            await running.ended.wait()
        await self._table.erase(job_id)
        await self._database.checkpoint()
        return True

    async def forget_tenant(self, tenant: str) -> int:
        """Cancel and erase every job of the tenant; return how many there were."""
        total = 0
        while found := await self._table.find_jobs_of(tenant):
            total += sum([await self.forget(job_id, tenant) for job_id in found])
        return total

    async def work(self, perform: JobHandler, gate: JobGate = OPEN_GATE) -> None:
        """Run jobs until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._dispatcher = JobDispatcher(
                JobPlaces(self._concurrency),
                self._find_owners,
                partial(self._start_next, perform, tasks),
            )
            tasks.start_soon(self._sweep)
            if self._shared:
                tasks.start_soon(self._keep_claims)
            await self._dispatcher.run(gate)

    async def _find_owners(self) -> Collection[JobOwner]:
        """Return the owners of waiting jobs; none while the database cannot be asked."""
        return await self._try_to_ask(self._table.waiting_owners()) or ()

    async def _start_next(
        self, perform: JobHandler, tasks: TaskGroup, owner: JobOwner
    ) -> anyio.Event | None:
        """Start the owner's oldest waiting job, and return the event of its end."""
        job = await self._try_to_ask(self._table.claim(owner))
        # One that is being run here waited again because this process was silent for a while.
        if job is None or job.id in self._running:
            return None
        running = self._running[job.id] = _RunningJob()
        tasks.start_soon(self._run_job, perform, job, running)
        return running.ended

    async def _try_to_ask(self, question: Awaitable[T]) -> T | None:
        """Return the table's answer; None if it failed, to be asked again later."""
        try:
            answer = await question
        except StoreError as error:
            if not self._asks_in_vain:  # it is asked every second
                logger.warning("no waiting job can be started now: %s", error)
            self._asks_in_vain = True
            return None
        self._asks_in_vain = False
        return answer

    async def _run_job(self, perform: JobHandler, job: Job, running: _RunningJob) -> None:
        """Run one job to its ending, its cancellation, or the end of this process."""
        try:
            with running.claim, running.scope:
                async with AsyncExitStack() as turn:
                    await self._end(job.id, await self._ending_of(perform, job, running, turn))
        finally:
            del self._running[job.id]
            running.ended.set()
            await self._notifier.notify(job.id)
            with anyio.CancelScope(shield=True), suppress(StoreError):
                await self._records.end_attempt(job.id)

    async def _ending_of(
        self, perform: JobHandler, job: Job, running: _RunningJob, turn: AsyncExitStack
    ) -> JobEnding | str:
        """Return how the job was run, or why it failed."""
        try:
            await self._begin_attempt(job.id, turn)
            return await self._perform_with_retries(perform, job, running.scope)
        except JobFailed as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - a fault must end the job, not the server
            kind = type(error).__name__
            logger.error("job %s failed: %s", job.id, kind)  # noqa: TRY400 - no content in logs
            return f"the job failed: {kind}"

    async def _end(self, job_id: str, ending: JobEnding | str) -> None:
        """Write the job's ending down, as soon as the database lets it."""
        write_ending = (
            partial(self._table.end, job_id, JobState.FAILED, None, ending)
            if isinstance(ending, str)
            else partial(self._table.end, job_id, ending.state, ending.result)
        )
        while True:
            try:
                await write_ending()
            except StoreError as error:
                logger.warning("the ending of job %s waits for the database: %s", job_id, error)
                await anyio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _begin_attempt(self, job_id: str, turn: AsyncExitStack) -> None:
        """Note that the job is run now; one with which a process died waits for its turn."""
        while True:
            try:
                earlier = await self._records.unended_attempts(job_id)
                if earlier >= MAX_UNENDED_ATTEMPTS:
                    raise JobFailed(
                        f"the job was run {earlier} times and the server ended or froze each time; "
                        "it is not run again"
                    )
                if earlier:
                    await turn.enter_async_context(self._suspects)
                await self._records.begin_attempt(job_id)
            except StoreError as error:
                logger.warning("job %s waits for the database: %s", job_id, error)
                await turn.aclose()
                await anyio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _perform_with_retries(
        self, perform: JobHandler, job: Job, scope: anyio.CancelScope
    ) -> JobEnding:
        """Return how it was run; while the database fails it is run again, as after a crash."""
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
        raise StoreError("the database failed too often")

    async def _sweep(self) -> None:
        """Forget every hour what ended long ago."""
        complaint = "old jobs are not forgotten now"
        await sweep_hourly(self._database, JOBS_TABLE.c.created, self._forget_old, complaint)

    async def _forget_old(self) -> None:
        limit = STEADY_CLOCK() - self._kept_days * 86_400
        while found := await self._table.find_ended_before(limit):
            for job_id in found:
                await self._table.erase(job_id)

    async def _keep_claims(self) -> None:
        """Renew what runs here, and let wait again what no process renews."""
        failed, importing = False, True
        while True:
            try:
                await self._renew_claims()
                await self._table.requeue_silent()
                if importing:  # a server of an earlier version may still run some
                    moved, left = await self._database.run_write(import_dbos_jobs)
                    importing = moved + left > 0
                failed = False
            except StoreError as error:
                if not failed:
                    logger.warning("jobs that run here cannot be renewed: %s", error)
                failed = True
            await anyio.sleep(_RENEWAL_SECONDS)

    async def _renew_claims(self) -> None:
        """Stop what was cancelled, or taken over, elsewhere."""
        mine = tuple(self._running.items())
        if not mine:
            return
        names = [job_id for job_id, _ in mine]
        gone = set(names) - await self._table.renew(names)
        others = await self._table.find_unended(gone) if gone else set[str]()
        for job_id, running in mine:
            if job_id in others:
                running.claim.cancel()
            elif job_id in gone:
                running.scope.cancel()
