"""Copies a store to another database, such as from SQLite to PostgreSQL, while it is in use.

Every pass writes the rows that are missing or changed in the target, and deletes the rows that the
source no longer has, except lines of the ledger. An interrupted pass can be repeated, since rows
that are already equal are not written again. The last pass, with no server on the source, ends with
equal counts and sums. The tables of background jobs are not copied.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from sqlalchemy import Column, Connection, Table, delete, func, select, tuple_

from batuta.errors import StoreError
from batuta.store.database import (
    Database,
    database_name,
    insert_statement,
    is_partitioned,
    open_database,
    parse_url,
)
from batuta.store.models import CONTENTS, LEDGER, METADATA, RUNS
from batuta.store.partitions import create_partitions, unique_columns
from batuta.store.responses import RESPONSES
from batuta.store.schema import upgrade_database

BATCH = 1_000
"""Maximum rows of one transaction."""
_COMPARED: Mapping[str, tuple[str, ...]] = {
    RUNS.name: (
        "score",
        "score_comment",
        "question_preview",
        "answer_preview",
        "labels",
        "shadow",
        "shadow_usd",
    ),
    CONTENTS.name: (),
    LEDGER.name: (),
    RESPONSES.name: ("status",),
}
"""Columns that are compared to detect a changed row; in other tables, all columns but the key."""
_DELETABLE = tuple(table for table in reversed(METADATA.sorted_tables) if table is not LEDGER)
"""Tables with rows that may be deleted, in the order of deletion: no row is deleted before the rows
that refer to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTransfer:
    """The result of one pass over a table."""

    table: str
    source: int
    """Rows in the source after the pass."""
    target: int
    """Rows in the target after the pass."""
    written: int
    """Rows that were missing or different in the target."""
    forgotten: int
    """Rows that were deleted from the target."""
    source_usd: Decimal
    """The sum of the column `usd`; 0 if the table has none."""
    target_usd: Decimal

    @property
    def equal(self) -> bool:
        """True if both tables have equal numbers of rows and equal sums of dollars."""
        return (self.source, self.source_usd) == (self.target, self.target_usd)


async def transfer_store(
    source: str | Path,
    target: str | Path,
    on_progress: Callable[[str, int], None] = lambda _, __: None,
) -> tuple[TableTransfer, ...]:
    """Make one pass over every table.

    Args:
        source: a path or a URL; its schema is migrated if needed.
        target: another path or URL; its schema is created if needed. No server may write to the
            target yet.
        on_progress: called with a table's name and the number of rows read so far.

    Raises:
        StoreError: a database fails, there is no source, or source and target are the same.
    """
    origin, goal = parse_url(source), parse_url(target)
    if origin == goal:
        raise StoreError(f"{database_name(origin)} cannot be moved to itself")
    if origin.get_backend_name() == "sqlite" and not Path(str(origin.database)).is_file():
        raise StoreError(f"there is no store at {database_name(origin)}")
    for url in (origin, goal):
        await run_sync(upgrade_database, url)
    old, new = open_database(origin), open_database(goal)
    try:
        forgotten = {
            table.name: await _delete_missing_rows(old, new, table) for table in _DELETABLE
        }
        transfers: list[TableTransfer] = []
        for table in METADATA.sorted_tables:
            written = await _write_changed(old, new, table, on_progress)
            counts = [await _count_rows(database, table) for database in (old, new)]
            transfers.append(
                TableTransfer(
                    table=table.name,
                    source=counts[0][0],
                    target=counts[1][0],
                    written=written,
                    forgotten=forgotten.get(table.name, 0),
                    source_usd=counts[0][1],
                    target_usd=counts[1][1],
                )
            )
        return tuple(transfers)
    finally:
        await old.close()
        await new.close()


