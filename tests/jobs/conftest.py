"""Fixtures of the jobs tests."""

import sqlite3
import sys
from contextlib import asynccontextmanager

import anyio
import pytest
from sqlalchemy import URL

from batuta.jobs import MemoryJobs
from batuta.jobs.durable import DurableJobs
from batuta.jobs.factory import is_sqlite_too_old


@pytest.fixture(autouse=True)
def _new_enough():
    if is_sqlite_too_old(sqlite3.sqlite_version_info, sys.version_info):
        pytest.skip(f"SQLite {sqlite3.sqlite_version} is too old to keep jobs")


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
async def working(jobs, perform):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(jobs.work, perform)
        yield jobs
        tasks.cancel_scope.cancel()
