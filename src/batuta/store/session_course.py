"""A session's requests in order, each with the worker that acted, its cost and its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, select

from batuta.core import Cost, RunId
from batuta.store.codec import sql_text
from batuta.store.database import Database
from batuta.store.models import RUNS
from batuta.store.rows import ActingNote, RunSummary, take_acting_note
from batuta.store.run_list import read_summaries

MOST_REQUESTS = 10_000
"""Maximum requests of a session that are read: the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """One request of a session."""

    id: RunId
    created: float
    """Seconds since the epoch."""
    acted: ActingNote
    """The worker that acted; the reason is set only if another worker took over."""
    input_tokens: int
    cached_tokens: int
    """Tokens of `input_tokens` that were read from a cache."""
    cost: Cost


async def read_session(
    database: Database, session: str, tenant: str | None = None
) -> list[SessionRequest]:
    """Return the first `MOST_REQUESTS` requests of the session, oldest first.

    Empty: there is no such session.

    Args:
        database: the store's database.
        session: the session's id.
        tenant: only that tenant's; None: any tenant's.
    """
    switched = RUNS.c.took_over_from.is_not(None)
    names = (
        *("id", "created", "acting", "took_over_from", "turn"),
        *("input_tokens", "cached_tokens", "usd", "unpriced_calls"),
    )
    columns = [RUNS.c[name] for name in names]
    query = select(*columns, case((switched, RUNS.c.reason)).label("reason"))
    query = query.where(RUNS.c.session == sql_text(session))
    if tenant is not None:
        query = query.where(RUNS.c.tenant == sql_text(tenant))
    query = query.order_by(RUNS.c.created, RUNS.c.id).limit(MOST_REQUESTS)
    return [_read_request(row) for row in await database.fetch_rows(query)]


async def read_requests(database: Database, requests: Sequence[SessionRequest]) -> list[RunSummary]:
    """Return the summaries of the runs of these requests that still exist."""
    keys = [(request.id, request.created) for request in requests]
    return await database.run_read(lambda connection: read_summaries(connection, keys))


def _read_request(row: dict[str, Any]) -> SessionRequest:
    cost, acted = Cost(row.pop("usd"), row.pop("unpriced_calls")), take_acting_note(row)
    return SessionRequest(**row, cost=cost, acted=acted)
