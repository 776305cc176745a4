"""The latest runs with their content, read at once: what pictures of a whole pool are made of."""

from __future__ import annotations

import anyio.lowlevel
from sqlalchemy import select

from batuta.core import Run
from batuta.store.codec import decode_run, sql_text
from batuta.store.database import Database
from batuta.store.models import CONTENTS, RUNS, SAME_RUN


async def recent_runs(
    database: Database, limit: int, tenant: str | None = None
) -> list[tuple[Run, float | None]]:
    """The latest runs whose content is kept, newest first, each with its score.

    Others have their turn between two runs: reading one takes a millisecond.

    Args:
        database: the store's.
        limit: how many runs at most.
        tenant: only that tenant's.

    Raises:
        StoreError: the database fails, or a run cannot be read.
    """
    query = select(CONTENTS.c.body, CONTENTS.c.format, RUNS.c.score).join(RUNS, SAME_RUN)
    if tenant is not None:
        query = query.where(RUNS.c.tenant == sql_text(tenant))
    query = query.order_by(RUNS.c.created.desc(), RUNS.c.id.desc()).limit(limit)
    found: list[tuple[Run, float | None]] = []
    for row in await database.fetch_rows(query):
        found.append((decode_run(row["body"], row["format"]), row["score"]))
        await anyio.lowlevel.checkpoint()
    return found
