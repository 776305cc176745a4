"""DBOS behind a few plain functions; all of them block: call them from a thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, final

from sqlalchemy import URL

from batuta.jobs.protocol import Job, JobEnding, JobState, JobStatus, Json
from batuta.jobs.records import ErasingConnection, is_sqlite_file

if TYPE_CHECKING:
    from dbos import WorkflowStatus

PROTOCOL = "batuta-jobs-1"
"""What a stored job means. DBOS takes up only the jobs of its own version, which it would
compute from the code: every deploy would leave the jobs of the one before to lie."""
QUEUE = "batuta"
WORKFLOW = "batuta.job"
POLL_SECONDS = 0.2
"""Seconds between looks for queued jobs."""
MAX_RECOVERIES = 20
"""Times that a job may be taken up again: one that kills its process must not do so for ever."""
_MAX_LISTED_JOBS = 200
_STATES = {
    "ENQUEUED": JobState.QUEUED,
    "DELAYED": JobState.QUEUED,
    "PENDING": JobState.IN_PROGRESS,
    "CANCELLED": JobState.CANCELLED,
}


class JobInterrupted(BaseException):
    """Ends a thread that waits for a job, and leaves the job as it stands.

    No `Exception`: DBOS would write that down as the job's failure.
    """


class JobFailed(Exception):
    """What was raised while a job was run; its type alone, never its content."""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as it is stored."""

    status: JobStatus
    result: Json | None


@final
class DbosRunner:
    """The one DBOS of this process."""

    def __init__(
        self, url: URL, executor: str, concurrency: int, execute: Callable[[Json], Json]
    ) -> None:
        """Starts it, and with it the jobs that this executor left unfinished.

        Args:
            url: the database.
            executor: who runs; a job belongs to its executor until it ends.
            concurrency: jobs at the same time.
            execute: executes a stored job in a thread and returns its stored ending.
        """
        # Loaded when it is wanted: it is an extra, and most of this server's start-up time.
        from dbos import DBOS, DBOSPortableJSONSerializer  # noqa: PLC0415

        self._dbos = DBOS
        logging.getLogger("dbos").addHandler(logging.NullHandler())  # else it brings its own
        driverless = url if is_sqlite_file(url) else url.set(drivername="postgresql")
        # What is deleted is overwritten, as on our own connections to the file.
        options = {"connect_args": {"factory": ErasingConnection}} if is_sqlite_file(url) else None
        DBOS(
            config={
                "name": "batuta",
                "system_database_url": driverless.render_as_string(hide_password=False),
                "application_version": PROTOCOL,
                "executor_id": executor,
                "serializer": DBOSPortableJSONSerializer(),
                "log_level": "ERROR",
                "db_engine_kwargs": options,
                "notification_listener_polling_interval_sec": POLL_SECONDS,
            }
        )

        @DBOS.workflow(name=WORKFLOW, max_recovery_attempts=MAX_RECOVERIES)
        def _job(body: Json) -> Json:  # pyright: ignore[reportUnusedFunction] - by its name
            return execute(body)

        try:
            DBOS.launch()
        except BaseException:
            self.stop()
            raise
        DBOS.register_queue(
            QUEUE, worker_concurrency=concurrency, polling_interval_sec=POLL_SECONDS
        )

    def stop(self) -> None:
        """Stops it; what is being run stays unfinished."""
        self._dbos.destroy(destroy_registry=True)

    def enqueue(self, job: Job) -> None:
        """Stores the job and queues it; a job that is stored already is left as it is."""
        self._dbos.enqueue_workflow_with_options(
            {
                "workflow_name": WORKFLOW,
                "queue_name": QUEUE,
                "workflow_id": job.id,
                "authenticated_user": job.tenant,
                "app_version": PROTOCOL,
            },
            {"id": job.id, "tenant": job.tenant, "body": job.body},
        )

    def find(self, job_id: str, tenant: str) -> StoredJob | None:
        """The job as it is stored, if it is that tenant's."""
        rows = self._dbos.list_workflows(
            workflow_ids=[job_id], user=tenant, name=WORKFLOW, load_input=False
        )
        return job_from_row(rows[0]) if rows else None

    def cancel(self, job_id: str) -> None:
        """Writes down that the job is cancelled, unless it has ended."""
        self._dbos.cancel_workflow(job_id)

    def find_cancelled(self, job_ids: Sequence[str]) -> list[str]:
        """Those of the jobs that were cancelled, perhaps by another process."""
        rows = self._dbos.list_workflows(
            workflow_ids=list(job_ids), status="CANCELLED", load_input=False, load_output=False
        )
        return [row.workflow_id for row in rows]

    def forget(self, job_id: str) -> None:
        """Erases the job."""
        self._dbos.delete_workflow(job_id)

    def find_ended_before(self, when: float) -> list[str]:
        """Jobs that ended before that time (seconds since the epoch), some at a time."""
        rows = self._dbos.list_workflows(
            completed_before=datetime.fromtimestamp(when, UTC).isoformat(),
            status=["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"],
            name=WORKFLOW,
            limit=_MAX_LISTED_JOBS,
            load_input=False,
            load_output=False,
        )
        return [row.workflow_id for row in rows]

    def owned_by(self, tenant: str) -> list[str]:
        """Jobs of the tenant, some at a time."""
        rows = self._dbos.list_workflows(
            user=tenant, name=WORKFLOW, limit=_MAX_LISTED_JOBS, load_input=False, load_output=False
        )
        return [row.workflow_id for row in rows]

    def active_executors(self) -> set[str]:
        """Who has jobs that have not ended."""
        rows = self._dbos.list_workflows(
            status="PENDING", name=WORKFLOW, load_input=False, load_output=False
        )
        return {row.executor_id for row in rows if row.executor_id}

    def take_over(self, executors: Sequence[str]) -> None:
        """Queues again what those executors left unfinished."""
        self._dbos._recover_pending_workflows(list(executors))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def ending_json(ending: JobEnding) -> Json:
    """The ending as it is stored."""
    return {"state": ending.state.value, "result": ending.result}


def job_from_row(row: WorkflowStatus) -> StoredJob:
    """A job from DBOS's words for it."""
    state, error, result = _STATES.get(row.status, JobState.FAILED), None, None
    if row.status == "SUCCESS" and row.output is not None:
        state, result = JobState(row.output["state"]), row.output["result"]
    elif row.status == "MAX_RECOVERY_ATTEMPTS_EXCEEDED":
        error = f"the job was taken up {MAX_RECOVERIES} times and ended its process each time"
    elif state is JobState.FAILED:
        error = str(row.error or "the job failed")
    ended = row.completed_at if state.is_final else None
    created = (row.created_at or 0) / 1000
    status = JobStatus(
        id=row.workflow_id, state=state, created=created, ended=ended and ended / 1000, error=error
    )
    return StoredJob(status, result)
