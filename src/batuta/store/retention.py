"""Purges old runs, with their contents, and old responses. The ledger stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import anyio
from sqlalchemy import Connection, delete, select, tuple_

from batuta.store.database import Database, DatabaseFailedError, is_transient
from batuta.store.hours import DAY_SECONDS
from batuta.store.models import RUNS
from batuta.store.partitions import drop_old_days, prunable_tables
from batuta.store.responses import RESPONSES
from batuta.store.steady_clock import STEADY_CLOCK, sweep_hourly

BATCH_ROWS = 500
"""Maximum rows of one transaction, so that other transactions are not blocked for long."""
_DROP_ATTEMPTS = 20
"""Attempts to drop days while the tables are locked."""
_DROP_PAUSE_SECONDS = 0.5
_UNFINISHED_STATES = ("queued", "in_progress")


@final
class RetentionSweeper:
    """Purges runs and responses that are older than a number of days."""

    def __init__(
        self,
        database: Database,
        days: float,
        *,
        clock: Callable[[], float] = STEADY_CLOCK,
        batch: int = BATCH_ROWS,
    ) -> None:
        """Set up the sweeper.

        Args:
            database: the database; the caller closes it.
            days: how long runs and responses are kept.
            clock: returns seconds since the epoch.
            batch: maximum rows of one transaction.
        """
        self._database = database
        self._days = days
        self._clock = clock
        self._batch = batch

    async def work(self) -> None:
        """Sweep every hour until cancelled; see `sweep_hourly`."""
        complaint = "old runs could not be purged (retrying in an hour)"
        await sweep_hourly(self._database, RUNS.c.created, self.sweep, complaint)

    async def sweep(self) -> tuple[int, int]:
        """Purge old runs and responses; return the number of each.

        A response that is queued or in progress is kept. In PostgreSQL a day of runs (UTC) is
        purged as a whole, when its last second is too old.

        Raises:
            StoreError: the database fails.
        """
        limit = self._clock() - self._days * DAY_SECONDS
        runs = await self._drop_days(limit)
        runs += await self._delete_in_batches(_delete_old_runs, limit)
        return runs, await self._delete_in_batches(_delete_old_responses, limit)

    async def _drop_days(self, limit: float) -> int:
        """Drop each day in a separate transaction, so that others wait for only one day."""
        total = failures = 0
        while True:
            try:
                dropped = await self._database.run_write(
                    lambda connection: drop_old_days(connection, limit)
                )
            except DatabaseFailedError as error:
                failures += 1
                if failures >= _DROP_ATTEMPTS or not is_transient(error):
                    raise
                await anyio.sleep(_DROP_PAUSE_SECONDS)
                continue
            if dropped < 0:
                return total
            total += dropped

    async def _delete_in_batches(
        self, delete_batch: Callable[[Connection, float, int], int], limit: float
    ) -> int:
        total = 0
        while True:
            deleted = await self._database.run_write(
                lambda connection: delete_batch(connection, limit, self._batch)
            )
            total += deleted
            if deleted < self._batch:
                return total


def _delete_old_runs(connection: Connection, limit: float, most: int) -> int:
    """Delete at most `most` runs that are too old, with their contents."""
    runs, contents = prunable_tables(connection)
    old = select(runs.c.id).where(runs.c.created < limit).order_by(runs.c.created).limit(most)
    ids = [row[0] for row in connection.execute(old)]
    if ids:
        connection.execute(delete(contents).where(contents.c.run_id.in_(ids)))
        connection.execute(delete(runs).where(runs.c.id.in_(ids)))
    return len(ids)


def _delete_old_responses(connection: Connection, limit: float, most: int) -> int:
    key = (RESPONSES.c.id, RESPONSES.c.tenant)
    ended = RESPONSES.c.status.not_in(_UNFINISHED_STATES)
    old = select(*key).where(RESPONSES.c.created < limit, ended).limit(most)
    keys = [tuple(row) for row in connection.execute(old)]
    if keys:
        connection.execute(delete(RESPONSES).where(tuple_(*key).in_(keys)))
    return len(keys)
