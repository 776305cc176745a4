"""What everybody said to the latest questions of a record, for all systems that look at it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import final

import anyio

from batuta.core import Run

MAX_CACHED_RUNS = 512
"""Runs that are remembered; more than are run at the same time."""


@final
class AnswerCache:
    """The latest runs in which everybody was asked at the same time.

    A record says the same again, so systems that look at everybody's replies, and are run on a
    question one after another, share one run of it. Each of them is charged for all of it.
    """

    def __init__(self) -> None:
        self._runs: dict[Hashable, Run | None] = {}
        self._locks: dict[Hashable, anyio.Lock] = {}

    async def get_or_run(self, key: Hashable, execute: Callable[[], Awaitable[Run]]) -> Run:
        """The run of that key; executed if it is not remembered."""
        async with self._locks.setdefault(key, anyio.Lock()):
            run = self._runs.get(key)
            if run is None:
                run = self._runs[key] = await execute()
                self._evict_oldest()
        return run

    def _evict_oldest(self) -> None:
        while len(self._runs) > MAX_CACHED_RUNS:
            oldest = next(iter(self._runs))
            del self._runs[oldest], self._locks[oldest]
