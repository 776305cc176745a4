"""Opens SQLite and PostgreSQL databases and turns the drivers' errors into plain sentences.

`insert_statement` is needed because SQLAlchemy has `INSERT … ON CONFLICT` only per dialect.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    closing,
    contextmanager,
    suppress,
)
from enum import IntEnum
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, final

import anyio
from anyio.to_thread import run_sync
from sqlalchemy import (
    URL,
    Connection,
    CursorResult,
    Engine,
    Executable,
    Table,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    SQLAlchemyError,
    StatementError,
)
from sqlalchemy.pool import NullPool

from batuta.distribution import install_hint, package_hint
from batuta.errors import StoreError
from batuta.files import use_wal
from batuta.store.postgres import (
    SILENT_SECONDS,
    SilentServerError,
    choose_timeouts,
    to_asyncpg_url,
)

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

_LOG = logging.getLogger(__name__)

BUSY_MS = 5_000
"""Milliseconds that SQLite waits for another writer before it fails with `locked`."""

_WAL_PAUSE = 0.01
"""Seconds between attempts to truncate the WAL."""

_PROBE_SECONDS = 1.0
"""Seconds that a probe waits for other writers."""

_CHECKPOINTS = 5
"""Attempts to truncate the WAL; each waits up to `BUSY_MS` for readers."""

_PRAGMAS = (
    f"PRAGMA busy_timeout={BUSY_MS}",
    "PRAGMA foreign_keys=ON",
    "PRAGMA secure_delete=ON",  # deleted data is overwritten
)


class AdvisoryLock(IntEnum):
    """Batuta's advisory locks in PostgreSQL; locks with equal numbers would be the same lock."""

    MIGRATIONS = 7_092_010
    AUDIT = 7_092_011
    JOB_TABLES = 7_092_012
    PARTITIONS = 7_092_013

    def take(self, connection: Connection) -> None:
        """Wait for the lock, which is held until the end of the transaction.

        Raises:
            DBAPIError: the database failed.
        """
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({self.value})")


def make_private_file(path: Path) -> None:
    """Create the file and its folder, if they do not exist, accessible to this user only.

    SQLite gives its companion files the same mode. An existing file is not opened: closing it would
    release the locks that this process holds on it.

    Raises:
        OSError: the file cannot be created.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def contains_ignoring_case(text: str | None, words: str) -> bool:
    """Return True if the casefolded text contains the words; a function of SQL in SQLite."""
    return text is not None and words in text.casefold()


def set_pragmas(connection: Any, _record: object, *, synchronous: str) -> None:
    """Set up a new connection; a listener of SQLAlchemy's event `connect`."""
    name = contains_ignoring_case.__name__
    connection.create_function(name, 2, contains_ignoring_case, deterministic=True)
    cursor = connection.cursor()
    try:
        for pragma in (*_PRAGMAS, f"PRAGMA synchronous={synchronous}"):
            cursor.execute(pragma)
    finally:
        cursor.close()


def probe_file(url: URL, work: Callable[[Connection], _T]) -> _T:
    """Run `work` in a new connection that holds the write lock, then roll back. Blocks.

    Raises:
        SQLAlchemyError: the file is locked or damaged.
    """
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": _PROBE_SECONDS})
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            return work(connection)
        finally:
            connection.rollback()


def truncate_log(engine: Engine) -> None:
    """Truncate the WAL of an SQLite file. Blocks.

    A concurrent reader can prevent that; the WAL then stays until the next call.
    """
    for _ in range(_CHECKPOINTS):
        with engine.connect() as connection:
            held = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar()
        if not held:
            return
        sleep(_WAL_PAUSE)


_T = TypeVar("_T")
DatabaseWork = Callable[[Connection], _T]
"""A function that uses a connection and awaits nothing."""

_DRIVER_ERRORS = (SQLAlchemyError, OSError)
"""Errors of a database that cannot be used; asyncpg raises OSError if a connection is refused."""

_MAX_READERS = 4
"""Maximum threads that read an SQLite file, besides the thread that writes."""

_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}

_MISSPELT = re.compile(r"(sqlite|postgres(ql)?)(\+\w+)?(:|//)")
"""Matches a mistyped URL, which must not become a file name, as it may contain a password."""

