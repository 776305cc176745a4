"""A cache of all workers' answers to recent questions of a record, shared by several systems."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import final

import anyio

from batuta.core import Run

MAX_CACHED_RUNS = 512
"""The most runs that are cached, which is more than run concurrently."""


@final
class AnswerCache:
    """The latest runs in which all workers were asked.

    A record gives the same replies again, so systems that read all workers' replies and run on a
    question one after another share one run of it. Each is charged for the whole run.
    """

    def __init__(self) -> None:
        self._runs: dict[Hashable, Run | None] = {}
        self._locks: dict[Hashable, anyio.Lock] = {}

    async def get_or_run(self, key: Hashable, execute: Callable[[], Awaitable[Run]]) -> Run:
        """Return the run of that key; execute it if it is not cached."""
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
