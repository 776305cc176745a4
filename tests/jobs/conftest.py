"""Fixtures of the jobs tests."""

from contextlib import asynccontextmanager

import anyio
import pytest

from batuta.jobs import MemoryJobs, open_jobs


@asynccontextmanager
async def _memory(folder, **options):
    yield MemoryJobs(**options)


def _durable(folder, **options):
    return open_jobs(folder / "jobs.db", **options)


@pytest.fixture(params=[_memory, _durable], ids=["memory", "durable"])
def kind(request):
    return request.param


@pytest.fixture
def durable():
    return _durable


@asynccontextmanager
async def working(jobs, perform, *gate):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(jobs.work, perform, *gate)
        yield jobs
        tasks.cancel_scope.cancel()