_NO_URL = (
    "this is not the URL of a database, such as postgresql://user:password@host/name; it is not "
    "shown, as it may contain the password"
)

_BUSY_MARKS = ("locked", "lock timeout", "deadlock")
"""Parts of the error messages of a database that is in use by other transactions."""

_SENTENCES = (
    ("is full", "the disk under {name} is full: free some space"),
    ("readonly", "{name} is read-only: let this user write the file and its folder"),
    ("read-only", "{name} is read-only: let this user write the file and its folder"),
    (
        "unable to open",
        "{name} cannot be opened: check that it is a file and that its folder may be written",
    ),
    ("locked", "{name} is locked by another program: stop the other program"),
    ("not a database", "{name} is not a database: move it away or name another file"),
    ("malformed", "{name} is damaged: restore it from a backup or move it away"),
    ("disk i/o", "the disk under {name} cannot be written: check its space, quota and health"),
)
"""Parts of driver errors, in lower case, with the messages that replace them."""


class DatabaseFailedError(StoreError):
    """The database cannot be used or refused a statement; `__cause__` is the driver's error.

    The methods of `Database` raise a driver's error in no other form, so handling StoreError is
    enough.
    """


@final
class Database:
    """An open database.

    SQLite runs each whole transaction in a thread; one thread hop per statement would cost more
    than the database. PostgreSQL runs on the event loop.
    """

    def __init__(self, engine: Engine | AsyncEngine, url: URL) -> None:
        self.url = url
        self._engine = engine
        # One writer thread: with several, SQLite would let the second writer sleep and poll.
        self._writer = _WriterThread() if isinstance(engine, Engine) else None
        self._readers = anyio.CapacityLimiter(_MAX_READERS)
        self._prober = anyio.CapacityLimiter(1)
        self._silent_until = 0.0
        """The time, by `monotonic`, until which calls on PostgreSQL fail immediately."""

    async def run_write(self, work: DatabaseWork[_T]) -> _T:
        """Run `work` in a transaction and return its result.

        Raises:
            DatabaseFailedError: the database fails; the cause is the driver's error.
        """
        engine = self._engine
        with explained_errors(self.url):
            if isinstance(engine, Engine):
                return await self._in_writer(partial(_run_in_connection, engine.begin, work))
            return await self._run_async(engine.begin, work)

    async def execute(self, first: Executable, *then: Executable) -> int:
        """Execute statements in one transaction; return the number of rows the first changed."""

        def run(connection: Connection) -> int:
            result: CursorResult[Any] = connection.execute(first)
            for statement in then:
                connection.execute(statement)
            return result.rowcount

        return await self.run_write(run)

    async def run_read(self, work: DatabaseWork[_T]) -> _T:
        """Run `work`, which must only read, and return its result.

        Raises:
            DatabaseFailedError: the database fails; the cause is the driver's error.
        """
        engine = self._engine
        with explained_errors(self.url):
            if isinstance(engine, Engine):
                read = partial(_run_in_connection, engine.connect, work)
                return await run_sync(read, limiter=self._readers)
            return await self._run_async(engine.connect, work)

    async def probe(self, work: DatabaseWork[_T]) -> _T:
        """Run `work`, which must only read; on SQLite also check that writing is possible now.

        An SQLite file is opened again for this, since open connections have parts of it in memory.
        A cancelled call does not wait for the disk. On PostgreSQL this is `run_read`.

        Raises:
            DatabaseFailedError: the database fails, or another program blocks an SQLite file.
        """
        if not is_sqlite(self.url):
            return await self.run_read(work)
        probe = partial(probe_file, self.url, work)
        with explained_errors(self.url):
            return await run_sync(probe, abandon_on_cancel=True, limiter=self._prober)

    async def fetch_rows(self, query: Any) -> list[dict[str, Any]]:
        """Return the rows that the query finds."""

        def find(connection: Connection) -> list[dict[str, Any]]:
            return [dict(row) for row in connection.execute(query).mappings()]

        return await self.run_read(find)

    async def checkpoint(self) -> None:
        """Truncate SQLite's WAL, in which deleted data can still be read; ignored on PostgreSQL."""
        engine = self._engine
        if not isinstance(engine, Engine):
            return
        with explained_errors(self.url):
            await self._in_writer(partial(truncate_log, engine))

    async def _in_writer(self, work: Callable[[], _T]) -> _T:
        """Run `work` in the writer thread and return its result; cancellation waits for its end."""
        assert self._writer is not None  # noqa: S101 - an SQLite file has one
        with anyio.CancelScope(shield=True):
            return await self._writer.submit(work)
        raise AssertionError("a shielded scope swallows nothing")

    async def _run_async(
        self,
        opened: Callable[[], AbstractAsyncContextManager[AsyncConnection]],
        work: DatabaseWork[_T],
    ) -> _T:
        """Run `work` on PostgreSQL; fail immediately for a while after the server was silent."""
        if monotonic() < self._silent_until:
            raise SilentServerError
        connection = None
        try:
            async with opened() as connection:
                try:
                    return await connection.run_sync(work)
                except TimeoutError:  # a server that hangs would not answer a rollback either
                    if not connection.invalidated:
                        raw = await connection.get_raw_connection()
                        cast("Any", raw.driver_connection).terminate()
                        await connection.invalidate()
                    raise
        except TimeoutError as error:
            if connection is None or isinstance(error, SilentServerError):
                self._silent_until = monotonic() + SILENT_SECONDS
            raise

    async def close(self) -> None:
        """Finish the submitted writes and disconnect."""
        if isinstance(self._engine, Engine):
            if self._writer is not None:
                self._writer.close()
            self._engine.dispose()
        else:
            await self._engine.dispose()


