"""Requests that outlive their connections, and the processes that run them."""

from batuta.jobs.checkpoint import Checkpoint, JobHandler
from batuta.jobs.durable import KEEP_DAYS, Jobs, open_jobs
from batuta.jobs.protocol import (
    OPEN_GATE,
    Job,
    JobEnding,
    JobEvent,
    JobGate,
    JobOwner,
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
    "open_jobs",
]
