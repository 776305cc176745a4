"""`INSERT … ON CONFLICT`: SQLite and PostgreSQL both have it, SQLAlchemy for each of them alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Table

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
