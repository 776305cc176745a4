"""The table of jobs: each job is claimed, renewed and ended by the process that runs it.

Every update names the states in which it changes a job. A job is therefore claimed by one process
at a time and ends once, even if several processes work at the same time. On PostgreSQL a claim
expires by the database's clock: a job whose process stops renewing its claim is requeued. On SQLite
one process owns the file, so a job that is running when it starts was left by an earlier process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

from sqlalchemy import (
    Column,
    Executable,
    Float,
    Index,
    Row,
    Table,
    Text,
    delete,
    func,
    select,
    update,
)
from sqlalchemy import text as sql

from batuta.jobs.protocol import Job, JobOwner, JobState, JobStatus, Json
from batuta.jobs.records import (
    ATTEMPTS_TABLE,
    CALLS_TABLE,
    EVENTS_TABLE,
    METADATA,
    decode_json,
    encode_json,
)
from batuta.store.database import Database, insert_statement

CLAIM_SECONDS = 5.0
"""Seconds for which a claim is valid after its last renewal."""
_MAX_LISTED_JOBS = 200
_WAITING, _RUNNING = JobState.QUEUED.value, JobState.IN_PROGRESS.value
JOBS_TABLE = Table(
    "jobs",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    # Tenant and key as JSON; jobs are scheduled by owner.
    Column("owner", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created", Float(53), nullable=False),
    Column("ended", Float(53)),
    Column("result", Text),
    Column("error", Text),
    # The process that runs the job, or ran it last.
    Column("runner", Text),
    Column("leased_until", Float(53)),
    Index("ix_jobs_turn", "state", "owner", "created", "id"),
    Index("ix_jobs_tenant", "tenant"),
    Index("ix_jobs_ended", "ended"),
)
_COLUMNS = JOBS_TABLE.c
# One index lookup for each owner, however long the queues are.
_OWNERS = sql("""
WITH RECURSIVE owners(owner) AS (
    SELECT min(owner) FROM jobs WHERE state = 'queued'
    UNION ALL
    SELECT (SELECT min(owner) FROM jobs WHERE state = 'queued' AND owner > owners.owner)
    FROM owners WHERE owners.owner IS NOT NULL)
SELECT owner FROM owners WHERE owner IS NOT NULL
""")


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job's status and result as stored."""

    status: JobStatus
    result: Json | None
    """None: the job has not ended, was cancelled, or failed without a `JobEnding`."""


