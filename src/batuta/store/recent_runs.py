"""The latest runs with their content, for overviews of the whole pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from time import thread_time
from typing import Any

import anyio.lowlevel
from sqlalchemy import case, func, select, tuple_

from batuta.core import Run
from batuta.store.codec import read_run, sql_text
from batuta.store.database import Database
from batuta.store.models import CONTENTS, RUNS, SAME_RUN

LARGEST_BYTES = 100_000
"""Maximum bytes of a run that is read; decoding a run blocks the event loop."""
READ_SECONDS = 0.1
"""Seconds of CPU time for decoding after which no further run is read."""
_PAGE_RUNS = 20


async def recent_runs(
    database: Database, limit: int, tenant: str | None = None
) -> list[tuple[Run, float | None]]:
    """Return the latest runs with their content, newest first, each with its score, if any.

    Without `tenant`, the runs of all tenants are read. Fewer than `limit` runs are returned if some
    of the latest are above `LARGEST_BYTES`, which are left out, or if decoding takes long: it stops
    after `READ_SECONDS` of CPU time. Other tasks run between two runs.

    Raises:
        StoreError: the database fails, or a run cannot be read.
    """
    runs: list[tuple[Run, float | None]] = []
    spent = 0.0
    async for row in _read_rows(database, limit, tenant):
        if row["body"] is None:
            continue
        began = thread_time()
        run = await read_run(row["body"], row["format"])
        spent += thread_time() - began
        runs.append((run, row["score"]))
        if spent > READ_SECONDS:
            break
        await anyio.lowlevel.checkpoint()
    return runs


async def _read_rows(database: Database, limit: int, tenant: str | None) -> AsyncIterator[Any]:
    """Yield the stored runs, read in small pages; `body` is None for a run that is too large."""
    body = case((func.length(CONTENTS.c.body) <= LARGEST_BYTES, CONTENTS.c.body)).label("body")
    query = (
        select(body, CONTENTS.c.format, RUNS.c.score, RUNS.c.created, RUNS.c.id)
        .join(RUNS, SAME_RUN)
        .order_by(RUNS.c.created.desc(), RUNS.c.id.desc())
    )
    if tenant is not None:
        query = query.where(RUNS.c.tenant == sql_text(tenant))
    after: Sequence[Any] = ()
    while limit > 0:
        page = query.where(tuple_(RUNS.c.created, RUNS.c.id) < after) if after else query
        rows = await database.fetch_rows(page.limit(min(limit, _PAGE_RUNS)))
        for row in rows:
            yield row
        if len(rows) < min(limit, _PAGE_RUNS):
            return
        limit -= len(rows)
        after = (rows[-1]["created"], rows[-1]["id"])
