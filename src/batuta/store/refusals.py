"""Requests that were refused for a key's rates or budgets: counted by hour, no words of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import Any, final

import anyio
from sqlalchemy import Connection, delete, func, select

from batuta.errors import StoreError
from batuta.store.codec import sql_text
from batuta.store.database import Database, insert_statement
from batuta.store.hours import utc_hour
from batuta.store.models import REFUSALS

_LOG = logging.getLogger(__name__)
_PAUSE = 2.0
"""Seconds for which refusals are counted in memory before they are written."""
_KEPT_SECONDS = 400 * 86_400.0
REFUSAL_GROUPS = {
    "hour": REFUSALS.c.hour,
    "day": func.substr(REFUSALS.c.hour, 1, 10).label("day"),
    "tenant": REFUSALS.c.tenant,
    "key": REFUSALS.c.key,
    "code": REFUSALS.c.code,
}
"""Columns by which refusals can be grouped; `code` is the error's, such as `budget_exceeded`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalGroup:
    """The refused requests of one group."""

    group: tuple[str, ...]
    """The group's values, in the order in which the columns were asked for."""
    requests: int


@final
class RefusalLog:
    """Counts refused requests, and writes the counts now and then.

    A refusal costs its request no write. A process that is killed loses those of its last seconds.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: Counter[tuple[str, str, str, str]] = Counter()
        self._news = anyio.Event()
        self._closing = anyio.Event()
        self._ended = anyio.Event()

    def note(self, tenant: str, key: str, code: str, at: float | None = None) -> None:
        """Count a refused request."""
        hour = utc_hour(time() if at is None else at)
        self._counts[hour, sql_text(tenant), sql_text(key), code] += 1
        self._news.set()

    async def work(self) -> None:
        """Write what is counted, until `close`."""
        try:
            while not self._closing.is_set():
                await self._news.wait()
                with anyio.move_on_after(_PAUSE):
                    await self._closing.wait()
                self._news = anyio.Event()
                with anyio.CancelScope(shield=True):
                    await self._try_flush()
        finally:
            self._ended.set()

    async def close(self) -> None:
        """End `work`, which writes what is counted."""
        self._closing.set()
        self._news.set()
        await self._ended.wait()

    async def flush(self) -> None:
        """Write what is counted.

        Raises:
            StoreError: the database fails; the counts are kept.
        """
        counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            await self._database.run_write(lambda connection: _add_counts(connection, counts))
        except BaseException:
            self._counts.update(counts)
            raise

    async def report(
        self, by: Sequence[str] = ("code",), *, tenant: str | None = None, since: float = 0.0
    ) -> list[RefusalGroup]:
        """Return the groups, ordered by their names.

        Args:
            by: what to tell apart; see `REFUSAL_GROUPS`.
            tenant: only that tenant's.
            since: seconds since the epoch; the hour of that moment is the first.

        Raises:
            ValueError: refusals cannot be told apart by that.
        """
        for name in by:
            if name not in REFUSAL_GROUPS:
                raise ValueError(f"refusals are grouped by {', '.join(REFUSAL_GROUPS)}, not {name}")
        await self.flush()
        columns = [REFUSAL_GROUPS[name] for name in by]
        query = select(*columns, func.sum(REFUSALS.c.requests).label("requests"))
        query = query.where(REFUSALS.c.hour >= utc_hour(since)).group_by(*columns)
        if tenant is not None:
            query = query.where(REFUSALS.c.tenant == sql_text(tenant))
        rows = await self._database.fetch_rows(query)
        found = [
            RefusalGroup(group=tuple(row[name] for name in by), requests=int(row["requests"]))
            for row in rows
        ]
        return sorted(found, key=lambda each: each.group)

    async def _try_flush(self) -> None:
        try:
            await self.flush()
        except StoreError as error:
            _LOG.warning("refusals are not written: %s", error)


def _add_counts(connection: Connection, counts: Counter[tuple[str, str, str, str]]) -> None:
    old = utc_hour(time() - _KEPT_SECONDS)
    connection.execute(delete(REFUSALS).where(REFUSALS.c.hour < old))
    for (hour, tenant, key, code), requests in sorted(counts.items()):
        values: dict[str, Any] = {"hour": hour, "tenant": tenant, "key": key, "code": code}
        new = insert_statement(connection.dialect.name, REFUSALS)
        new = new.values(**values, requests=requests)
        connection.execute(
            new.on_conflict_do_update(
                index_elements=list(values),
                set_={"requests": REFUSALS.c.requests + new.excluded.requests},
            )
        )
