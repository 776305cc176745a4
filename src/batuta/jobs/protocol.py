"""What a background job is, and the one protocol behind which it is kept and run.

A job is a request that outlives its connection. Whoever asks `submit`s it and comes back by its
id; whoever can run it `work`s, with a function that turns the job's body into an ending.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from batuta.core import Client, Conductor, EventHandler, WorkerId

Json = dict[str, Any]
"""A JSON object."""


class JobState(StrEnum):
    """Where a job stands; the words of the Responses API."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INCOMPLETE = "incomplete"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen."""
        return self not in {JobState.QUEUED, JobState.IN_PROGRESS}


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be run; after a crash it is run again from these fields alone."""

    id: str
    """Unguessable; chosen by whoever submits it."""
    tenant: str
    """Whose it is; for anybody else it does not exist."""
    body: Json = field(default_factory=dict[str, Any])
    """Everything that the runner needs, in JSON; no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Where a job stands."""

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
    """From 0, without a gap."""
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
    """What the runner of a job works with, so that a crash repeats no finished call.

    The runner conducts with `conductor(…)`, `clients(…)` and `emit(…)` in place of its own.
    """

    @property
    def job(self) -> Job:
        """The job."""
        ...

    @property
    def will_resume(self) -> bool:
        """Whether the job is taken up again if it is cut off now.

        So it is where the process ends and the job survives it, not where the job was cancelled.
        """
        ...

    def wrap_conductor(self, conductor: Conductor) -> Conductor:
        """The conductor, whose decisions are kept."""
        ...

    def wrap_clients(self, clients: Mapping[WorkerId, Client]) -> Mapping[WorkerId, Client]:
        """The clients, whose replies are kept."""
        ...

    def wrap_emit(self, emit: EventHandler | None = None) -> EventHandler:
        """A hearer of the run's events, which tells the checkpoint where each call belongs."""
        ...

    async def add_event(self, event: Json) -> None:
        """Keeps an event for the job's readers.

        A job that is run again after a crash repeats its events, from the first; as many
        as were kept are dropped. So what is told must follow from finished calls alone: where
        jobs are durable, no fragment of a reply is told before the reply is complete.
        """
        ...


JobHandler = Callable[[Job, Checkpoint], Awaitable[JobEnding]]
"""Runs a job. It is cancelled when the job is; what it raises makes the job fail."""


class Jobs(Protocol):
    """Keeps jobs and runs them.

    Laws: a job that `submit` took in ends, unless the process that keeps it in memory alone dies;
    its events are numbered from 0 without a gap; `cancel` stops a paid call within a second, and
    is idempotent; a state that is final does not change; another tenant's job does not exist.
    """

    @property
    def durable(self) -> bool:
        """Whether jobs survive the process."""
        ...

    async def submit(self, job: Job) -> None:
        """Takes the job in; once this returns it will be run.

        Raises:
            StoreError: it could not be kept.
        """
        ...

    async def status(self, job_id: str, tenant: str) -> JobStatus | None:
        """Where the job stands; None if there is none."""
        ...

    async def cancel(self, job_id: str, tenant: str) -> JobStatus | None:
        """Stops the job if it has not ended, and tells where it stands; None if there is none."""
        ...

    def events(self, job_id: str, tenant: str, after: int = -1) -> AsyncIterator[JobEvent]:
        """The events numbered above `after`, as they come, until the job has ended.

        Nothing, if there is no such job.
        """
        ...

    async def result(self, job_id: str, tenant: str) -> Json | None:
        """The ending's result; None as long as there is none."""
        ...

    async def forget(self, job_id: str, tenant: str) -> bool:
        """Cancels the job and erases it with its events; whether there was one."""
        ...

    async def forget_tenant(self, tenant: str) -> int:
        """Cancels and erases every job of the tenant; how many there were."""
        ...

    async def work(self, perform: JobHandler) -> None:
        """Runs jobs until cancelled, those first that a crash left behind."""
        ...
