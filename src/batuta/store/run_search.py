"""How runs are searched: by what they show, few by their words and many by their time."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, or_, text

from batuta.store.database import Database
from batuta.store.models import RUNS

_FEW = 4_000
"""Runs that a search may find and still have sorted by itself."""


async def find_few(database: Database, query: Select[Any]) -> list[tuple[str, float]] | None:
    """The ids and times of what a search finds, newest first; None: these are many.

    Many are soon met in the order of time; few are looked up by their words. PostgreSQL's
    planner, asked for both at once, takes the first way and reads every row for a rare word.
    """
    keys = query.with_only_columns(RUNS.c.id, RUNS.c.created).limit(_FEW)

    def find(connection: Connection) -> list[tuple[str, float]]:
        if connection.dialect.name == "postgresql":  # planned for this word, not for any
            connection.execute(text("SET LOCAL plan_cache_mode = force_custom_plan"))
        return [(row[0], row[1]) for row in connection.execute(keys)]

    found = await database.run_read(find)
    if len(found) == _FEW:
        return None
    return sorted(found, key=lambda one: (one[1], one[0]), reverse=True)


def search_filter(words: str) -> ColumnElement[bool]:
    """The rows that show these words; by `lower`, as the indexes are, and not ILIKE."""
    shown = (RUNS.c.question_preview, RUNS.c.answer_preview)
    escaped = words.replace("/", "//").replace("%", "/%").replace("_", "/_")
    return or_(
        RUNS.c.id.startswith(words, autoescape=True),
        *(func.lower(column).contains(func.lower(escaped), escape="/") for column in shown),
    )
