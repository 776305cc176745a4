"""Background jobs, and the one protocol by which they are kept and run.

A job is a request that outlives its connection. Whoever asks `submit`s it and comes back by its
id; whoever can run it `work`s, with a function that turns the job's body into an ending.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Protocol, final

from batuta.core import Client, Conductor, EventHandler, WorkerId

Json = dict[str, Any]
"""A JSON object."""


class JobState(StrEnum):
    """The state of a job, in the words of the Responses API."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INCOMPLETE = "incomplete"

    @property
    def is_final(self) -> bool:
        """Return True if nothing more will happen."""
        return self not in {JobState.QUEUED, JobState.IN_PROGRESS}


@dataclass(frozen=True, slots=True)
class JobOwner:
    """The tenant and the key whose job it is."""

    tenant: str
    key: str | None = None
    """The id of the key whose limit of runs at the same time counts the job, if there is one."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job; after a crash it is run again from these fields alone."""

    id: str
    """Unguessable; chosen by whoever submits it."""
    tenant: str
    """The owner; for anybody else the job does not exist."""
    body: Json = field(default_factory=dict[str, Any])
    """The runner's data, in JSON; no secret."""
    _: KW_ONLY
    key: str | None = None
    """The id of the key that asked for it, if there is one."""

    @property
    def owner(self) -> JobOwner:
        """The tenant and the key that the job belongs to."""
        return JobOwner(self.tenant, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The state of a job."""

    id: str
    state: JobState
    created: float
    """Seconds since the epoch."""
    ended: float | None = None
    error: str | None = None
    """Why it failed without an ending of its own."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job."""

    number: int
    """The event's number, from 0 without a gap."""
    body: Json


@dataclass(frozen=True, slots=True)
class JobEnding:
    """How a job was run."""

    state: JobState
    result: Json

    def __post_init__(self) -> None:
        if not self.state.is_final:
            raise ValueError(f"a job does not end {self.state.value}")


class Checkpoint(Protocol):
    """Keeps a job's finished calls, so that a crash repeats none of them.

    The runner conducts with `conductor(…)`, `clients(…)` and `emit(…)` in place of its own.
    """

    @property
    def job(self) -> Job:
        """The job."""
        ...

    @property
    def will_resume(self) -> bool:
        """Return True if the job is taken up again if it is cut off now.

        So it is where the process ends and the job survives it, not where the job was cancelled.
        """
        ...

    def wrap_conductor(self, conductor: Conductor) -> Conductor:
        """Return the conductor, whose decisions are kept."""
        ...

    def wrap_clients(self, clients: Mapping[WorkerId, Client]) -> Mapping[WorkerId, Client]:
        """Return the clients, whose replies are kept."""
        ...

    def wrap_emit(self, emit: EventHandler | None = None) -> EventHandler:
        """Return a listener that tells the checkpoint where each call of the run belongs."""
        ...

    async def add_event(self, event: Json) -> None:
        """Keep an event for the job's readers.

        A job that is run again after a crash repeats its events, from the first; as many
        as were kept are dropped. So what is told must follow from finished calls alone: where
        jobs are durable, no fragment of a reply is told before the reply is complete.
        """
        ...


JobHandler = Callable[[Job, Checkpoint], Awaitable[JobEnding]]
"""Runs a job. It is cancelled when the job is; what it raises makes the job fail."""


class JobGate(Protocol):
    """Lets jobs of an owner run, as many at the same time as the owner may run."""

    async def enter(self, owner: JobOwner, token: str) -> bool:
        """Count one more job under the token, unless the owner is at its limit."""
        ...

    async def leave(self, owner: JobOwner, token: str) -> None:
        """Count the job of the token no more."""
        ...


@final
class OpenGate:
    """Lets every job run."""

    async def enter(self, owner: JobOwner, token: str) -> bool:
        """Count nothing."""
        return True

    async def leave(self, owner: JobOwner, token: str) -> None:
        """Count nothing."""


OPEN_GATE = OpenGate()


class Jobs(Protocol):
    """Keeps jobs and runs them.

    Laws: a job that `submit` took in ends, unless the process that keeps it in memory alone dies;
    places that come free go to tenants by turns; a job whose owner the gate does not let in waits,
    and holds up no job of another owner;
    its events are numbered from 0 without a gap; `cancel` stops a paid call within a second, and
    is idempotent; a state that is final does not change; another tenant's job does not exist.
    """

    @property
    def durable(self) -> bool:
        """Return True if jobs survive the process."""
        ...

    async def submit(self, job: Job) -> None:
        """Take the job in; once this returns it will be run.

        Raises:
            StoreError: it could not be kept.
        """
        ...

    async def status(self, job_id: str, tenant: str) -> JobStatus | None:
        """Return the state of the job; None if there is none."""
        ...

    async def cancel(self, job_id: str, tenant: str) -> JobStatus | None:
        """Stop the job if it has not ended, and tell where it stands; None if there is none."""
        ...

    def events(self, job_id: str, tenant: str, after: int = -1) -> AsyncIterator[JobEvent]:
        """Return the events numbered above `after`, as they come, until the job has ended.

        Nothing, if there is no such job.
        """
        ...

    async def result(self, job_id: str, tenant: str) -> Json | None:
        """Return the ending's result; None as long as there is none."""
        ...

    async def forget(self, job_id: str, tenant: str) -> bool:
        """Cancel the job and erase it with its events; return whether there was one."""
        ...

    async def forget_tenant(self, tenant: str) -> int:
        """Cancel and erase every job of the tenant; return how many there were."""
        ...

    async def work(self, perform: JobHandler, gate: JobGate = OPEN_GATE) -> None:
        """Run jobs until cancelled."""
        ...
