"""Jobs that survive the process: DBOS restarts them, `JobRecords` keeps what they paid for.

DBOS is started only when there is something to do for it. Its workflow is one plain function that
hands the job to the event loop and waits in a thread; its own step numbers are not used, because
they are drawn in the order in which steps happen to be awaited, and a recovery may draw them in
another: see design/0003-jobs.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, final
from uuid import uuid4

import anyio
from anyio.to_thread import run_sync
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from batuta.errors import StoreError
from batuta.jobs.checkpoint import DurableCheckpoint
from batuta.jobs.dbos_runner import (
    MAX_RECOVERIES,
    DbosRunner,
    JobFailed,
    JobInterrupted,
    StoredJob,
    ending_json,
)
from batuta.jobs.heartbeats import Heartbeats
from batuta.jobs.job_queue import JobQueue, QueuedJob, resolve_future
from batuta.jobs.notifier import Notifier
from batuta.jobs.protocol import Job, JobEvent, JobHandler, JobStatus, Json
from batuta.jobs.records import JobRecords, is_sqlite_file
from batuta.store.process_lock import ProcessLock

logger = logging.getLogger(__name__)

CONCURRENCY = 16
"""Jobs that one process runs at the same time."""
KEEP_DAYS = 30.0
"""How long a job can be asked for after it has ended."""
_POLL_SECONDS = 0.25
"""Seconds between looks at a job that another process may be running."""
_HEARTBEAT_SECONDS = 0.5
"""Seconds between signs of life on a shared database."""
_SWEEP_SECONDS = 3600.0
_RETRY_SECONDS = 0.5
"""Seconds before a job is taken up again that the database stopped; each time twice as long."""
_MAX_RETRY_SECONDS = 30.0
EXECUTOR_NAME = "local"
"""The name under which a restarted process finds what it left."""


@dataclass(slots=True)
class _RunningJob:
    """A job that is being run."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended_event: anyio.Event = field(default_factory=anyio.Event)
    endings: list[Future[Json]] = field(default_factory=list[Future[Json]])
    """Told its outcome: more than one, where it was taken up again while it was being run."""