@final
class _WriterThread:
    """The thread in which an SQLite file is written, one transaction after another.

    Passing work to a dedicated thread takes a third of the time of a thread pool.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def submit(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Queue `work` for the thread, which the first call starts; return its result's future."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="batuta store", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def do() -> None:
            try:
                resolve = partial(_set_result, future, work())
            except BaseException as error:  # noqa: BLE001 - raised from the future
                resolve = partial(_set_error, future, error)
            with suppress(RuntimeError):  # the event loop and its tasks have ended
                loop.call_soon_threadsafe(resolve)

        self._work.put(do)
        return future

    def close(self) -> None:
        """Finish the submitted work and end the thread. Blocks until then."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (do := self._work.get()) is not None:
            do()


def _set_result(future: asyncio.Future[_T], result: _T) -> None:
    if not future.done():
        future.set_result(result)


def _set_error(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _run_in_connection(
    opened: Callable[[], AbstractContextManager[Connection]], work: DatabaseWork[_T]
) -> _T:
    with opened() as connection:
        return work(connection)


def parse_url(target: str | Path) -> URL:
    """Return the URL of a database, with the driver filled in; a path names an SQLite file.

    Raises:
        StoreError: the target names no file, is not a valid URL, or names another kind of database.
    """
    text = str(target)
    if "://" not in text and not _MISSPELT.match(text):
        if text in {"", ":memory:"}:
            raise StoreError(f"{text!r} names no file: the store needs a path or a URL")
        return URL.create("sqlite+pysqlite", database=str(Path(text).expanduser().absolute()))
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # an invalid port, which may be part of a password
        raise StoreError(_NO_URL) from None
    url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
    if url.drivername not in _DRIVERS.values():
        raise StoreError(f"{url.drivername} is not supported: use sqlite or postgresql")
    database = url.database or ":memory:"
    if is_sqlite(url) and (database == ":memory:" or database.startswith("file:")):
        raise StoreError("the URL names no file: the store needs one that outlives a connection")
    return url


def is_sqlite(url: URL) -> bool:
    """Return True if the database is an SQLite file."""
    return url.get_backend_name() == "sqlite"


def is_partitioned(connection: Connection) -> bool:
    """Return True if the database partitions runs by day."""
    return connection.dialect.name == "postgresql"


def database_name(url: URL) -> str:
    """Return the name for messages: the file's path, or the URL without password and options.

    The options may contain a password too.
    """
    if is_sqlite(url):
        return str(url.database)
    return url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)


