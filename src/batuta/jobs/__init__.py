"""Requests that outlive their connections, and the processes that play them."""

from batuta.jobs.memory import MemoryJobs
from batuta.jobs.open import open_jobs
from batuta.jobs.protocol import (
    Desk,
    Ending,
    Job,
    JobEvent,
    Jobs,
    JobState,
    JobStatus,
    Json,
    Perform,
)

__all__ = [
    "Desk",
    "Ending",
    "Job",
    "JobEvent",
    "JobState",
    "JobStatus",
    "Jobs",
    "Json",
    "MemoryJobs",
    "Perform",
    "open_jobs",
]
