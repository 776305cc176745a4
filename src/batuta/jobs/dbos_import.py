"""Moves the jobs that an earlier version stored in DBOS to Batuta's own table of jobs.

DBOS used its own tables: next to ours in an SQLite file, in the schema `dbos` on PostgreSQL.
On PostgreSQL a job that a server of the earlier version is still running is imported after that
server has ended.
"""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import Connection, inspect
from sqlalchemy import text as sql

from batuta.jobs.protocol import JobOwner, JobState
from batuta.jobs.table import CLAIM_SECONDS, JOBS_TABLE, owner_to_text
from batuta.store.database import insert_statement

_BATCH = 200
_STATES = {
    "ENQUEUED": JobState.QUEUED,
    "DELAYED": JobState.QUEUED,
    "PENDING": JobState.QUEUED,
    "CANCELLED": JobState.CANCELLED,
}
_FIND = """
SELECT s.workflow_uuid AS id, s.status, s.created_at, s.completed_at,
    coalesce(i.inputs, s.inputs) AS inputs, coalesce(o.output, s.output) AS output,
    coalesce(o.error, s.error) AS error
FROM {schema}workflow_status s
LEFT JOIN {schema}workflow_input i ON i.workflow_uuid = s.workflow_uuid
LEFT JOIN {schema}workflow_output o ON o.workflow_uuid = s.workflow_uuid
WHERE s.name = 'batuta.job' {movable} LIMIT :most {lock}
"""
_IS_LEFT = """AND (s.status <> 'PENDING' OR s.executor_id NOT IN (
    SELECT id FROM job_peers WHERE seen > clock_timestamp() - make_interval(secs => :silence)))"""
_TABLES = ("workflow_input", "workflow_output", "workflow_status")


def import_dbos_jobs(connection: Connection) -> tuple[int, int]:
    """Move at most 200 jobs in the caller's transaction.

    Returns:
        The number of moved jobs and the number that remain; zeros if there are no tables of DBOS.
    """
    shared = connection.dialect.name == "postgresql"
    known = inspect(connection)
    if not known.has_table(_TABLES[0], schema="dbos" if shared else None):
        return 0, 0
    schema = "dbos." if shared else ""
    movable = _IS_LEFT if shared and known.has_table("job_peers") else ""
    find = _FIND.format(schema=schema, movable=movable, lock="FOR UPDATE OF s" if shared else "")
    values = {"most": _BATCH} | ({"silence": CLAIM_SECONDS} if movable else {})
    rows = [_job_row(row) for row in connection.execute(sql(find), values).mappings()]
    if rows:
        new = insert_statement(connection.dialect.name, JOBS_TABLE).on_conflict_do_nothing()
        connection.execute(new, rows)
    for table in _TABLES:
        erase = sql(f"DELETE FROM {schema}{table} WHERE workflow_uuid = :id")  # noqa: S608 - constants
        for row in rows:
            connection.execute(erase, {"id": row["id"]})
    count = f"SELECT count(*) FROM {schema}workflow_status WHERE name = 'batuta.job'"  # noqa: S608
    return len(rows), int(connection.execute(sql(count)).scalar_one())


def _job_row(row: Any) -> dict[str, Any]:
    """Return the row of our table for a row of DBOS."""
    (submitted,) = orjson.loads(row["inputs"])["positionalArgs"]
    state, result, error = _STATES.get(row["status"], JobState.FAILED), None, None
    if row["status"] == "SUCCESS" and row["output"]:
        ending = orjson.loads(row["output"])
        state, result = JobState(ending["state"]), orjson.dumps(ending["result"]).decode()
    elif state is JobState.FAILED:
        error = _read_error(row["error"])
    return {
        "id": row["id"],
        "tenant": submitted["tenant"],
        "owner": owner_to_text(JobOwner(submitted["tenant"], submitted.get("key"))),
        "body": orjson.dumps(submitted["body"]).decode(),
        "state": state.value,
        "created": (row["created_at"] or 0) / 1000,
        "ended": (row["completed_at"] or row["created_at"]) / 1000 if state.is_final else None,
        "result": result,
        "error": error,
    }


def _read_error(text: str | None) -> str:
    try:
        return str(orjson.loads(text or "")["message"])
    except (ValueError, TypeError, KeyError):
        return "the job failed"
