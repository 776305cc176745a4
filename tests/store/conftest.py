"""Both databases: an SQLite file, and a PostgreSQL server on the loopback if one runs there.

BATUTA_TEST_POSTGRES names the server, by default postgresql://postgres@127.0.0.1:5432/postgres; a
database of its own is made on it and dropped at the end.
"""

import asyncio
import os
import secrets

import pytest

from batuta.store.schema import upgrade_database

SERVER = os.environ.get("BATUTA_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres")


def tell(url, *statements):
    """Runs statements on a PostgreSQL server."""
    import asyncpg

    async def work():
        connection = await asyncpg.connect(url, timeout=5)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(work())


@pytest.fixture(scope="session")
def postgres():
    """The URL of a database that nobody else uses."""
    pytest.importorskip(
        "asyncpg", reason="asyncpg is not installed: pip install 'batuta-llm[postgres]'"
    )
    name = f"batuta_test_{os.getpid()}_{secrets.token_hex(4)}"  # a session may ask for two
    try:
        tell(SERVER, f"CREATE DATABASE {name}")
    except (OSError, TimeoutError) as error:
        pytest.skip(f"no PostgreSQL server at {SERVER.rpartition('@')[2]}: {error}")
    yield f"{SERVER.rpartition('/')[0]}/{name}"
    tell(SERVER, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def copied_postgres(postgres):
    """Makes a database that has the tables and no rows: the copy of one whose migrations were run once."""
    made, copy = f"{postgres}_made", f"{postgres}_copy"
    name, copy_name = (url.rpartition("/")[2] for url in (made, copy))
    tell(SERVER, f"CREATE DATABASE {name}")
    upgrade_database(made)

    def make():
        drop = f"DROP DATABASE IF EXISTS {copy_name} WITH (FORCE)"
        tell(SERVER, drop, f"CREATE DATABASE {copy_name} TEMPLATE {name}")
        return copy

    yield make
    for each in (copy_name, name):
        tell(SERVER, f"DROP DATABASE IF EXISTS {each} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request, tmp_path):
    """A database of each kind without a row: a path where there is no file yet, or a URL."""
    if request.param == "sqlite":
        return tmp_path / "deep" / "folder" / "runs.db"
    return request.getfixturevalue("copied_postgres")()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_target(request, tmp_path):
    """As `target`, without a table."""
    if request.param == "sqlite":
        return tmp_path / "runs.db"
    url = request.getfixturevalue("postgres")
    tell(url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return url
