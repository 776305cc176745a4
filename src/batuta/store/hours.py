"""Hours and days in UTC, for grouping in SQL queries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

HOUR_SECONDS = 3600.0
DAY_SECONDS = 86_400


def utc_hour(moment: float) -> str:
    """Return the hour of a time in seconds since the epoch, as `2026-11-21T14`, in UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H")


def day_start(day: str) -> float:
    """Return the start of the day (UTC, as `2026-11-21`) in seconds since the epoch.

    Raises:
        ValueError: the text is not a day.
    """
    return datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()


class _UtcText(FunctionElement[str]):
    """A time in UTC as text, of a column of seconds since the epoch."""

    type = Text()
    sqlite_format = ""
    postgres_format = ""


class hour_of(_UtcText):  # noqa: N801 - it is written as an SQL function
    """The hour, in the format of `utc_hour`, of a column of seconds since the epoch."""

    inherit_cache = True
    sqlite_format = "%Y-%m-%dT%H"
    postgres_format = 'YYYY-MM-DD"T"HH24'


class day_of(_UtcText):  # noqa: N801 - it is written as an SQL function
    """The day in UTC, as `2026-11-21`, of a column of seconds since the epoch."""

    inherit_cache = True
    sqlite_format = "%Y-%m-%d"
    postgres_format = "YYYY-MM-DD"


@compiles(_UtcText)
def compile_for_postgres(element: Any, compiler: Any, **options: Any) -> str:
    """Return PostgreSQL's expression."""
    column = compiler.process(element.clauses, **options)
    return f"to_char(to_timestamp({column}) AT TIME ZONE 'UTC', '{element.postgres_format}')"


@compiles(_UtcText, "sqlite")
def compile_for_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    """Return SQLite's expression."""
    column = compiler.process(element.clauses, **options)
    return f"strftime('{element.sqlite_format}', {column}, 'unixepoch')"
