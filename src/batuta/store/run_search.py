"""How runs are looked up, listed and searched: few by their words and many by their time."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    false,
    func,
    or_,
    select,
    text,
    true,
    tuple_,
)

from batuta.core import Outcome
from batuta.store.codec import sql_text
from batuta.store.cursors import parse_cursor
from batuta.store.database import Database
from batuta.store.models import RUNS

_FEW = 4_000
"""Runs that a search may find and still have sorted by itself."""
_SAMPLE = 500
"""Runs of any day, about, that tell which words are common."""
_MOST_WORDS = 16
"""The most words of a search that are looked up one by one."""
_COMMON = 0.05
"""Part of them that shows a common word."""
_STORED = """
SELECT sum(greatest(reltuples, 0)) FROM pg_class JOIN pg_inherits ON oid = inhrelid
WHERE inhparent = CAST(:name AS regclass)
"""
"""Runs of all days, as the last vacuum found them."""
_SHOWN = (RUNS.c.question_preview, RUNS.c.answer_preview)
_HAS_TRIGRAM = re.compile(r"\w{3}")


def run_filter(run_id: str, tenant: str | None) -> tuple[ColumnElement[bool], ...]:
    """The row of that id, if it is that tenant's."""
    name = RUNS.c.id == sql_text(run_id)
    return (name,) if tenant is None else (name, RUNS.c.tenant == sql_text(tenant))


def list_query(
    *,
    before: str | None,
    tenant: str | None,
    model: str | None,
    outcome: Outcome | None,
    session: str | None = None,
) -> Select[Any]:
    """The rows of runs that are listed; what is None leaves out none.

    Args:
        before: the `cursor` of the last summary of the page before.
        tenant: only that tenant's.
        model: only those served under that name.
        outcome: only those that ended so.
        session: only those of that session.

    Raises:
        ValueError: `before` is no cursor.
    """
    query = select(RUNS)
    wanted = ((RUNS.c.tenant, tenant), (RUNS.c.model, model), (RUNS.c.session, session))
    for column, value in wanted:
        if value is not None:
            query = query.where(column == sql_text(value))
    if outcome is not None:
        query = query.where(RUNS.c.outcome == outcome.value)
    if before is not None:
        created, last = parse_cursor(before)  # the time alone leaves out whole days
        query = query.where(
            RUNS.c.created <= created, tuple_(RUNS.c.created, RUNS.c.id) < (created, last)
        )
    return query


async def find_newest(
    database: Database, query: Select[Any], words: str, limit: int
) -> list[dict[str, Any]]:
    """The rows of the newest runs that a search finds.

    Args:
        database: the store's.
        query: of runs, without the words.
        words: what they show, or how their ids begin; empty: any.
        limit: how many at most.

    Raises:
        StoreError: the database fails.
    """
    if words:
        found = await _find_few(database, query, words)
        query = (
            query.where(_search_filter(words))
            if found is None
            else select(RUNS).where(tuple_(RUNS.c.id, RUNS.c.created).in_(found[:limit]))
        )
    return await database.fetch_rows(
        query.order_by(RUNS.c.created.desc(), RUNS.c.id.desc()).limit(limit)
    )


async def find_ids_by_prefix(database: Database, prefix: str, limit: int) -> list[str]:
    """The ids that begin so, newest first; `run_` before them may be left out.

    Raises:
        StoreError: the database fails.
    """
    begun = [prefix, f"run_{prefix}"] if prefix else []
    query = select(RUNS.c.id).where(
        or_(*(RUNS.c.id.startswith(sql_text(one), autoescape=True) for one in begun), false())
    )
    if (found := await _find_few(database, query)) is not None:
        return [run_id for run_id, _ in found[:limit]]
    rows = await database.fetch_rows(query.order_by(RUNS.c.created.desc()).limit(limit))
    return [str(row["id"]) for row in rows]


async def _find_few(
    database: Database, query: Select[Any], words: str = ""
) -> list[tuple[str, float]] | None:
    """The ids and times of what a search finds, newest first; None: these are many.

    Many are soon met in the order of time; few are looked up by their words. PostgreSQL's
    planner, asked for both at once, takes the first way and reads every row for a rare word.

    Args:
        database: the store's.
        query: of runs, without the words.
        words: what they show, if they are searched by it.
    """
    keys = query.with_only_columns(RUNS.c.id, RUNS.c.created).limit(_FEW)

    def find(connection: Connection) -> list[tuple[str, float]]:
        rare: list[str] = []
        if connection.dialect.name == "postgresql":
            rare = _rare_words(connection, words)
            # Planned for these words, not for any.
            connection.execute(text("SET LOCAL plan_cache_mode = force_custom_plan"))
        shown = _rare_filter(words, rare) if rare else _search_filter(words)
        return [(row[0], row[1]) for row in connection.execute(keys.where(shown))]

    found = await database.run_read(find)
    if len(found) == _FEW:
        return None
    return sorted(found, key=lambda one: (one[1], one[0]), reverse=True)


def _search_filter(words: str) -> ColumnElement[bool]:
    """The rows that show these words, all if there are none.

    By `lower`, as the indexes are, and not ILIKE.
    """
    if not words:
        return true()
    return or_(_id_filter(words), *(_contains_words(column, words) for column in _SHOWN))


def _rare_filter(words: str, rare: list[str]) -> ColumnElement[bool]:
    """The same rows, found by the rare ones of the words alone; PostgreSQL's.

    The trigrams of a common word are as many as there are runs, and an index of them is slow to
    say that it leaves out none. So the whole is compared in a way that no index knows.
    """
    return or_(
        _id_filter(words),
        *(
            and_(
                *(_contains_words(column, word) for word in rare),
                func.strpos(func.lower(column), func.lower(words)) > 0,
            )
            for column in _SHOWN
        ),
    )


def _rare_words(connection: Connection, words: str) -> list[str]:
    """Return the words to search by if the others are common.

    None if all are to be used together.
    """
    parts = sorted({word for word in words.split() if _HAS_TRIGRAM.search(word)})
    if not 1 < len(parts) <= _MOST_WORDS:
        return []
    stored = connection.execute(text(_STORED), {"name": RUNS.name}).scalar() or 0.0
    sampled = RUNS.tablesample(func.system(min(100.0, 100.0 * _SAMPLE / max(stored, 1.0))))
    some = select(*(sampled.c[column.name] for column in _SHOWN)).limit(2 * _SAMPLE).subquery()
    counts = (
        func.count().filter(or_(*(_contains_words(column, part) for column in some.c)))
        for part in parts
    )
    *found, total = connection.execute(select(*counts, func.count()).select_from(some)).one()
    rare = [part for part, n in zip(parts, found, strict=True) if n <= _COMMON * total]
    return rare if len(rare) < len(parts) else []


def _id_filter(words: str) -> ColumnElement[bool]:
    return RUNS.c.id.startswith(words, autoescape=True)


def _contains_words(column: ColumnElement[Any], words: str) -> ColumnElement[bool]:
    escaped = words.replace("/", "//").replace("%", "/%").replace("_", "/_")
    return func.lower(column).contains(func.lower(escaped), escape="/")
