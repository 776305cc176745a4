"""From a place on disk to the jobs that can be had there."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from batuta.errors import StoreError
from batuta.jobs.durable import DurableJobs
from batuta.jobs.memory import MemoryJobs
from batuta.jobs.protocol import Jobs


@asynccontextmanager
async def open_jobs(target: str) -> AsyncGenerator[Jobs]:
    """Durable jobs if the extra `[jobs]` is installed, else jobs that live as long as the process.

    Args:
        target: a path of an SQLite file, created with its folder, or the URL of a PostgreSQL
            database.

    Raises:
        StoreError: the target is no place for jobs, or another process has it.
    """
    if not _has_dbos():
        yield MemoryJobs()
        return
    async with DurableJobs(_url(target)) as jobs:
        yield jobs


def _has_dbos() -> bool:
    try:
        return find_spec("dbos") is not None
    except ValueError:  # somebody has put something else in its place
        return False


def _url(target: str) -> URL:
    if "://" not in target:
        return URL.create("sqlite", database=target)
    try:
        url = make_url(target)
    except ArgumentError as error:
        raise StoreError(f"not a database URL: {error}") from error
    name = url.get_backend_name()
    if name in {"postgres", "postgresql"}:
        return url.set(drivername="postgresql+psycopg")
    if name == "sqlite":
        return url.set(drivername="sqlite")
    raise StoreError(f"jobs cannot be kept in {name}: use sqlite or postgresql")
