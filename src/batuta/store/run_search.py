"""Lookups of runs by id, and the SQL conditions on their text and labels."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Text,
    and_,
    false,
    func,
    literal,
    or_,
    select,
    text,
)

from batuta.store.codec import sql_text
from batuta.store.database import Database
from batuta.store.models import RUNS

_FEW = 4_000
"""A search that finds fewer runs is sorted in this process instead of in the database."""
_SAMPLE = 500
"""Approximate number of sampled runs by which common words are recognised."""
_MOST_WORDS = 16
"""Maximum words of a search that are checked for being common."""
_COMMON = 0.05
"""A word is common if a larger share of the sample contains it."""
_STORED = """
SELECT sum(greatest(reltuples, 0)) FROM pg_class JOIN pg_inherits ON oid = inhrelid
WHERE inhparent = CAST(:name AS regclass)
"""
"""Number of runs in all partitions, by PostgreSQL's statistics."""
SEARCHED = (RUNS.c.question_preview, RUNS.c.answer_preview)
"""The columns that are searched for words."""
_ID = re.compile(r"run_[0-9a-z_]{6,64}")
_HAS_TRIGRAM = re.compile(r"\w{3}")


def run_conditions(run_id: str, tenant: str | None) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for the run of that id and tenant; None: of any tenant."""
    name = RUNS.c.id == sql_text(run_id)
    return (name,) if tenant is None else (name, RUNS.c.tenant == sql_text(tenant))


async def find_ids_by_prefix(database: Database, prefix: str, limit: int) -> list[str]:
    """Return at most `limit` ids with that prefix, newest first; none for an empty prefix.

    The prefix may leave out `run_`.
    """
    prefixes = [prefix, f"run_{prefix}"] if prefix else []
    query = select(RUNS.c.id).where(
        or_(*(RUNS.c.id.startswith(sql_text(one), autoescape=True) for one in prefixes), false())
    )
    if (found := await _find_few(database, query)) is not None:
        return [run_id for run_id, _ in found[:limit]]
    rows = await database.fetch_rows(query.order_by(RUNS.c.created.desc()).limit(limit))
    return [str(row["id"]) for row in rows]


async def _find_few(database: Database, query: Select[Any]) -> list[tuple[str, float]] | None:
    """Return the ids and times of the runs found, newest first; None: there are too many.

    Scanning in order of time is fast if many runs match, an index lookup if few do. PostgreSQL's
    planner, given `ORDER BY` and `LIMIT`, scans even for a rare match and reads every row.
    """
    keys = query.with_only_columns(RUNS.c.id, RUNS.c.created).limit(_FEW)

    def find(connection: Connection) -> list[tuple[str, float]]:
        if connection.dialect.name == "postgresql":
            # Plan for these values.
            connection.execute(text("SET LOCAL plan_cache_mode = force_custom_plan"))
        return [(row[0], row[1]) for row in connection.execute(keys)]

    found = await database.run_read(find)
    if len(found) == _FEW:
        return None
    return sorted(found, key=lambda row: (row[1], row[0]), reverse=True)


def label_index_filter(label: str) -> ColumnElement[bool]:
    """Return the condition for rows with a label, in the form of PostgreSQL's index on labels."""
    lines = func.string_to_array(RUNS.c.labels, func.chr(10))
    return lines.op("@>")(func.string_to_array(literal(sql_text(label), Text), func.chr(10)))


def contains_label(column: ColumnElement[Any], label: str, dialect: str) -> ColumnElement[bool]:
    """Return the condition for rows with a label, without an index."""
    find = func.strpos if dialect == "postgresql" else func.instr
    return find(column, f"\n{sql_text(label)}\n") > 0


def words_filter(connection: Connection, words: str) -> ColumnElement[bool]:
    """Return the condition of `search_filter`, in a form that is fast for rare words."""
    dialect, rare = connection.dialect.name, list[str]()
    if dialect == "postgresql" and not is_id(words):
        rare = _rare_words(connection, words)
    return _rare_filter(words, rare) if rare else search_filter(words, dialect)


def is_id(words: str) -> bool:
    """Return True if the words are a prefix of an id, which is not searched in texts."""
    return _ID.fullmatch(words) is not None


def search_filter(words: str, dialect: str, columns: Any = RUNS.c) -> ColumnElement[bool]:
    """Return the condition for rows with the text `words`, or with an id that begins with it.

    For a prefix that `is_id` recognises, only the id is compared.
    """
    begins = columns.id.startswith(words, autoescape=True)
    if is_id(words):  # an index finds it in either database
        is_near = and_(columns.id >= words, columns.id <= f"{words}~")
        return and_(is_near, begins) if dialect == "sqlite" else begins
    shown = (columns[column.name] for column in SEARCHED)
    return or_(begins, *(_contains_words(column, words, dialect) for column in shown))


def _rare_filter(words: str, rare: list[str]) -> ColumnElement[bool]:
    """Return the condition of `search_filter` with index lookups of only the rare words.

    This form is for PostgreSQL. Looking up a common word in the trigram index is slow, since nearly
    all runs match. So the whole text is compared with `strpos`, for which no index is used.
    """
    return or_(
        RUNS.c.id.startswith(words, autoescape=True),
        *(
            and_(
                *(_contains_words(column, word) for word in rare),
                func.strpos(func.lower(column), func.lower(words)) > 0,
            )
            for column in SEARCHED
        ),
    )


def _rare_words(connection: Connection, words: str) -> list[str]:
    """Return the rare words; none if all are rare, or fewer than two or too many can be checked."""
    parts = sorted({word for word in words.split() if _HAS_TRIGRAM.search(word)})
    if not 1 < len(parts) <= _MOST_WORDS:
        return []
    stored = connection.execute(text(_STORED), {"name": RUNS.name}).scalar() or 0.0
    sampled = RUNS.tablesample(func.system(min(100.0, 100.0 * _SAMPLE / max(stored, 1.0))))
    sample = select(*(sampled.c[column.name] for column in SEARCHED)).limit(2 * _SAMPLE).subquery()
    counts = (
        func.count().filter(or_(*(_contains_words(column, part) for column in sample.c)))
        for part in parts
    )
    *matches, total = connection.execute(select(*counts, func.count()).select_from(sample)).one()
    rare = [part for part, n in zip(parts, matches, strict=True) if n <= _COMMON * total]
    return rare if len(rare) < len(parts) else []


def _contains_words(
    column: ColumnElement[Any], words: str, dialect: str = "postgresql"
) -> ColumnElement[bool]:
    """Return the condition that the column contains the words, ignoring case.

    PostgreSQL's indexes are on `lower`. SQLite's LIKE ignores only the case of ASCII letters, so it
    accepts any letter in place of another one, and a function of Python compares what it finds.
    """
    escaped = words.replace("/", "//").replace("%", "/%").replace("_", "/_")
    if dialect != "sqlite":
        return func.lower(column).contains(func.lower(escaped), escape="/")
    pattern = "".join(
        letter if letter.isascii() or letter.lower() == letter.upper() else "_"
        for letter in escaped
    )
    found = column.contains(pattern, escape="/")
    if pattern == escaped:
        return found
    return and_(found, func.contains_ignoring_case(column, words.casefold()) > 0)
