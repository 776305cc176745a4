"""Jobs that live as long as the process."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import final

import anyio

from batuta.core import Client, Conductor, Event, EventHandler, WorkerId
from batuta.jobs.dispatcher import JobDispatcher, JobPlaces, Notifier
from batuta.jobs.protocol import (
    OPEN_GATE,
    Job,
    JobEnding,
    JobEvent,
    JobGate,
    JobHandler,
    JobOwner,
    JobState,
    JobStatus,
    Json,
)

logger = logging.getLogger(__name__)

CONCURRENCY = 16
"""Jobs that are run at the same time."""
KEEP_JOBS = 1_000
"""The most ended jobs that can be asked for; the oldest of the tenant with the most goes first."""


@dataclass(slots=True, kw_only=True)
class _JobEntry:
    """A job and everything known of it."""

    job: Job
    status: JobStatus
    events: list[JobEvent] = field(default_factory=list[JobEvent])
    result: Json | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended_event: anyio.Event = field(default_factory=anyio.Event)


@final
class MemoryJobs:
    """Jobs in memory: those that have not ended when the process does are lost."""

    durable = False

    def __init__(self, *, concurrency: int = CONCURRENCY, kept: int = KEEP_JOBS) -> None:
        self._entries: OrderedDict[str, _JobEntry] = OrderedDict()
        self._kept = kept
        self._concurrency = concurrency
        self._notifier = Notifier()
        self._waiting: dict[JobOwner, deque[_JobEntry]] = {}
        self._dispatcher: JobDispatcher | None = None

    async def submit(self, job: Job) -> None:
        """Take the job in; one that is there already is left as it is."""
        if job.id in self._entries:
            return
        entry = _JobEntry(
            job=job, status=JobStatus(id=job.id, state=JobState.QUEUED, created=time.time())
        )
        self._entries[job.id] = entry
        self._waiting.setdefault(job.owner, deque()).append(entry)
        if self._dispatcher is not None:
            self._dispatcher.look_again()

    async def status(self, job_id: str, tenant: str) -> JobStatus | None:
        """Return the state of the job; None if there is none."""
        entry = self._entry(job_id, tenant)
        return None if entry is None else entry.status

    async def result(self, job_id: str, tenant: str) -> Json | None:
        """Return the ending's result; None as long as there is none."""
        entry = self._entry(job_id, tenant)
        return None if entry is None else entry.result

    async def cancel(self, job_id: str, tenant: str) -> JobStatus | None:
        """Stop the job and its paid calls; None if there is none."""
        entry = self._entry(job_id, tenant)
        if entry is None:
            return None
        if not entry.status.state.is_final:
            await self._end(entry, JobState.CANCELLED)
            entry.scope.cancel()
        return entry.status

    async def events(self, job_id: str, tenant: str, after: int = -1) -> AsyncIterator[JobEvent]:
        """Yield the events numbered above `after`, as they come, until the job has ended."""
        entry = self._entry(job_id, tenant)
        while entry is not None:
            for event in entry.events[after + 1 :]:
                after = event.number
                yield event
            if after + 1 >= len(entry.events):
                if entry.status.state.is_final:
                    return
                await self._notifier.wait(job_id, inf)

    async def forget(self, job_id: str, tenant: str) -> bool:
        """Cancel the job and erase it with its events; return whether there was one."""
        if await self.cancel(job_id, tenant) is None:
            return False
        self._entries.pop(job_id, None)
        return True

    async def forget_tenant(self, tenant: str) -> int:
        """Cancel and erase every job of the tenant; return how many there were."""
        own = [name for name, entry in self._entries.items() if entry.job.tenant == tenant]
        return sum([await self.forget(name, tenant) for name in own])

    async def work(self, perform: JobHandler, gate: JobGate = OPEN_GATE) -> None:
        """Run jobs until cancelled."""
        async with anyio.create_task_group() as tasks:

            async def start_next(owner: JobOwner) -> anyio.Event | None:
                entry = self._take_next(owner)
                if entry is None:
                    return None
                tasks.start_soon(self._run_job, perform, entry)
                return entry.ended_event

            self._dispatcher = JobDispatcher(
                JobPlaces(self._concurrency), self._find_owners, start_next, always_poll=False
            )
            await self._dispatcher.run(gate)

    async def _find_owners(self) -> Collection[JobOwner]:
        return self._waiting

    def _take_next(self, owner: JobOwner) -> _JobEntry | None:
        """Take out the owner's oldest job that still waits."""
        queue = self._waiting.get(owner, deque())
        found: _JobEntry | None = None
        while queue and found is None:
            entry = queue.popleft()
            found = None if entry.status.state.is_final else entry
        if not queue:
            self._waiting.pop(owner, None)
        return found

    async def _run_job(self, perform: JobHandler, entry: _JobEntry) -> None:
        try:
            with entry.scope:
                if not entry.status.state.is_final:
                    await self._perform(perform, entry)
        finally:
            entry.ended_event.set()

    async def _perform(self, perform: JobHandler, entry: _JobEntry) -> None:
        entry.status = replace(entry.status, state=JobState.IN_PROGRESS)
        try:
            ending = await perform(entry.job, _MemoryCheckpoint(entry, self._notifier))
        except Exception as error:  # noqa: BLE001 - a fault must end the job, not the server
            kind = type(error).__name__
            logger.error("job %s failed: %s", entry.job.id, kind)  # noqa: TRY400 - no content
            await self._end(entry, JobState.FAILED, error=f"the job failed: {kind}")
        else:
            await self._finish(entry, ending)

    async def _finish(self, entry: _JobEntry, ending: JobEnding) -> None:
        if not entry.status.state.is_final:
            entry.result = ending.result
            await self._end(entry, ending.state)

    async def _end(self, entry: _JobEntry, state: JobState, error: str | None = None) -> None:
        entry.status = replace(entry.status, state=state, ended=time.time(), error=error)
        await self._notifier.notify(entry.job.id)
        ended = [e.job for e in self._entries.values() if e.status.state.is_final]
        if len(ended) > self._kept:
            # Of the tenant that has the most, so that nobody pushes out another's.
            ((largest, _),) = Counter(job.tenant for job in ended).most_common(1)
            del self._entries[next(job.id for job in ended if job.tenant == largest)]

    def _entry(self, job_id: str, tenant: str) -> _JobEntry | None:
        entry = self._entries.get(job_id)
        return entry if entry is not None and entry.job.tenant == tenant else None


@final
class _MemoryCheckpoint:
    """A desk that keeps nothing but events: there will be no second execution."""

    def __init__(self, entry: _JobEntry, bells: Notifier) -> None:
        self._entry = entry
        self._bells = bells

    @property
    def job(self) -> Job:
        return self._entry.job

    @property
    def will_resume(self) -> bool:
        return False

    def wrap_conductor(self, conductor: Conductor) -> Conductor:
        return conductor

    def wrap_clients(self, clients: Mapping[WorkerId, Client]) -> Mapping[WorkerId, Client]:
        return clients

    def wrap_emit(self, emit: EventHandler | None = None) -> EventHandler:
        return emit or _ignore_event

    async def add_event(self, event: Json) -> None:
        events = self._entry.events
        events.append(JobEvent(len(events), event))
        await self._bells.notify(self._entry.job.id)


async def _ignore_event(_: Event) -> None:
    """Do nothing."""
