"""Runs paused on client tools, encrypted, in a database that replicas share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import time
from typing import final

from sqlalchemy import Connection, delete, func, or_, select

from batuta.core import Run, RunId
from batuta.store.codec import sql_text
from batuta.store.database import Database, insert_statement
from batuta.store.deleted import forgotten_among, in_pages
from batuta.store.models import WAITING_RUNS

WAITING_SECONDS = 3600.0
"""Seconds after which a paused run expires."""
MOST_WAITING = 1000
"""Maximum paused runs of a tenant; the oldest are evicted."""
MOST_WAITING_BYTES = 64 << 20
"""Maximum bytes of a tenant's paused runs; the oldest are evicted."""
_COLUMNS = WAITING_RUNS.c


@final
class WaitingTable:
    """The table of the paused runs of all replicas."""

    def __init__(
        self,
        database: Database,
        *,
        most: int = MOST_WAITING,
        most_bytes: int = MOST_WAITING_BYTES,
        clock: Callable[[], float] = time,
    ) -> None:
        """Set up the table.

        Args:
            database: the shared database.
            most: maximum runs of a tenant.
            most_bytes: maximum bytes of a tenant's runs.
            clock: returns seconds since the epoch.
        """
        self._database = database
        self._most = most
        self._most_bytes = most_bytes
        self._clock = clock

    async def put(self, tenant: str, run: Run, body: bytes) -> None:
        """Store the encrypted run, unless the run was erased or is stored already.

        Delete expired runs, and the tenant's oldest runs beyond its limits.
        """
        own, name = sql_text(tenant), sql_text(run.id)
        now = self._clock()
        values = {"tenant": own, "run_id": name, "expires": now + WAITING_SECONDS}
        values |= {"size": len(body), "body": body}

        def put(connection: Connection) -> None:
            connection.execute(delete(WAITING_RUNS).where(_COLUMNS.expires < now))
            if forgotten_among(connection, [name], [(own, run.header.started)]):
                return
            new = insert_statement(connection.dialect.name, WAITING_RUNS).values(values)
            connection.execute(new.on_conflict_do_nothing())
            self._evict_oldest(connection, own)

        await self._database.run_write(put)

    def _evict_oldest(self, connection: Connection, tenant: str) -> None:
        """Delete the tenant's oldest runs beyond its limits."""
        order = (_COLUMNS.expires.desc(), _COLUMNS.run_id)
        rank = func.row_number().over(order_by=order).label("rank")
        held = func.sum(_COLUMNS.size).over(order_by=order).label("held")
        kept = select(_COLUMNS.run_id, rank, held).where(_COLUMNS.tenant == tenant).subquery()
        beyond = or_(kept.c.rank > self._most, kept.c.held > self._most_bytes)
        old = _COLUMNS.run_id.in_(select(kept.c.run_id).where(beyond))
        connection.execute(delete(WAITING_RUNS).where(_COLUMNS.tenant == tenant, old))

    async def get(self, tenant: str, run_id: RunId) -> bytes | None:
        """Return the tenant's encrypted run of that id; None: no such run waits."""
        query = select(_COLUMNS.body).where(
            _COLUMNS.tenant == sql_text(tenant),
            _COLUMNS.run_id == sql_text(run_id),
            _COLUMNS.expires > self._clock(),
        )
        rows = await self._database.fetch_rows(query)
        return rows[0]["body"] if rows else None

    async def dismiss(self, tenant: str, run_ids: Collection[str] | None = None) -> None:
        """Delete these runs of the tenant; None: all its runs."""
        own = delete(WAITING_RUNS).where(_COLUMNS.tenant == sql_text(tenant))
        if run_ids is None:
            await self._database.execute(own)
            return
        for page in in_pages([sql_text(one) for one in run_ids]):
            await self._database.execute(own.where(_COLUMNS.run_id.in_(page)))
