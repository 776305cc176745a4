"""The engine: from a path or URL to connections, and from a driver's error to one sentence."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any, final

import anyio
from sqlalchemy import URL, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    SQLAlchemyError,
    StatementError,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from batuta.errors import StoreError

FAILURES = (SQLAlchemyError, OSError)
"""What a database that cannot be used raises; asyncpg's refused connection is an OSError."""

BUSY_MS = 5_000
"""How long SQLite waits for another writer before it says `locked`."""

_WAL_PAUSE = 0.01
"""Seconds between attempts to switch a file to WAL."""

_PRAGMAS = (
    f"PRAGMA busy_timeout={BUSY_MS}",
    "PRAGMA synchronous=NORMAL",  # a power cut loses the last commits, never the file
    "PRAGMA foreign_keys=ON",
)

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}

_SENTENCES = (
    ("is full", "the disk under {place} is full: free some space"),
    ("readonly", "{place} is read-only: let this user write the file and its folder"),
    ("read-only", "{place} is read-only: let this user write the file and its folder"),
    (
        "unable to open",
        "{place} cannot be opened: check that it is a file and that its folder may be written",
    ),
    ("locked", "{place} is locked by another program: stop the other program"),
    ("not a database", "{place} is not a database: move it away or name another file"),
    ("malformed", "{place} is damaged: restore it from a backup or move it away"),
    ("disk i/o", "the disk under {place} cannot be written: check its space, quota and health"),
)


@final
class Database:
    """An open database; its writers take turns where it has room for one only."""

    def __init__(self, engine: AsyncEngine, url: URL) -> None:
        self.engine = engine
        self.url = url
        # SQLite would let the second writer sleep and poll; here it is woken in time.
        self._turn = anyio.Lock(fast_acquire=True) if is_sqlite(url) else None

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction, committed at the block's end; errors are the driver's."""
        if self._turn is None:
            async with self.engine.begin() as connection:
                yield connection
            return
        async with self._turn, self.engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def begin(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction, committed at the block's end.

        Raises:
            StoreError: the database fails.
        """
        try:
            async with self.write() as connection:
                yield connection
        except FAILURES as error:
            raise explain(error, self.url) from error

    async def rows(self, query: Any) -> list[dict[str, Any]]:
        """What the query finds.

        Raises:
            StoreError: the database fails.
        """
        try:
            async with self.engine.connect() as connection:
                return [dict(row) for row in (await connection.execute(query)).mappings()]
        except FAILURES as error:
            raise explain(error, self.url) from error


def parse_url(target: str | Path) -> URL:
    """The database's URL, its asynchronous driver filled in; a path names an SQLite file.

    Raises:
        StoreError: the target names no file and no database that can be used.
    """
    text = str(target)
    if "://" not in text:
        if text in {"", ":memory:"}:
            raise StoreError(f"{text!r} names no file: the store needs a path or a URL")
        return URL.create("sqlite+aiosqlite", database=str(Path(text).expanduser().absolute()))
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise StoreError(f"not a database URL: {error}") from error
    url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
    if url.drivername not in _DRIVERS.values():
        raise StoreError(f"{url.drivername} is not supported: use sqlite or postgresql")
    database = url.database or ":memory:"
    if is_sqlite(url) and (database == ":memory:" or database.startswith("file:")):
        raise StoreError(f"{text} names no file: the store needs one that outlives a connection")
    return url


def is_sqlite(url: URL) -> bool:
    """Whether the database is an SQLite file."""
    return url.get_backend_name() == "sqlite"


def place_of(url: URL) -> str:
    """The database as a message names it: the file, or the URL without its password."""
    return str(url.database) if is_sqlite(url) else url.render_as_string(hide_password=True)


def open_engine(url: URL, *, pooled: bool = True) -> AsyncEngine:
    """An engine; it connects on first use. Creates an SQLite file and its folder. Blocks.

    Raises:
        StoreError: the file cannot be opened, or the driver is not installed.
    """
    try:
        if is_sqlite(url):
            _probe(url)
        options: dict[str, Any] = {} if pooled else {"poolclass": NullPool}
        engine = create_async_engine(url, **options)
    except ImportError as error:
        raise StoreError(f"{error.name} is not installed: pip install {error.name}") from error
    if is_sqlite(url):
        event.listen(engine.sync_engine, "connect", _configure)
    return engine


def explain(error: Exception, url: URL) -> StoreError:
    """The error as one sentence that says what to do."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    text = str(cause)
    for mark, sentence in _SENTENCES:
        if mark in text.lower():
            return StoreError(sentence.format(place=place_of(url)))
    return StoreError(f"{place_of(url)} cannot be used: {text or type(cause).__name__}")


def is_passing(error: Exception) -> bool:
    """Whether the same statement may well succeed in a moment."""
    return isinstance(error, DBAPIError) and "locked" in str(error.orig).lower()


def is_about_a_row(error: Exception) -> bool:
    """Whether the database works and only refuses these values."""
    if isinstance(error, DBAPIError):
        return isinstance(error, (IntegrityError, DataError))
    return isinstance(error, StatementError)


def _probe(url: URL) -> None:
    """Opens the file once without aiosqlite, whose thread may outlive the loop if that fails."""
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            _configure(connection, None)
            _use_wal(connection)
    except OSError as error:
        raise StoreError(
            f"the folder of {path} cannot be created: {error.strerror or error}"
        ) from error
    except sqlite3.Error as error:
        raise explain(error, url) from error


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switches the file to WAL, for good.

    SQLite does not wait for others here, busy_timeout or not: of two processes that open a new
    file at the same time one would be told that it is locked.
    """
    deadline = monotonic() + BUSY_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or monotonic() > deadline:
                raise
            sleep(_WAL_PAUSE)
        else:
            return


def _configure(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    try:
        for pragma in _PRAGMAS:
            cursor.execute(pragma)
    finally:
        cursor.close()
