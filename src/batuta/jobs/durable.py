"""Jobs that survive the process: DBOS keeps and restarts them, `Records` keeps what they paid for.

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
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Self, final
from uuid import uuid4

import anyio
from anyio.to_thread import run_sync
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from batuta.errors import StoreError
from batuta.jobs.bells import Bells
from batuta.jobs.claim import Claim
from batuta.jobs.desk import KeptDesk
from batuta.jobs.machine import RECOVERIES, Found, JobFailed, Machine, Stopped, stored
from batuta.jobs.peers import Peers
from batuta.jobs.protocol import Job, JobEvent, JobStatus, Json, Perform
from batuta.jobs.records import Records, is_file

logger = logging.getLogger(__name__)

CONCURRENCY = 16
"""Jobs that one process plays at the same time."""
KEPT_DAYS = 30.0
"""How long a job can be asked for after it has ended."""
_LOOK = 0.25
"""Seconds between looks at a job that another process may be playing."""
_BEAT = 0.5
"""Seconds between signs of life on a shared database."""
_SWEEP = 3600.0
_PAUSE = 0.5
"""Seconds before a job is taken up again that the database stopped; each time twice as long."""
_LONGEST_PAUSE = 30.0
EXECUTOR = "local"
"""The name under which a restarted process finds what it left."""


@dataclass(frozen=True, slots=True)
class _Order:
    """A job that waits to be played, and the thread that waits for its ending."""

    job: Job
    ending: Future[Json]


@dataclass(slots=True)
class _Play:
    """A job that is being played."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    over: anyio.Event = field(default_factory=anyio.Event)


