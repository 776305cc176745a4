"""Fixtures of the jobs tests."""

from contextlib import asynccontextmanager

import anyio
import pytest
from sqlalchemy import URL

from batuta.jobs import MemoryJobs
from batuta.jobs.durable import DurableJobs


@asynccontextmanager
async def _memory(folder, **options):
    yield MemoryJobs(**options)


@asynccontextmanager
async def _durable(folder, **options):
    async with DurableJobs(
        URL.create("sqlite", database=str(folder / "jobs.db")), **options
    ) as jobs:
        yield jobs


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
