"""Background jobs: requests that outlive their connections, kept in a database."""

from batuta.jobs.checkpoint import Checkpoint
from batuta.jobs.durable import KEEP_DAYS, Jobs, open_jobs
from batuta.jobs.protocol import (
    OPEN_GATE,
    Job,
    JobEnding,
    JobGate,
    JobOwner,
    JobState,
    JobStatus,
)

__all__ = [
    "KEEP_DAYS",
    "OPEN_GATE",
    "Checkpoint",
    "Job",
    "JobEnding",
    "JobGate",
    "JobOwner",
    "JobState",
    "JobStatus",
    "Jobs",
    "open_jobs",
]