@final
class DurableJobs:
    """Jobs in a database; an asynchronous context manager.

    On SQLite one process runs them; on PostgreSQL many may, and take over from one that died.
    """

    durable = True

    def __init__(
        self, url: URL, *, concurrency: int = CONCURRENCY, kept_days: float = KEEP_DAYS
    ) -> None:
        """Opens nothing yet.

        Args:
            url: the database, without a driver's name.
            concurrency: jobs that run at the same time.
            kept_days: how long a job is kept after its end.
        """
        self._url = url
        self._shared = not is_sqlite_file(url)
        """Whether other processes may run its jobs too."""
        self._concurrency = concurrency
        self._kept_days = kept_days
        self._folder_lock: ProcessLock | None = None
        self._records: JobRecords | None = None
        self._runner: DbosRunner | None = None
        self._heartbeats: Heartbeats | None = None
        self._starting = anyio.Lock()
        self._known = False
        """Whether the database was there before us, perhaps with jobs to be taken up again."""
        self._running: dict[str, _RunningJob] = {}
        self._notifier = Notifier()
        self._queue = JobQueue()

    async def __aenter__(self) -> Self:
        """Claims and opens the database.

        Raises:
            StoreError: another process has it, or it cannot be used.
        """
        await run_sync(self._open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Lets go of what is being run: the next process takes it up again."""
        self._queue.close()
        with anyio.CancelScope(shield=True):
            await run_sync(self._close)

    async def submit(self, job: Job) -> None:
        """Takes the job in.

        Raises:
            StoreError: it could not be kept.
        """
        machine = await self._ensure_runner()
        await run_sync(
            self._open_records.check_connection
        )  # the machine would wait for the database without end
        try:
            await run_sync(machine.enqueue, job)
        except SQLAlchemyError as error:
            raise StoreError(f"the job could not be kept: {type(error).__name__}") from None

    async def status(self, job_id: str, tenant: str) -> JobStatus | None:
        """Where the job stands; None if there is none."""
        found = await self._find(job_id, tenant)
        return None if found is None else found.status

    async def result(self, job_id: str, tenant: str) -> Json | None:
        """The ending's result; None as long as there is none."""
        found = await self._find(job_id, tenant)
        return None if found is None else found.result

    async def cancel(self, job_id: str, tenant: str) -> JobStatus | None:
        """Stops the job and its paid calls; None if there is none."""
        status = await self.status(job_id, tenant)
        if status is None or status.state.is_final:
            return status
        # First the word on disk: between the two a crash must not bring the job back.
        await run_sync((await self._ensure_runner()).cancel, job_id)
        self._stop(job_id)
        await self._notifier.notify(job_id)
        return await self.status(job_id, tenant)

    async def events(self, job_id: str, tenant: str, after: int = -1) -> AsyncIterator[JobEvent]:
        """The events numbered above `after`, as they come, until the job has ended."""
        while True:
            status = await self.status(job_id, tenant)  # before the events, or the last is missed
            if status is None:
                return
            for event in await run_sync(self._open_records.events, job_id, after):
                after = event.number
                yield event
            if status.state.is_final:
                return
            await self._notifier.wait(job_id, _POLL_SECONDS)

    async def forget(self, job_id: str, tenant: str) -> bool:
        """Cancels the job and erases it with its events; whether there was one."""
        if await self.cancel(job_id, tenant) is None:
            return False
        running_job = self._running.get(job_id)
        if running_job is not None:
            await running_job.ended_event.wait()
        await self._erase(job_id)
        await run_sync(self._open_records.truncate)
        return True

    async def forget_tenant(self, tenant: str) -> int:
        """Cancels and erases every job of the tenant; how many there were."""
        if self._runner is None and not self._known:
            return 0
        total = 0
        while found := await run_sync((await self._ensure_runner()).owned_by, tenant):
            total += sum([await self.forget(job_id, tenant) for job_id in found])
        return total

    async def work(self, perform: JobHandler) -> None:
        """Runs jobs until cancelled, those first that a crash left behind."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._sweep)
            if self._shared:
                tasks.start_soon(self._watch_processes)
            async for order in self._queue:
                tasks.start_soon(self._run_job, perform, order)

    async def _run_job(self, perform: JobHandler, order: QueuedJob) -> None:
        """Runs one job to its ending, its cancellation, or the end of this process."""
        job = order.job
        if (running := self._running.get(job.id)) is not None:
            # The database was away, so the job was taken for abandoned; it is not: nothing is
            # paid twice.
            running.endings.append(order.ending)
            return
        running_job = self._running[job.id] = _RunningJob(endings=[order.ending])
        outcome: Json | BaseException = JobInterrupted()
        try:
            with running_job.scope:
                outcome = await self._perform_with_retries(perform, job, running_job.scope)
        except Exception as error:  # noqa: BLE001 - a fault must end the job, not the server
            kind = type(error).__name__
            logger.error("job %s failed: %s", job.id, kind)  # noqa: TRY400 - no content in logs
            outcome = JobFailed(f"the job failed: {kind}")
        finally:
            del self._running[job.id]
            running_job.ended_event.set()
            for ending in running_job.endings:
                resolve_future(ending, outcome)

    async def _perform_with_retries(
        self, perform: JobHandler, job: Job, scope: anyio.CancelScope
    ) -> Json:
        """How it was run; while the database fails it is taken up again, as after a crash."""
        pause = _RETRY_SECONDS
        for _ in range(MAX_RECOVERIES):
            try:
                stored_events = await run_sync(self._open_records.count_events, job.id)
                point = DurableCheckpoint(
                    job,
                    self._open_records,
                    stored_events=stored_events,
                    notify=self._notifier.notify,
                    scope=scope,
                )
                return ending_json(await perform(job, point))
            except* StoreError as errors:
                logger.warning("job %s waits for the database: %s", job.id, errors.exceptions[0])
            await anyio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_SECONDS)
        raise StoreError("the database failed too often")

    def _stop(self, job_id: str) -> None:
        """Cancels the job's calls, if they are made here."""
        running_job = self._running.get(job_id)
        if running_job is not None:
            running_job.scope.cancel()

    async def _sweep(self) -> None:
        """Takes up what was left, and forgets from time to time what ended long ago."""
        if self._known:
            await self._wait_for_runner()
        while True:
            if self._runner is not None:
                try:
                    await self._forget_old(self._runner)
                except (StoreError, SQLAlchemyError) as error:
                    logger.warning("old jobs are not forgotten now: %s", type(error).__name__)
            await anyio.sleep(_SWEEP_SECONDS)

    async def _forget_old(self, machine: DbosRunner) -> None:
        limit = time.time() - self._kept_days * 86_400
        for job_id in await run_sync(machine.find_ended_before, limit):
            await self._erase(job_id)

    async def _erase(self, job_id: str) -> None:
        await run_sync((await self._ensure_runner()).forget, job_id)
        await run_sync(self._open_records.erase, job_id)

    async def _find(self, job_id: str, tenant: str) -> StoredJob | None:
        if self._runner is None and not self._known:
            return None
        return await run_sync((await self._ensure_runner()).find, job_id, tenant)

    async def _ensure_runner(self) -> DbosRunner:
        """The machine, started when it is first wanted.

        Raises:
            StoreError: it cannot be started now.
        """
        async with self._starting:
            if self._runner is None:
                execute = partial(self._queue.hand_over, asyncio.get_running_loop())
                with anyio.CancelScope(shield=True):
                    self._runner = await run_sync(self._start, execute)
        assert self._runner is not None  # noqa: S101 - else an error was raised
        return self._runner

    async def _wait_for_runner(self) -> DbosRunner:
        """The machine, as soon as its database lets it start."""
        warned = False
        while True:
            try:
                return await self._ensure_runner()
            except StoreError as error:
                if not warned:
                    logger.warning("%s", error)
                warned = True
            await anyio.sleep(_RETRY_SECONDS)

    def _start(self, execute: Callable[[Json], Json]) -> DbosRunner:
        name = f"batuta-{uuid4()}" if self._shared else EXECUTOR_NAME
        peers: Heartbeats | None = None
        try:
            peers = Heartbeats(self._url, name) if self._shared else None
            machine = DbosRunner(self._url, name, self._concurrency, execute)
        except Exception as error:
            if peers is not None:
                peers.leave()
            raise StoreError(f"jobs cannot be run now: {type(error).__name__}") from error
        self._heartbeats = peers
        return machine

    async def _watch_processes(self) -> None:
        """Among several processes: lives, buries the dead, and hears of cancellations."""
        machine = await self._wait_for_runner()
        assert self._heartbeats is not None  # noqa: S101 - the machine of a shared database has them
        deaf = False
        while True:
            try:
                await run_sync(self._heartbeats.send)
                await self._check_processes(
                    machine, await run_sync(self._heartbeats.live_processes)
                )
                deaf = False
            except SQLAlchemyError as error:
                if not deaf:
                    kind = type(error).__name__
                    logger.warning("the other servers cannot be heard: %s", kind)
                deaf = True
            await anyio.sleep(_HEARTBEAT_SECONDS)

    async def _check_processes(self, machine: DbosRunner, alive: set[str]) -> None:
        # The machine waits for its database without end; a server that stops does not.
        ask = partial(run_sync, abandon_on_cancel=True)
        dead = await ask(machine.active_executors) - alive
        if dead:
            await ask(machine.take_over, tuple(dead))
        if self._running:
            for job_id in await ask(machine.find_cancelled, tuple(self._running)):
                self._stop(job_id)

    @property
    def _open_records(self) -> JobRecords:
        if self._records is None:
            raise StoreError("the jobs are closed")
        return self._records

    def _open(self) -> None:
        if not self._shared:
            path = Path(str(self._url.database))
            self._known = path.exists()
            self._folder_lock = ProcessLock(path.with_name(f"{path.name}.lock"))
        else:
            self._known = True
        try:
            self._records = JobRecords(self._url)
        except BaseException:
            if self._folder_lock is not None:
                self._folder_lock.release()
            raise

    def _close(self) -> None:
        if self._runner is not None:
            self._runner.stop()
        if self._heartbeats is not None:
            self._heartbeats.leave()
        if self._records is not None:
            self._records.close()
        if self._folder_lock is not None:
            self._folder_lock.release()