def open_database(
    url: URL, *, pooled: bool = True, synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
) -> Database:
    """Return a database, which connects on first use; create a missing SQLite file. Blocks.

    Args:
        url: the database, as `parse_url` returns it.
        pooled: whether connections are kept and reused.
        synchronous: with NORMAL, SQLite may lose the last commits in a power failure; with FULL
            it loses none.

    Raises:
        StoreError: the file cannot be opened, the URL has an unknown option, or the driver is not
            installed.
    """
    options: dict[str, Any] = {} if pooled else {"poolclass": NullPool}
    try:
        if not is_sqlite(url):
            # Imported here because it loads the ORM, a tenth of the whole start-up time.
            from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

            options |= choose_timeouts(pooled=pooled)
            return Database(create_async_engine(to_asyncpg_url(url), **options), url)
        _create_file(url, synchronous)
        if pooled:  # LIFO, since each connection keeps pages of the file in memory
            options |= {"pool_size": _MAX_READERS + 1, "max_overflow": 0, "pool_use_lifo": True}
        engine = create_engine(url, **options)
    except ImportError as error:
        raise StoreError(_describe_missing(error.name or url.drivername)) from error
    event.listen(engine, "connect", partial(set_pragmas, synchronous=synchronous))
    return Database(engine, url)


def _describe_missing(package: str) -> str:
    hint = install_hint("postgres") if package == "asyncpg" else package_hint(package)
    return f"{package} is not installed: {hint}"


@contextmanager
def explained_errors(url: URL) -> Generator[None]:
    """Convert the errors of a driver into DatabaseFailedError."""
    try:
        yield
    except _DRIVER_ERRORS as error:
        raise explain_error(error, url) from error


def explain_error(error: Exception, url: URL) -> DatabaseFailedError:
    """Return the error as a DatabaseFailedError; for a known cause, the message says what to do."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    if isinstance(cause, OSError) and not is_sqlite(url):
        why = "it does not answer" if isinstance(cause, TimeoutError) else "no connection is made"
        hint = "check that the server runs and that the address is correct"
        return DatabaseFailedError(f"{database_name(url)} cannot be used: {why}: {hint}")
    text = str(cause)
    for mark, sentence in _SENTENCES:
        if mark in text.lower():
            return DatabaseFailedError(sentence.format(name=database_name(url)))
    reason = text or type(cause).__name__
    return DatabaseFailedError(f"{database_name(url)} cannot be used: {reason}")


def is_transient(failed: DatabaseFailedError) -> bool:
    """Return True if the same statement may succeed when retried soon."""
    error = failed.__cause__
    message = str(error.orig).lower() if isinstance(error, DBAPIError) else ""
    return any(mark in message for mark in _BUSY_MARKS)


def is_row_error(failed: DatabaseFailedError) -> bool:
    """Return True if the database works and only rejects these values."""
    error = failed.__cause__
    if isinstance(error, DBAPIError):
        return isinstance(error, (IntegrityError, DataError))
    return isinstance(error, StatementError)


def _create_file(url: URL, synchronous: str) -> None:
    """Create the file if it does not exist, and switch it to WAL."""
    path = Path(str(url.database))
    try:
        _warn_if_emptied(path)
        make_private_file(path)
        with closing(sqlite3.connect(path)) as connection:
            set_pragmas(connection, None, synchronous=synchronous)
            use_wal(connection, BUSY_MS / 1000)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be opened or created: {error.strerror or error}"
        ) from error
    except sqlite3.Error as error:
        raise explain_error(error, url) from error


def _warn_if_emptied(path: Path) -> None:
    """Log a warning if the file exists but is empty, which SQLite takes for a new database."""
    with suppress(FileNotFoundError):
        if path.is_file() and not path.stat().st_size:
            _LOG.warning(
                "%s is empty and is used as a new database: if runs, keys and spending were kept "
                "there, restore it from a backup",
                path,
            )


def insert_statement(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Return the dialect's INSERT statement, which has `on_conflict_do_update` and similar methods.

    Only the needed dialect is imported: PostgreSQL's takes a fortieth of the start-up time.
    """
    if dialect == "sqlite":
        from sqlalchemy.dialects import sqlite  # noqa: PLC0415 - see above

        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - see above

    return postgresql.insert(table)
