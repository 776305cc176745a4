"""Types of background jobs: a job, its status, events and ending, and the gate that admits it.

A job is a request that outlives its connection. Its client calls `Jobs.submit` and polls the job's
id; a process calls `Jobs.work` with a function that turns the job's body into an ending.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Protocol, final

Json = dict[str, Any]
"""A JSON object."""


class JobState(StrEnum):
    """The state of a job, with the names of the Responses API."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INCOMPLETE = "incomplete"

    @property
    def is_final(self) -> bool:
        """Return True if the state will not change any more."""
        return self not in {JobState.QUEUED, JobState.IN_PROGRESS}


@dataclass(frozen=True, slots=True)
class JobOwner:
    """The tenant and the API key that a job belongs to."""

    tenant: str
    key: str | None = None
    """The id of the API key; the job counts towards its concurrency limit. None: no key."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job; after a crash it is run again from these fields and its stored calls."""

    id: str
    """Unguessable; chosen by the caller of `submit`."""
    tenant: str
    """The owner; other tenants cannot see the job."""
    body: Json = field(default_factory=dict[str, Any])
    """The data of the job handler, without any secret."""
    _: KW_ONLY
    key: str | None = None
    """The id of the API key that submitted the job; None: no key."""

    @property
    def owner(self) -> JobOwner:
        """The tenant and the key that the job belongs to."""
        return JobOwner(self.tenant, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The state of a job with its times and its error."""

    id: str
    state: JobState
    created: float
    """Seconds since the epoch."""
    ended: float | None = None
    """Seconds since the epoch; None: the job has not ended."""
    error: str | None = None
    """Why the job failed without a `JobEnding`; None: it did not."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job."""

    number: int
    """Sequence number within the job, from 0 without a gap."""
    body: Json


@dataclass(frozen=True, slots=True)
class JobEnding:
    """The final state and result of a job that was run."""

    state: JobState
    result: Json

    def __post_init__(self) -> None:
        if not self.state.is_final:
            raise ValueError(f"{self.state.value} is not a final state of a job")


class JobGate(Protocol):
    """Limits the number of jobs that an owner runs at the same time."""

    async def enter(self, owner: JobOwner, token: str) -> bool:
        """Count a job under the token and return True; False if the owner may not start one now."""
        ...

    async def leave(self, owner: JobOwner, token: str) -> None:
        """Stop counting the job of the token."""
        ...


@final
class OpenGate:
    """Admits every job."""

    async def enter(self, owner: JobOwner, token: str) -> bool:
        """Return True without counting."""
        return True

    async def leave(self, owner: JobOwner, token: str) -> None:
        """Do nothing."""


OPEN_GATE = OpenGate()