@final
class JobTable:
    """Reads and changes the table of jobs; every method raises StoreError if the database fails."""

    def __init__(self, database: Database, runner: str) -> None:
        """Store the database, which the caller closes.

        Args:
            database: the database.
            runner: the name under which this process claims jobs; on SQLite every process has the
                same.
        """
        self._database = database
        self._dialect = database.url.get_backend_name()
        self._runner = runner

    async def add(self, job: Job) -> None:
        """Queue the job; a job that exists already is not changed."""
        row = {
            "id": job.id,
            "tenant": job.tenant,
            "owner": owner_to_text(job.owner),
            "body": encode_json(job.body),
            "state": _WAITING,
            "created": time.time(),
        }
        new = insert_statement(self._dialect, JOBS_TABLE).values(row)
        await self._database.execute(new.on_conflict_do_nothing())

    async def count_waiting(self, tenant: str, most: int) -> int:
        """Count the waiting jobs of the tenant, up to `most`."""
        waiting = (
            select(_COLUMNS.id)
            .where(_COLUMNS.tenant == tenant, _COLUMNS.state == _WAITING)
            .limit(most)
        )
        query = select(func.count().label("jobs")).select_from(waiting.subquery())
        return int((await self._database.fetch_rows(query))[0]["jobs"])

    async def waiting_owners(self) -> list[JobOwner]:
        """Return the owners of waiting jobs."""
        return [owner_from_text(row["owner"]) for row in await self._database.fetch_rows(_OWNERS)]

    async def claim(self, owner: JobOwner) -> Job | None:
        """Claim the owner's oldest waiting job and return it; None if no job could be claimed."""
        waiting = (_COLUMNS.owner == owner_to_text(owner), _COLUMNS.state == _WAITING)
        oldest = (
            select(_COLUMNS.id)
            .where(*waiting)
            .order_by(_COLUMNS.created, _COLUMNS.id)
            .limit(1)
            .with_for_update(skip_locked=True)
            .scalar_subquery()
        )
        taken = (
            update(JOBS_TABLE).where(_COLUMNS.id == oldest, *waiting).values(self._claim_values())
        )
        rows = await self._change(taken.returning(_COLUMNS.id, _COLUMNS.body))
        if not rows:
            return None
        return Job(rows[0].id, owner.tenant, decode_json(rows[0].body), key=owner.key)

    async def renew(self, jobs: Collection[str]) -> set[str]:
        """Renew this process's claims on the jobs; return the ids of the jobs that it still claims.

        A job that was requeued because its claim lapsed still belongs to this process until
        another process claims it.
        """
        renewal = (
            update(JOBS_TABLE)
            .where(_COLUMNS.id.in_(jobs), *self._is_mine())
            .values(self._claim_values())
        )
        return {row.id for row in await self._change(renewal.returning(_COLUMNS.id))}

    async def requeue_silent(self) -> None:
        """Requeue the running jobs with an expired claim."""
        silent = (_COLUMNS.state == _RUNNING, _COLUMNS.leased_until < self._now())
        await self._database.execute(update(JOBS_TABLE).where(*silent).values(state=_WAITING))

    async def requeue_own(self) -> None:
        """Requeue the jobs that this process, or on SQLite an earlier process, was running."""
        mine = (_COLUMNS.state == _RUNNING, _COLUMNS.runner == self._runner)
        await self._database.execute(update(JOBS_TABLE).where(*mine).values(state=_WAITING))

    async def find_unended(self, jobs: Collection[str]) -> set[str]:
        """Return the ids of the jobs that wait or run, leaving out ended and erased jobs."""
        unended = (_COLUMNS.id.in_(jobs), _COLUMNS.state.in_((_WAITING, _RUNNING)))
        rows = await self._database.fetch_rows(select(_COLUMNS.id).where(*unended))
        return {row["id"] for row in rows}

    async def find(self, job_id: str, tenant: str) -> StoredJob | None:
        """Return the job; None if the tenant has no such job."""
        mine = (_COLUMNS.id == job_id, _COLUMNS.tenant == tenant)
        columns = (
            _COLUMNS.state,
            _COLUMNS.created,
            _COLUMNS.ended,
            _COLUMNS.error,
            _COLUMNS.result,
        )
        rows = await self._database.fetch_rows(select(*columns).where(*mine))
        if not rows:
            return None
        state, result = JobState(rows[0].pop("state")), rows[0].pop("result")
        status = JobStatus(id=job_id, state=state, **rows[0])
        return StoredJob(status, None if result is None else decode_json(result))

    async def cancel(self, job_id: str) -> None:
        """Mark the job as cancelled, unless it has ended."""
        unended = (_COLUMNS.id == job_id, _COLUMNS.state.in_((_WAITING, _RUNNING)))
        ended = {"state": JobState.CANCELLED.value, "ended": time.time()}
        await self._database.execute(update(JOBS_TABLE).where(*unended).values(ended))

    async def end(
        self, job_id: str, state: JobState, result: str | None, error: str | None
    ) -> None:
        """Store the job's ending, unless it has ended or another process has claimed it.

        Args:
            job_id: the job.
            state: a final state.
            result: the result from `encode_json`; None: the job failed without a `JobEnding`.
            error: why the job failed without a `JobEnding`; None: it did not.
        """
        ended = {
            "state": state.value,
            "ended": time.time(),
            "result": result,
            "error": error,
        }
        mine = (_COLUMNS.id == job_id, *self._is_mine())
        await self._database.execute(update(JOBS_TABLE).where(*mine).values(ended))

    async def find_ended_before(self, when: float) -> list[str]:
        """Return the ids of at most `_MAX_LISTED_JOBS` jobs that ended before `when`.

        Args:
            when: seconds since the epoch.
        """
        query = select(_COLUMNS.id).where(_COLUMNS.ended < when).limit(_MAX_LISTED_JOBS)
        return [row["id"] for row in await self._database.fetch_rows(query)]

    async def find_jobs_of(self, tenant: str) -> list[str]:
        """Return the ids of at most `_MAX_LISTED_JOBS` of the tenant's jobs."""
        query = select(_COLUMNS.id).where(_COLUMNS.tenant == tenant).limit(_MAX_LISTED_JOBS)
        return [row["id"] for row in await self._database.fetch_rows(query)]

    async def erase(self, job_id: str) -> None:
        """Delete the job with its calls, events and attempts."""
        left = (CALLS_TABLE, EVENTS_TABLE, ATTEMPTS_TABLE)
        erased = (delete(table).where(table.c.job == job_id) for table in left)
        await self._database.execute(*erased, delete(JOBS_TABLE).where(_COLUMNS.id == job_id))

    async def _change(self, statement: Executable) -> Sequence[Row[Any]]:
        return await self._database.run_write(
            lambda connection: connection.execute(statement).all()
        )

    def _claim_values(self) -> dict[str, Any]:
        until = self._now() + CLAIM_SECONDS
        return {"state": _RUNNING, "runner": self._runner, "leased_until": until}

    def _is_mine(self) -> tuple[Any, ...]:
        return _COLUMNS.runner == self._runner, _COLUMNS.state.in_((_WAITING, _RUNNING))

    def _now(self) -> Any:
        if self._dialect == "postgresql":
            return func.extract("epoch", func.clock_timestamp()).cast(Float(53))
        return time.time()


def owner_to_text(owner: JobOwner) -> str:
    """Return the owner as the text stored in the table."""
    return json.dumps([owner.tenant, owner.key])


def owner_from_text(text: str) -> JobOwner:
    """Return the owner from the text stored in the table."""
    return JobOwner(*json.loads(text))
