"""Both databases: an SQLite file, and a PostgreSQL server on the loopback if one runs there.

BATUTA_TEST_POSTGRES names the server, by default postgresql://postgres@127.0.0.1:5432/postgres; a
database of its own is made on it and dropped at the end.
"""

import asyncio
import os
import secrets

import pytest

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


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request, tmp_path):
    """An empty database of each kind: a path, or a URL."""
    if request.param == "sqlite":
        return tmp_path / "deep" / "folder" / "runs.db"
    url = request.getfixturevalue("postgres")
    tell(url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return url
