"""Runs are executed in this process, on its event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import anyio

from batuta.lab.executor.asking import Answer, set_answer
from batuta.lab.executor.protocol import ExecutorJob, ItemT, ResultT


@final
class LocalExecutor:
    """Runs items in this process."""

    machines = 1
    processes = 1

    async def run_all(
        self,
        job: ExecutorJob[ItemT, ResultT],
        items: Sequence[ItemT],
        deliver: Callable[[int, ResultT], None],
        *,
        concurrency: int,
        answer: Answer | None = None,
    ) -> None:
        """Run every item; see `Executor`.

        Raises:
            ExceptionGroup: of the first error of the job or of `deliver`.
        """
        waiting = iter(enumerate(items))
        async with job.open() as execute, anyio.create_task_group() as group:

            async def run_waiting() -> None:
                set_answer(answer)
                for place, item in waiting:
                    deliver(place, await execute(item))

            for _ in range(min(concurrency, len(items))):
                group.start_soon(run_waiting)
