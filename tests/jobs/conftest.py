"""Fixtures of the jobs tests."""

from contextlib import asynccontextmanager

import anyio


@asynccontextmanager
async def working(jobs, perform, *gate):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(jobs.work, perform, *gate)
        yield jobs
        tasks.cancel_scope.cancel()