@final
class DurableJobs:
    """Jobs in a database; an asynchronous context manager.

    On SQLite one process plays them; on PostgreSQL many may, and take over from one that died.
    """

    durable = True

    def __init__(
        self, url: URL, *, concurrency: int = CONCURRENCY, kept_days: float = KEPT_DAYS
    ) -> None:
        """Opens nothing yet.

        Args:
            url: the database, without a driver's name.
            concurrency: jobs played at the same time.
            kept_days: how long a job is kept after its end.
        """
        self._url = url
        self._shared = not is_file(url)
        """Whether other processes may play its jobs too."""
        self._concurrency = concurrency
        self._kept_days = kept_days
        self._claim: Claim | None = None
        self._records: Records | None = None
        self._machine: Machine | None = None
        self._peers: Peers | None = None
        self._starting = anyio.Lock()
        self._known = False
        """Whether the database was there before us, perhaps with jobs to be taken up again."""
        self._plays: dict[str, _Play] = {}
        self._waiting: set[Future[Json]] = set()
        self._bells = Bells()
        self._send, self._receive = anyio.create_memory_object_stream[_Order](inf)

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
        """Lets go of what is being played: the next process takes it up again."""
        self._send.close()
        self._receive.close()
        for waiting in tuple(self._waiting):
            _settle(waiting, Stopped())
        with anyio.CancelScope(shield=True):
            await run_sync(self._close)

    async def submit(self, job: Job) -> None:
        """Takes the job in.

        Raises:
            StoreError: it could not be kept.
        """
        machine = await self._started()
        await run_sync(self._kept.answer)  # the machine would wait for the database without end
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
        if status is None or status.state.final:
            return status
        # First the word on disk: between the two a crash must not bring the job back.
        await run_sync((await self._started()).cancel, job_id)
        self._stop(job_id)
        await self._bells.ring(job_id)
        return await self.status(job_id, tenant)

    async def events(self, job_id: str, tenant: str, after: int = -1) -> AsyncIterator[JobEvent]:
        """The events numbered above `after`, as they come, until the job has ended."""
        while True:
            status = await self.status(job_id, tenant)  # before the events, or the last is missed
            if status is None:
                return
            for event in await run_sync(self._kept.events, job_id, after):
                after = event.number
                yield event
            if status.state.final:
                return
            await self._bells.wait(job_id, _LOOK)

    async def forget(self, job_id: str, tenant: str) -> bool:
        """Cancels the job and erases it with its events; whether there was one."""
        if await self.cancel(job_id, tenant) is None:
            return False
        play = self._plays.get(job_id)
        if play is not None:
            await play.over.wait()
        await self._erase(job_id)
        return True

    async def work(self, perform: Perform) -> None:
        """Plays jobs until cancelled, those first that a crash left behind."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._sweep)
            if self._shared:
                tasks.start_soon(self._keep_company)
            async for order in self._receive:
                tasks.start_soon(self._play, perform, order)

    async def _play(self, perform: Perform, order: _Order) -> None:
        """Plays one job to its ending, its cancellation, or the end of this process."""
        job, play = order.job, _Play()
        self._plays[job.id] = play
        outcome: Json | BaseException = Stopped()
        try:
            with play.scope:
                outcome = await self._performed(perform, job, play.scope)
        except Exception as error:  # noqa: BLE001 - a fault must end the job, not the server
            kind = type(error).__name__
            logger.error("job %s failed: %s", job.id, kind)  # noqa: TRY400 - no content in logs
            outcome = JobFailed(f"the job failed: {kind}")
        finally:
            del self._plays[job.id]
            play.over.set()
            _settle(order.ending, outcome)

    async def _performed(self, perform: Perform, job: Job, scope: anyio.CancelScope) -> Json:
        """How it was played; while the database fails it is taken up again, as after a crash."""
        pause = _PAUSE
        for _ in range(RECOVERIES):
            try:
                told = await run_sync(self._kept.told, job.id)
                desk = KeptDesk(job, self._kept, told, self._bells.ring, scope)
                return stored(await perform(job, desk))
            except* StoreError as errors:
                logger.warning("job %s waits for the database: %s", job.id, errors.exceptions[0])
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise StoreError("the database failed too often")

    def _stop(self, job_id: str) -> None:
        """Cancels the job's calls, if they are made here."""
        play = self._plays.get(job_id)
        if play is not None:
            play.scope.cancel()

    def _hand_over(self, loop: asyncio.AbstractEventLoop, body: Json) -> Json:
        """Runs in a thread of DBOS: gives the job to the loop and waits for its ending."""
        order = _Order(Job(body["id"], body["tenant"], body["body"]), Future())
        self._waiting.add(order.ending)
        try:
            loop.call_soon_threadsafe(self._take, order)
            return order.ending.result()
        finally:
            self._waiting.discard(order.ending)

    def _take(self, order: _Order) -> None:
        try:
            self._send.send_nowait(order)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            _settle(order.ending, Stopped())

    async def _sweep(self) -> None:
        """Takes up what was left, and forgets from time to time what ended long ago."""
        if self._known:
            await self._up()
        while True:
            if self._machine is not None:
                try:
                    await self._forget_old(self._machine)
                except (StoreError, SQLAlchemyError) as error:
                    logger.warning("old jobs are not forgotten now: %s", type(error).__name__)
            await anyio.sleep(_SWEEP)

    async def _forget_old(self, machine: Machine) -> None:
        limit = time.time() - self._kept_days * 86_400
        for job_id in await run_sync(machine.ended_before, limit):
            await self._erase(job_id)

    async def _erase(self, job_id: str) -> None:
        await run_sync((await self._started()).forget, job_id)
        await run_sync(self._kept.erase, job_id)

    async def _find(self, job_id: str, tenant: str) -> Found | None:
        if self._machine is None and not self._known:
            return None
        return await run_sync((await self._started()).find, job_id, tenant)

    async def _started(self) -> Machine:
        """The machine, started when it is first wanted.

        Raises:
            StoreError: it cannot be started now.
        """
        async with self._starting:
            if self._machine is None:
                play = partial(self._hand_over, asyncio.get_running_loop())
                with anyio.CancelScope(shield=True):
                    self._machine = await run_sync(self._start, play)
        assert self._machine is not None  # noqa: S101 - else an error was raised
        return self._machine

    async def _up(self) -> Machine:
        """The machine, as soon as its database lets it start."""
        told = False
        while True:
            try:
                return await self._started()
            except StoreError as error:
                if not told:
                    logger.warning("%s", error)
                told = True
            await anyio.sleep(_PAUSE)

    def _start(self, play: Callable[[Json], Json]) -> Machine:
        name = f"batuta-{uuid4()}" if self._shared else EXECUTOR
        peers: Peers | None = None
        try:
            peers = Peers(self._url, name) if self._shared else None
            machine = Machine(self._url, name, self._concurrency, play)
        except Exception as error:
            if peers is not None:
                peers.leave()
            raise StoreError(f"jobs cannot be played now: {type(error).__name__}") from error
        self._peers = peers
        return machine

    async def _keep_company(self) -> None:
        """Among several processes: lives, buries the dead, and hears of cancellations."""
        machine = await self._up()
        assert self._peers is not None  # noqa: S101 - the machine of a shared database has them
        deaf = False
        while True:
            try:
                await run_sync(self._peers.beat)
                await self._look_around(machine, await run_sync(self._peers.alive))
                deaf = False
            except SQLAlchemyError as error:
                if not deaf:
                    kind = type(error).__name__
                    logger.warning("the other servers cannot be heard: %s", kind)
                deaf = True
            await anyio.sleep(_BEAT)

    async def _look_around(self, machine: Machine, alive: set[str]) -> None:
        # The machine waits for its database without end; a server that stops does not.
        ask = partial(run_sync, abandon_on_cancel=True)
        dead = await ask(machine.players) - alive
        if dead:
            await ask(machine.take_over, tuple(dead))
        if self._plays:
            for job_id in await ask(machine.cancelled, tuple(self._plays)):
                self._stop(job_id)

    @property
    def _kept(self) -> Records:
        if self._records is None:
            raise StoreError("the jobs are closed")
        return self._records

    def _open(self) -> None:
        if not self._shared:
            path = Path(str(self._url.database))
            self._known = path.exists()
            self._claim = Claim(path.with_name(f"{path.name}.lock"))
        else:
            self._known = True
        try:
            self._records = Records(self._url)
        except BaseException:
            if self._claim is not None:
                self._claim.release()
            raise

    def _close(self) -> None:
        if self._machine is not None:
            self._machine.stop()
        if self._peers is not None:
            self._peers.leave()
        if self._records is not None:
            self._records.close()
        if self._claim is not None:
            self._claim.release()


def _settle(waiting: Future[Json], outcome: Json | BaseException) -> None:
    """Lets the thread go on that waits for a job; one that was told already is left alone."""
    if waiting.done():
        return
    if isinstance(outcome, BaseException):
        waiting.set_exception(outcome)
    else:
        waiting.set_result(outcome)
