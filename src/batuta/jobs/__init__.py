"""Requests that outlive their connections, and the processes that run them."""

from batuta.jobs.durable import KEEP_DAYS, open_jobs
from batuta.jobs.memory import MemoryJobs
from batuta.jobs.protocol import (
    OPEN_GATE,
    Checkpoint,
    Job,
    JobEnding,
    JobEvent,
    JobGate,
    JobHandler,
    JobOwner,
    Jobs,
    JobState,
    JobStatus,
    Json,
)

__all__ = [
    "KEEP_DAYS",
    "OPEN_GATE",
    "Checkpoint",
    "Job",
    "JobEnding",
    "JobEvent",
    "JobGate",
    "JobHandler",
    "JobOwner",
    "JobState",
    "JobStatus",
    "Jobs",
    "Json",
    "MemoryJobs",
    "open_jobs",
]
