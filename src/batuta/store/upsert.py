"""Insertions: `INSERT … ON CONFLICT`, and many rows at once.

SQLite and PostgreSQL both have the first, SQLAlchemy for each of them alone. Many rows are a COPY
in PostgreSQL and a prepared INSERT in SQLite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Table
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.util import await_only

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite


def insert_statement(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    """An insertion into the table, of a database of that dialect.

    Only the dialect that is wanted is loaded: PostgreSQL's takes a fortieth of the whole start.
    """
    if dialect == "sqlite":
        from sqlalchemy.dialects import sqlite  # noqa: PLC0415 - see above

        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - see above

    return postgresql.insert(table)


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows that are not there yet; in SQLite those that are there are left as they are.

    Args:
        connection: in a transaction that has begun, by a statement.
        table: where they go.
        rows: all with the same columns.

    Raises:
        IntegrityError: PostgreSQL has one of them already, or they break another rule.
        SQLAlchemyError: the database fails.
    """
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        _copy_rows(connection, table, rows)
        return
    insertion = insert_statement(connection.dialect.name, table).on_conflict_do_nothing()
    connection.execute(insertion, [dict(row) for row in rows])


def _copy_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Copy the rows by the driver itself, whose errors become SQLAlchemy's."""
    import asyncpg  # noqa: PLC0415 - an extra  # pyright: ignore[reportMissingTypeStubs]

    driver: Any = connection.connection.driver_connection
    columns = list(rows[0])
    records = [tuple(row[name] for name in columns) for row in rows]
    try:
        await_only(driver.copy_records_to_table(table.name, records=records, columns=columns))
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if driver.is_closed():
            connection.invalidate(error)
        kind = _ERRORS.get(_sqlstate_class(error), DBAPIError)
        raise kind(f"COPY {table.name}", None, error) from error


_ERRORS = {"22": DataError, "23": IntegrityError}
"""SQLAlchemy's errors by the first two characters of the SQLSTATE."""


def _sqlstate_class(error: BaseException) -> str:
    """Return the first two characters of the SQLSTATE.

    Of values that the driver refuses, a data error's.
    """
    if isinstance(error, ValueError):
        return "22"
    return str(getattr(error, "sqlstate", None) or "")[:2]