async def _write_changed(
    old: Database, new: Database, table: Table, on_progress: Callable[[str, int], None]
) -> int:
    """Write the rows that are missing or different in the target; return their number."""
    compared = _compared_columns(table)
    keys = tuple(table.primary_key.columns)
    written = read = 0
    async for rows in _read_pages(old, table, (*keys, *compared)):
        names = [tuple(row[key.name] for key in keys) for row in rows]
        known = {
            tuple(row[key.name] for key in keys): row
            for row in await new.fetch_rows(
                select(*keys, *compared).where(tuple_(*keys).in_(names))
            )
        }
        missing = [
            name for name, row in zip(names, rows, strict=True) if dict(row) != known.get(name)
        ]
        if missing:
            found = await old.fetch_rows(select(table).where(tuple_(*keys).in_(missing)))
            writable = await _with_parents(new, table, found)
            await new.run_write(
                lambda connection, rows=writable: _upsert_rows(connection, table, rows)
            )
            written += len(writable)
        read += len(rows)
        on_progress(table.name, read)
    return written


async def _with_parents(
    new: Database, table: Table, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows whose parents are in the target; the next pass writes the others."""
    for foreign in table.foreign_keys:
        child, parent = foreign.parent.name, foreign.column
        query = select(parent).where(parent.in_([row[child] for row in rows]))
        existing = {row[parent.name] for row in await new.fetch_rows(query)}
        rows = [row for row in rows if row[child] in existing]
    return rows


def _upsert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    dialect = connection.dialect.name
    statement = insert_statement(dialect, table)
    keys = unique_columns(dialect, table)
    if table in {RUNS, CONTENTS} and is_partitioned(connection):
        create_partitions(connection, (row["created"] for row in rows))
    others = {c.name: statement.excluded[c.name] for c in table.columns if c.name not in keys}
    changed = (
        statement.on_conflict_do_update(index_elements=keys, set_=others)
        if others
        else statement.on_conflict_do_nothing(index_elements=keys)  # all columns are in the key
    )
    connection.execute(changed, [dict(row) for row in rows])


async def _delete_missing_rows(old: Database, new: Database, table: Table) -> int:
    """Delete rows from the target that the source no longer has; return their number."""
    keys = tuple(table.primary_key.columns)
    count = 0
    async for rows in _read_pages(new, table, keys):
        names = {tuple(row[key.name] for key in keys) for row in rows}
        query = select(*keys).where(tuple_(*keys).in_(list(names)))
        existing = {tuple(row[key.name] for key in keys) for row in await old.fetch_rows(query)}
        if gone := list(names - existing):
            await new.execute(delete(table).where(tuple_(*keys).in_(gone)))
        count += len(gone)
    return count


async def _read_pages(
    database: Database, table: Table, columns: Sequence[Column[Any]]
) -> AsyncGenerator[list[dict[str, Any]]]:
    """Yield the rows in the order of their keys, in batches."""
    keys = tuple(table.primary_key.columns)
    last: tuple[Any, ...] | None = None
    while True:
        query = select(*columns).order_by(*keys).limit(BATCH)
        if last is not None:
            query = query.where(tuple_(*keys) > last)
        rows = await database.fetch_rows(query)
        if rows:
            yield rows
            last = tuple(rows[-1][key.name] for key in keys)
        if len(rows) < BATCH:
            return


def _compared_columns(table: Table) -> tuple[Column[Any], ...]:
    names = _COMPARED.get(table.name)
    if names is not None:
        return tuple(table.columns[name] for name in names)
    keys = set(table.primary_key.columns)
    return tuple(column for column in table.columns if column not in keys)


async def _count_rows(database: Database, table: Table) -> tuple[int, Decimal]:
    """Return the number of rows and the exact sum of `usd`."""
    rows = await database.fetch_rows(select(func.count().label("rows")).select_from(table))
    usd = Decimal(0)
    if "usd" in table.columns:
        async for page in _read_pages(
            database, table, (*table.primary_key.columns, table.columns["usd"])
        ):
            usd += sum((Decimal(row["usd"]) for row in page), Decimal(0))
    return rows[0]["rows"], usd
