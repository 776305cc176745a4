"""Opens the jobs that can be had at a place on disk."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec

from sqlalchemy import URL

from batuta.distribution import install_hint
from batuta.jobs.durable import KEEP_DAYS, DurableJobs
from batuta.jobs.memory import MemoryJobs
from batuta.jobs.protocol import Jobs
from batuta.jobs.records import is_sqlite_file
from batuta.store.database import parse_url

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_jobs(target: str, kept_days: float | None = None) -> AsyncGenerator[Jobs]:
    """Durable jobs; on PostgreSQL without its driver, jobs that live as long as the process.

    Args:
        target: a path of an SQLite file, created with its folder, or the URL of a PostgreSQL
            database.
        kept_days: how long a job is kept after its end, if that is to be less than usual.

    Raises:
        StoreError: the target is no place for jobs, or another process has it.
    """
    url = _parse_target(target)
    if not is_sqlite_file(url) and not _has_driver():
        logger.warning(
            "background jobs will end with this process: to keep them in PostgreSQL needs an "
            "extra: %s",
            install_hint("jobs"),
        )
        yield MemoryJobs()
        return
    days = KEEP_DAYS if kept_days is None else min(kept_days, KEEP_DAYS)
    async with DurableJobs(url, kept_days=days) as jobs:
        yield jobs


def _has_driver() -> bool:
    try:
        return find_spec("psycopg") is not None
    except ValueError:  # somebody has put something else in its place
        return False


def _parse_target(target: str) -> URL:
    url = parse_url(target)
    if is_sqlite_file(url):
        return url.set(drivername="sqlite")
    options = {"sslmode" if name == "ssl" else name: value for name, value in url.query.items()}
    return url.set(drivername="postgresql+psycopg", query=options)
