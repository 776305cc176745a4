"""Runs are played in this process, on its event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import anyio

from batuta.executor.protocol import ExecutorJob, ItemT, ResultT


@final
class LocalExecutor:
    """Plays in this process."""

    machines = 1
    processes = 1

    async def run_all(
        self,
        job: ExecutorJob[ItemT, ResultT],
        items: Sequence[ItemT],
        deliver: Callable[[int, ResultT], None],
        *,
        concurrency: int,
    ) -> None:
        """Play every item; see `Executor`.

        Raises:
            ExceptionGroup: of the first error of the job or of `deliver`.
        """
        waiting = iter(enumerate(items))
        async with job.open() as play, anyio.create_task_group() as group:

            async def play_waiting() -> None:
                for place, item in waiting:
                    deliver(place, await play(item))

            for _ in range(min(concurrency, len(items))):
                group.start_soon(play_waiting)
