"""Jobs in a table: each is claimed, renewed and ended by the process that runs it.

Every statement names the states in which it changes a job, so whatever several processes do at the
same time, a job is claimed by one of them and ends once. On PostgreSQL a claim is a lease by the
database's clock: a job whose process does not renew it waits again. On SQLite one process has the
file, and what it finds to be running was left by one before it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

import orjson
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
    or_,
    select,
    update,
)
from sqlalchemy import text as sql

from batuta.jobs.protocol import Job, JobOwner, JobState, JobStatus, Json
from batuta.jobs.records import ATTEMPTS_TABLE, CALLS_TABLE, EVENTS_TABLE, METADATA
from batuta.store.database import Database, insert_statement

LEASE_SECONDS = 5.0
"""Seconds after its last renewal for which a job belongs to its process."""
_MAX_LISTED_JOBS = 200
_WAITING, _RUNNING = JobState.QUEUED.value, JobState.IN_PROGRESS.value
JOBS_TABLE = Table(
    "jobs",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    # Tenant and key as JSON: whose turn the job waits for.
    Column("owner", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created", Float(53), nullable=False),
    Column("ended", Float(53)),
    Column("result", Text),
    Column("error", Text),
    # The process that runs it, or ran it last.
    Column("runner", Text),
    Column("leased_until", Float(53)),
    Index("ix_jobs_turn", "state", "owner", "created", "id"),
    Index("ix_jobs_tenant", "tenant"),
    Index("ix_jobs_ended", "ended"),
)
_ITS = JOBS_TABLE.c
# One look at the index for each owner, however long their queues are.
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
    """A job as it is stored."""

    status: JobStatus
    result: Json | None


@final
class JobTable:
    """The table; every method raises StoreError if the database fails."""

    def __init__(self, database: Database, runner: str) -> None:
        self._database = database
        self._dialect = database.url.get_backend_name()
        self._runner = runner

    async def add(self, job: Job) -> None:
        """Queue the job; one that is there already is left as it is."""
        row = {
            "id": job.id,
            "tenant": job.tenant,
            "owner": owner_to_text(job.owner),
            "body": orjson.dumps(job.body).decode(),
            "state": _WAITING,
            "created": time.time(),
        }
        new = insert_statement(self._dialect, JOBS_TABLE).values(row)
        await self._database.execute(new.on_conflict_do_nothing())

    async def count_waiting(self, tenant: str, most: int) -> int:
        """Count the waiting jobs of the tenant, as far as `most`."""
        waiting = select(_ITS.id).where(_ITS.tenant == tenant, _ITS.state == _WAITING).limit(most)
        query = select(func.count().label("jobs")).select_from(waiting.subquery())
        return int((await self._database.fetch_rows(query))[0]["jobs"])

    async def waiting_owners(self) -> list[JobOwner]:
        """Return the owners of waiting jobs."""
        return [owner_from_text(row["owner"]) for row in await self._database.fetch_rows(_OWNERS)]

    async def claim(self, owner: JobOwner) -> Job | None:
        """Take the owner's oldest waiting job for this process; None if no job waits any more."""
        waiting = (_ITS.owner == owner_to_text(owner), _ITS.state == _WAITING)
        oldest = (
            select(_ITS.id)
            .where(*waiting)
            .order_by(_ITS.created, _ITS.id)
            .limit(1)
            .with_for_update(skip_locked=True)
            .scalar_subquery()
        )
        taken = update(JOBS_TABLE).where(_ITS.id == oldest, *waiting).values(self._mine())
        rows = await self._change(taken.returning(_ITS.id, _ITS.body))
        if not rows:
            return None
        return Job(rows[0].id, owner.tenant, orjson.loads(rows[0].body), key=owner.key)

    async def renew(self, jobs: Collection[str]) -> set[str]:
        """Renew this process's claims of those jobs, and return those that it still has.

        A job that waits again because this process was silent is this process's as long as no
        other has claimed it.
        """
        kept = update(JOBS_TABLE).where(_ITS.id.in_(jobs), *self._is_mine()).values(self._mine())
        return {row.id for row in await self._change(kept.returning(_ITS.id))}

    async def requeue_silent(self) -> None:
        """Let the jobs wait again that no process has renewed for a lease."""
        silent = (_ITS.state == _RUNNING, _ITS.leased_until < self._now())
        await self._database.execute(update(JOBS_TABLE).where(*silent).values(state=_WAITING))

    async def requeue_own(self) -> None:
        """Let the jobs wait again that this process was running."""
        mine = (_ITS.state == _RUNNING, _ITS.runner == self._runner)
        await self._database.execute(update(JOBS_TABLE).where(*mine).values(state=_WAITING))

    async def find_unended(self, jobs: Collection[str]) -> set[str]:
        """Return which of the jobs wait or are run: those that have not ended nor been erased."""
        unended = (_ITS.id.in_(jobs), _ITS.state.in_((_WAITING, _RUNNING)))
        rows = await self._database.fetch_rows(select(_ITS.id).where(*unended))
        return {row["id"] for row in rows}

    async def find(self, job_id: str, tenant: str) -> StoredJob | None:
        """Return the job, if it is that tenant's."""
        mine = (_ITS.id == job_id, _ITS.tenant == tenant)
        columns = (_ITS.state, _ITS.created, _ITS.ended, _ITS.error, _ITS.result)
        rows = await self._database.fetch_rows(select(*columns).where(*mine))
        if not rows:
            return None
        state, result = JobState(rows[0].pop("state")), rows[0].pop("result")
        status = JobStatus(id=job_id, state=state, **rows[0])
        return StoredJob(status, None if result is None else orjson.loads(result))

    async def cancel(self, job_id: str) -> None:
        """Write down that the job is cancelled, unless it has ended."""
        unended = (_ITS.id == job_id, _ITS.state.in_((_WAITING, _RUNNING)))
        ended = {"state": JobState.CANCELLED.value, "ended": time.time()}
        await self._database.execute(update(JOBS_TABLE).where(*unended).values(ended))

    async def end(
        self, job_id: str, state: JobState, result: Json | None, error: str | None = None
    ) -> None:
        """Write down how this process has run the job, unless that is no more for it to say."""
        ended = {
            "state": state.value,
            "ended": time.time(),
            "result": None if result is None else orjson.dumps(result).decode(),
            "error": error,
        }
        mine = (_ITS.id == job_id, *self._is_mine())
        await self._database.execute(update(JOBS_TABLE).where(*mine).values(ended))

    async def find_ended_before(self, when: float) -> list[str]:
        """Return jobs that ended before that time (seconds since the epoch), some at a time."""
        query = select(_ITS.id).where(_ITS.ended < when).limit(_MAX_LISTED_JOBS)
        return [row["id"] for row in await self._database.fetch_rows(query)]

    async def find_jobs_of(self, tenant: str) -> list[str]:
        """Return jobs of the tenant, some at a time."""
        query = select(_ITS.id).where(_ITS.tenant == tenant).limit(_MAX_LISTED_JOBS)
        return [row["id"] for row in await self._database.fetch_rows(query)]

    async def erase(self, job_id: str) -> None:
        """Forget the job and all that it left."""
        left = (CALLS_TABLE, EVENTS_TABLE, ATTEMPTS_TABLE)
        erased = (delete(table).where(table.c.job == job_id) for table in left)
        await self._database.execute(*erased, delete(JOBS_TABLE).where(_ITS.id == job_id))

    async def _change(self, statement: Executable) -> Sequence[Row[Any]]:
        """Execute what returns the rows that it has changed."""
        return await self._database.run_write(
            lambda connection: connection.execute(statement).all()
        )

    def _mine(self) -> dict[str, Any]:
        until = self._now() + LEASE_SECONDS
        return {"state": _RUNNING, "runner": self._runner, "leased_until": until}

    def _is_mine(self) -> tuple[Any, ...]:
        return (_ITS.runner == self._runner, or_(_ITS.state == _RUNNING, _ITS.state == _WAITING))

    def _now(self) -> Any:
        if self._dialect == "postgresql":
            return func.extract("epoch", func.clock_timestamp()).cast(Float(53))
        return time.time()


def owner_to_text(owner: JobOwner) -> str:
    """Return the owner as the table has it."""
    return json.dumps([owner.tenant, owner.key])


def owner_from_text(text: str) -> JobOwner:
    """Return the owner that the table has."""
    return JobOwner(*json.loads(text))
