"""From a place on disk to the jobs that can be had there."""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from batuta.errors import StoreError
from batuta.jobs.durable import KEEP_DAYS, DurableJobs
from batuta.jobs.memory import MemoryJobs
from batuta.jobs.protocol import Jobs
from batuta.jobs.records import is_sqlite_file

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_jobs(target: str, kept_days: float | None = None) -> AsyncGenerator[Jobs]:
    """Durable jobs if the extra `[jobs]` is installed, else jobs that live as long as the process.

    Args:
        target: a path of an SQLite file, created with its folder, or the URL of a PostgreSQL
            database.
        kept_days: how long a job is kept after its end, if that is to be less than usual.

    Raises:
        StoreError: the target is no place for jobs, or another process has it.
    """
    if not _has_dbos():
        yield MemoryJobs()
        return
    url = _parse_target(target)
    if is_sqlite_file(url) and is_sqlite_too_old(sqlite3.sqlite_version_info, sys.version_info):
        logger.warning(
            "background jobs will end with this process: SQLite %s is too old to keep them, "
            "install 3.42 or later, or use PostgreSQL",
            sqlite3.sqlite_version,
        )
        yield MemoryJobs()
        return
    days = KEEP_DAYS if kept_days is None else min(kept_days, KEEP_DAYS)
    async with DurableJobs(url, kept_days=days) as jobs:
        yield jobs


def is_sqlite_too_old(sqlite: tuple[int, ...], python: tuple[Any, ...]) -> bool:
    """Whether DBOS cannot work on that SQLite: from Python 3.12 on it asks it for milliseconds."""
    return python >= (3, 12) and sqlite < (3, 42)


def _has_dbos() -> bool:
    try:
        return find_spec("dbos") is not None
    except ValueError:  # somebody has put something else in its place
        return False


def _parse_target(target: str) -> URL:
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
