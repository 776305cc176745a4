"""Counts per hour of requests that were refused by the rates or budgets of a key or tenant."""

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
"""Seconds for which counts are collected in memory before they are written."""
_KEPT_SECONDS = 400 * 86_400.0
REFUSAL_GROUPS = {
    "hour": REFUSALS.c.hour,
    "day": func.substr(REFUSALS.c.hour, 1, 10).label("day"),
    "tenant": REFUSALS.c.tenant,
    "key": REFUSALS.c.key,
    "code": REFUSALS.c.code,
}
"""Columns by which refusals can be grouped; `code` is an error code such as `budget_exceeded`.

Hours and days are in UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalGroup:
    """The refused requests of one group."""

    group: tuple[str, ...]
    """The values of the group, in the order of the requested names."""
    requests: int


@final
class RefusalLog:
    """Counts refused requests in memory, and writes the counts a few seconds later.

    A refused request causes no write of its own. If writing fails, the counts are written with the
    next ones; a process that is killed before loses them. Counts are kept for 400 days.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: Counter[tuple[str, str, str, str]] = Counter()
        self._news = anyio.Event()
        self._closing = anyio.Event()
        self._ended = anyio.Event()

    def note(self, tenant: str, key: str, code: str, at: float | None = None) -> None:
        """Count a refused request.

        Args:
            tenant: the tenant that sent it.
            key: the id of the key.
            code: the error's code.
            at: seconds since the epoch; None: now.
        """
        hour = utc_hour(time() if at is None else at)
        self._counts[hour, sql_text(tenant), sql_text(key), code] += 1
        self._news.set()

    async def work(self) -> None:
        """Write counts every few seconds, until `close`."""
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
        """Write the last counts and end `work`."""
        self._closing.set()
        self._news.set()
        await self._ended.wait()
        await self._try_flush()  # `work` may have been cancelled

    async def flush(self) -> None:
        """Write the counts now.

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
        """Write the counts, then return the groups, ordered by their values.

        Args:
            by: names to group by; see `REFUSAL_GROUPS`.
            tenant: only that tenant's requests; None: all.
            since: only requests from the hour of this time on, in seconds since the epoch.

        Raises:
            ValueError: refusals cannot be grouped by one of the names.
        """
        for name in by:
            if name not in REFUSAL_GROUPS:
                raise ValueError(
                    f"refusals cannot be grouped by {name}: use {', '.join(REFUSAL_GROUPS)}"
                )
        await self.flush()
        columns = [REFUSAL_GROUPS[name] for name in by]
        query = select(*columns, func.sum(REFUSALS.c.requests).label("requests"))
        query = query.where(REFUSALS.c.hour >= utc_hour(since)).group_by(*columns)
        if tenant is not None:
            query = query.where(REFUSALS.c.tenant == sql_text(tenant))
        rows = await self._database.fetch_rows(query)
        groups = [
            RefusalGroup(group=tuple(row[name] for name in by), requests=int(row["requests"]))
            for row in rows
        ]
        return sorted(groups, key=lambda each: each.group)

    async def _try_flush(self) -> None:
        try:
            await self.flush()
        except StoreError as error:
            _LOG.warning("counts of refused requests cannot be written: %s", error)


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
