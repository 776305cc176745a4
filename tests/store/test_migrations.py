"""The schema in the file, the schema in the code and the list of migrations agree."""

import sqlite3
import subprocess
import sys

import anyio
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable
from tests.store.strategies import make_run

from batuta.errors import StoreError
from batuta.store import Store
from batuta.store.models import METADATA
from batuta.store.schema import (
    HEAD_REVISION,
    MIGRATIONS,
    REVISIONS,
    run_migrations,
    upgrade_database,
)

pytestmark = pytest.mark.anyio


def test_the_constants_are_alembics():
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [HEAD_REVISION]
    assert tuple(reversed([step.revision for step in script.walk_revisions()])) == REVISIONS


def test_the_migrations_make_the_tables_of_the_code(tmp_path):
    path = tmp_path / "a 100% odd name" / "runs.db"
    upgrade_database(path)
    upgrade_database(path)
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, METADATA) == []


def test_a_new_file_has_what_the_migrations_make(tmp_path):
    upgrade_database(tmp_path / "new.db")
    new = create_engine(f"sqlite:///{tmp_path / 'new.db'}", poolclass=NullPool)
    migrated = create_engine(f"sqlite:///{tmp_path / 'migrated.db'}", poolclass=NullPool)
    with migrated.begin() as connection:
        run_migrations(connection)
    made = []
    for engine in (new, migrated):
        with engine.connect() as connection:
            master = connection.exec_driver_sql(
                "SELECT type, name, tbl_name, sql FROM sqlite_master"
            )
            rows = {
                (kind, name, table, sql and " ".join(sql.split()))
                for kind, name, table, sql in master
            }
            version = connection.exec_driver_sql("SELECT * FROM alembic_version").all()
            made.append((rows, version))
    assert made[0] == made[1], "the file is not what `.dump` of sqlite3 says of a migrated one"


def test_the_tables_are_postgresqls_too():
    ddl = {
        table.name: str(CreateTable(table).compile(dialect=postgresql.dialect()))
        for table in METADATA.sorted_tables
    }
    assert "usd NUMERIC NOT NULL" in ddl["runs"]
    assert "body BYTEA NOT NULL" in ddl["run_contents"]


async def test_an_empty_database_is_migrated(tmp_path):
    path = tmp_path / "runs.db"
    sqlite3.connect(path).close()
    async with Store(path) as store:
        assert await store.is_ready()
        await store.append(make_run())
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (
            HEAD_REVISION,
        )
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_a_newer_database_is_left_alone(tmp_path):
    path = tmp_path / "runs.db"
    await anyio.to_thread.run_sync(upgrade_database, path)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreError, match=r"newer Batuta \(schema 9999.*upgrade Batuta"):
        async with Store(path):
            pytest.fail("it opened")
    with pytest.raises(StoreError, match="newer Batuta"):
        await anyio.to_thread.run_sync(upgrade_database, path)


async def test_a_store_whose_schema_moves_on_is_not_ready(tmp_path):
    path = tmp_path / "runs.db"
    async with Store(path) as store:
        assert await store.is_ready()
        connection = sqlite3.connect(path)
        with connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.close()
        assert not await store.is_ready()


LOADED = """
import sys, anyio
from batuta.store import Store, encode_run
from tests.store.strategies import make_run
sys.modules.pop("hypothesis", None)
async def main():
    async with Store(sys.argv[1]) as store:
        await store.append(make_run())
        await store.list()
anyio.run(main)
print(sorted(set(sys.modules) & {"alembic", "pydantic"}))
"""


def test_an_up_to_date_database_loads_neither_alembic_nor_pydantic(tmp_path):
    path = tmp_path / "runs.db"
    upgrade_database(path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOADED, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
