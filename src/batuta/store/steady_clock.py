"""A clock for purging old data, which cannot be undone.

The system clock may jump ahead, which would suddenly make all records too old. This clock follows a
jump back immediately, but moves ahead no faster than the monotonic clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Never, final

import anyio
from sqlalchemy import Column, func, select

from batuta.errors import StoreError
from batuta.store.database import Database

_LOG = logging.getLogger(__name__)
SWEEP_SECONDS = 3600.0
"""Seconds between two purges."""

TRUSTED_GAP_SECONDS = 7 * 86_400.0
"""The clock is trusted if the newest stored row is at most this much older than the start."""
SETTING_SECONDS = 600.0
"""Seconds after the start of the process within which a wrong clock is likely to be corrected."""


@final
class SteadyClock:
    """Returns the seconds since the epoch, ignoring jumps ahead."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        passing: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with the current time of the system clock.

        Args:
            clock: seconds since the epoch; may jump.
            passing: a monotonic clock.
        """
        self._clock = clock
        self._passing = passing
        self.started = clock()
        """The system time at creation."""
        self._now = self.started
        self._at = passing()

    def __call__(self) -> float:
        """Return the seconds since the epoch, or less after a jump ahead."""
        at = self._passing()
        self._now = min(self._clock(), self._now + at - self._at)
        self._at = at
        return self._now


STEADY_CLOCK = SteadyClock()
"""The clock of this process, created at its start."""


async def unvouched_seconds(
    database: Database, written: Column[Any], started: float | None = None
) -> float:
    """Return the seconds to wait after a start before the clock is trusted for a purge.

    The result is 0 if no row was written before the start, or if the newest of those rows is at
    most `TRUSTED_GAP_SECONDS` older than the start: the clock is then right, or has been wrong for
    so long that it cannot be detected. Otherwise it is `SETTING_SECONDS`.

    Args:
        database: the database.
        written: the column with the time of writing, in seconds since the epoch.
        started: the time of the start, in seconds since the epoch; None: the start of this process.
    """
    began = STEADY_CLOCK.started if started is None else started
    query = select(func.max(written).label("newest")).where(written < began)
    [row] = await database.fetch_rows(query)
    newest = row["newest"]
    return 0.0 if newest is None or began - newest <= TRUSTED_GAP_SECONDS else SETTING_SECONDS


async def sweep_hourly(
    database: Database,
    written: Column[Any],
    sweep: Callable[[], Awaitable[object]],
    complaint: str,
) -> Never:
    """Call `sweep` every hour until cancelled.

    The first call follows immediately if the clock is trusted, otherwise after `SETTING_SECONDS`.

    Args:
        database: the database.
        written: the column with the time of writing, in seconds since the epoch.
        sweep: purges old rows; a StoreError is logged, and the next call follows in an hour.
        complaint: the beginning of the log message, before the error.
    """
    waited = False
    while True:
        try:
            if not waited:
                await anyio.sleep(await unvouched_seconds(database, written))
                waited = True
            await sweep()
        except StoreError as error:
            _LOG.warning("%s: %s", complaint, error)
        await anyio.sleep(SWEEP_SECONDS)
