"""A clock for what cannot be undone: what is old is removed by it.

The system's clock may jump, for a minute or for good; by it a year's records would be a year older
at once. This one follows it back at once, and ahead no faster than time passes.
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
"""Seconds between two looks at what is too old."""

TRUSTED_GAP_SECONDS = 7 * 86_400.0
"""Seconds by which a server's start may come after all that was stored before, and be believed."""
SETTING_SECONDS = 600.0
"""Seconds in which a clock that was wrong at the start is likely to be set."""


@final
class SteadyClock:
    """Tells the seconds since the epoch, and does not believe a jump ahead."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        passing: Callable[[], float] = time.monotonic,
    ) -> None:
        """Believe the system's clock as it is now.

        Args:
            clock: seconds since the epoch; may jump.
            passing: seconds since any moment; never jumps.
        """
        self._clock = clock
        self._passing = passing
        self._now = self.started = clock()
        """The time at which it began."""
        self._at = passing()

    def __call__(self) -> float:
        """Return the seconds since the epoch, or fewer."""
        at = self._passing()
        self._now = min(self._clock(), self._now + at - self._at)
        self._at = at
        return self._now


STEADY_CLOCK = SteadyClock()
"""This process's, since it was started."""


async def unvouched_seconds(
    database: Database, written: Column[Any], started: float | None = None
) -> float:
    """Return the seconds to wait before anything is removed by the clock, after a start.

    They are 0 where something was written not long before the start: then the clock was right, or
    wrong for so long that nobody can tell.

    Args:
        database: where it was written.
        written: when, in seconds since the epoch.
        started: the start; None: this process's.
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
    """Remove what is old, at once if the clock can be believed, and then every hour.

    Args:
        database: where it is.
        written: when it was written, in seconds since the epoch.
        sweep: removes it; may raise StoreError, and is called again in an hour.
        complaint: what the log says then, before the error.
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
