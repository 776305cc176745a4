"""Migrates a database to the schema that this version needs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import URL, Connection, inspect, select, text

from batuta.errors import StoreError
from batuta.store.database import (
    AdvisoryLock,
    Database,
    database_name,
    is_sqlite,
    open_database,
    parse_url,
)
from batuta.store.models import KEYS, LEDGER, RUNS

REVISIONS = (
    "0001", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012",
    "0013", "0014", "0015", "0016", "0017", "0018", "0019", "0020", "0021", "0022",
)  # fmt: skip
"""Every migration, oldest first, listed so that a current database is opened without alembic."""

HEAD_REVISION = REVISIONS[-1]
"""The schema that this code needs."""

MIGRATIONS = Path(__file__).parent / "migrations"
"""The migrations, shipped inside the package."""

NEW_SQLITE = MIGRATIONS / "new_sqlite.sql"
"""A script for an empty SQLite file, ten times as fast as the migrations; a test checks that both
make the same schema."""


async def stored_revision(database: Database) -> str | None:
    """Return the revision of the database's schema; None if it has none."""
    return await database.run_read(_read_revision)


async def usable_revision(database: Database) -> str | None:
    """Return the revision of the schema, after checking that the database can be used now.

    None: the database has no schema.

    Raises:
        StoreError: the database fails or is damaged, or another program has locked an SQLite file.
    """
    return await database.probe(_read_some)


def _read_some(connection: Connection) -> str | None:
    """Read the revision and one row of each table that serving needs."""
    revision = _read_revision(connection)
    if revision == HEAD_REVISION:
        for table in (RUNS, KEYS, LEDGER):
            connection.execute(select(table).limit(1)).first()
    return revision


def check_revision(revision: str | None, url: URL) -> None:
    """Check that this version knows the schema; a database without a schema passes.

    Raises:
        StoreError: the database is newer than the code.
    """
    if revision is not None and revision not in REVISIONS:
        raise StoreError(
            f"{database_name(url)} was written by a newer Batuta (schema {revision}; this version "
            f"supports up to {HEAD_REVISION}): upgrade Batuta or use another database"
        )


def upgrade_database(target: str | Path | URL) -> None:
    """Migrate the database to `HEAD_REVISION`; create a missing SQLite file.

    This runs its own event loop, so call it in a thread without one.

    Several processes may call this at the same time: one migrates and the others wait.

    Raises:
        StoreError: the database cannot be used, or is newer than the code.
    """
    url = target if isinstance(target, URL) else parse_url(target)
    asyncio.run(_upgrade_async(url))


async def _upgrade_async(url: URL) -> None:
    database = open_database(url, pooled=False)
    try:
        await database.run_write(lambda connection: _bring_to_head(connection, url))
    finally:
        await database.close()


def _bring_to_head(connection: Connection, url: URL) -> None:
    _lock_database(connection)
    revision = _read_revision(connection)  # under the lock: another process may have migrated
    check_revision(revision, url)
    if revision == HEAD_REVISION:
        return
    if is_sqlite(url) and not inspect(connection).get_table_names():
        for statement in NEW_SQLITE.read_text("utf-8").rstrip().split(";\n"):
            connection.exec_driver_sql(statement)
    else:
        run_migrations(connection)


def run_migrations(connection: Connection) -> None:
    """Run the missing migrations."""
    from alembic import command  # noqa: PLC0415 - 150 ms that an up-to-date database never pays
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD_REVISION)


def _lock_database(connection: Connection) -> None:
    """Prevent other processes from migrating until the transaction ends."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif connection.dialect.name == "postgresql":
        AdvisoryLock.MIGRATIONS.take(connection)


def _read_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
