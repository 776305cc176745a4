"""Many rows at once: a COPY in PostgreSQL, a prepared INSERT in SQLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.util import await_only

from batuta.store.database import insert_statement


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that are not there yet; in SQLite those that are there are left as they are.

    Raises:
        IntegrityError: PostgreSQL has one of them already, or they break another rule.
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
