"""Background jobs: what is asked, how it ended, and who lets it run.

A job is a request that outlives its connection. Whoever asks `submit`s it and comes back by its
id; whoever can run it `work`s, with a function that turns the job's body into an ending.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Protocol, final

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
