"""Requests that outlive their connections, and the processes that run them."""

from batuta.jobs.factory import open_jobs
from batuta.jobs.memory import MemoryJobs
from batuta.jobs.protocol import (
    Checkpoint,
    Job,
    JobEnding,
    JobEvent,
    JobHandler,
    Jobs,
    JobState,
    JobStatus,
    Json,
)

__all__ = [
    "Checkpoint",
    "Job",
    "JobEnding",
    "JobEvent",
    "JobHandler",
    "JobState",
    "JobStatus",
    "Jobs",
    "Json",
    "MemoryJobs",
    "open_jobs",
]
