"""A journal of finished calls on disk, so that finished calls are not paid for twice.

A training or evaluation that was killed repeats its calls when it is resumed. Calls with a seed
that were already answered are read from the journal, with their original usage and cost.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self, final
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel
import orjson
from pydantic import TypeAdapter

from batuta.clients.providers import Identity, client_identity, identity_digest
from batuta.clients.replay import request_fingerprint
from batuta.clients.scripted_client import split_reply
from batuta.core import CallListener, Client, Reply, Request
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import StoreError
from batuta.files import use_wal

BUSY_SECONDS = 30.0
"""Seconds to wait for another process's write lock."""
_CREATE_REACHED = "CREATE TABLE IF NOT EXISTS reached (worker TEXT PRIMARY KEY, identity TEXT)"
_CREATE_TABLE = "CREATE TABLE IF NOT EXISTS calls (worker TEXT, request BLOB, reply BLOB, PRIMARY KEY (worker, request)) WITHOUT ROWID"  # noqa: E501

_LOG = logging.getLogger(__name__)


def warn_if_emptied(*paths: str | Path) -> None:
    """Log a warning for each journal file that exists and has zero bytes.

    To SQLite a zero-byte file is an empty database, so its calls would silently be paid for again.
    Call this once, before any process opens the files, as new files are also empty at first.

    Args:
        paths: paths of files; database URLs are ignored.
    """
    for path in map(Path, paths):
        if path.is_file() and not path.stat().st_size:
            _LOG.warning("%s is empty: calls that it once held are paid for again", path)


def open_journal_file(path: Path, table: str, name: str) -> sqlite3.Connection:
    """Open an SQLite file and create its table; rows are committed at once, so a kill loses none.

    Args:
        path: path of the file; its folder is created.
        table: the statement that creates the table.
        name: the name of the file in error messages.

    Raises:
        StoreError: the file cannot be opened or is not an SQLite file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        use_wal(file, BUSY_SECONDS)
        file.execute("PRAGMA synchronous=NORMAL")
        file.execute(table)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"{name} {path} cannot be opened: {error}; it records calls that were paid for: "
            "restore it from a backup, or move it away to pay for these calls again"
        ) from None
    return file


@dataclass(frozen=True, slots=True)
class CallClaim:
    """The right to make one call, or its reply."""

    reply: Reply | None
    """The stored reply; None if the holder must make the call."""
    keep: Callable[[Reply], Awaitable[Reply]]
    """Stores the reply, or raises `StoreError`; returns the reply to use, which may be one that was
    stored earlier."""


class CallJournal(Protocol):
    """Finished calls, kept so that they are not paid for twice.

    Laws:
    - If several callers claim the same call, one makes it and the others wait for its reply. In a
      file this holds within one process; in a database it holds over all processes.
    - If a claim ends without a reply, the next caller makes the call.
    - A stored reply is returned to all later callers, whichever processes die.
    - A journal that cannot be read or written raises `StoreError`.
    """

    hits: int
    """Number of calls that were answered from the journal."""
    misses: int
    """Number of calls that were made and answered."""

    async def name_worker(self, worker: str, identity: str) -> str:
        """Return the name under which the replies of a worker with this identity are stored.

        The name is the plain id for the first identity with that id. Any other identity has another
        name.

        Args:
            worker: the worker's id.
            identity: digest of the worker's `providers.Identity`.
        """
        ...

    def claim(self, worker: str, request: Request) -> AbstractAsyncContextManager[CallClaim]:
        """Claim the call of that worker with exactly this request, including its seed."""
        ...


@final
class CallCache:
    """Finished calls in an SQLite file; several processes may write to it."""

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            StoreError: the file cannot be opened or is not an SQLite file.
        """
        self.path = path
        self.hits = 0
        self.misses = 0
        self._locks: WeakValueDictionary[tuple[str, bytes], anyio.Lock] = WeakValueDictionary()
        self._file = open_journal_file(path, _CREATE_TABLE, "the call journal")
        self._execute("used", _CREATE_REACHED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, worker: str, request: Request) -> Reply | None:
        """Return the stored reply to exactly this request, including its seed; None if none exists.

        Raises:
            StoreError: the file or the reply in it cannot be read.
        """
        find = "SELECT reply FROM calls WHERE worker = ? AND request = ?"
        rows = self._execute("read", find, worker, request_fingerprint(request))
        return read_reply(rows[0][0]) if rows else None

    def write(self, worker: str, request: Request, reply: Reply) -> None:
        """Store a reply; an earlier reply to the same request is not replaced.

        Raises:
            StoreError: the file cannot be written.
        """
        row = (worker, request_fingerprint(request), write_reply(reply))
        self._execute("written", "INSERT OR IGNORE INTO calls VALUES (?, ?, ?)", *row)

    async def name_worker(self, worker: str, identity: str) -> str:
        """Return the name under which that worker's replies are stored; see `CallJournal`.

        Raises:
            StoreError: the file cannot be read or written.
        """
        self._execute("used", "INSERT OR IGNORE INTO reached VALUES (?, ?)", worker, identity)
        rows = self._execute("used", "SELECT identity FROM reached WHERE worker = ?", worker)
        return stored_worker_name(worker, identity, rows[0][0])

    def _execute(self, use: str, statement: str, *values: str | bytes) -> list[tuple[Any, ...]]:
        """Return the rows of an SQL statement.

        `use` completes the error "the call journal cannot be …", such as "read".

        Raises:
            StoreError: SQLite reports an error.
        """
        try:
            return self._file.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the call journal {self.path} cannot be {use}: {error}") from None

    @asynccontextmanager
    async def claim(self, worker: str, request: Request) -> AsyncGenerator[CallClaim]:
        """Claim the call among the tasks of this process; yield the claim.

        Other processes are not waited for, so two processes may make the same call.

        Raises:
            StoreError: the file or the stored reply cannot be read.
        """

        async def keep(reply: Reply) -> Reply:
            self.write(worker, request, reply)
            return reply

        lock = self._locks.setdefault((worker, request_fingerprint(request)), anyio.Lock())
        async with lock:
            yield CallClaim(self.read(worker, request), keep)


@dataclass(slots=True)
class ReplayCount:
    """The number of replies that came from a journal."""

    replies: int = 0


_REPLAYS: ContextVar[ReplayCount | None] = ContextVar("replays", default=None)


@contextmanager
def count_replays() -> Generator[ReplayCount]:
    """Count the journals' replies to the calls of the block, and of the tasks that it starts.

    A block with such replies takes less time than its calls took.
    """
    count = ReplayCount()
    token = _REPLAYS.set(count)
    try:
        yield count
    finally:
        _REPLAYS.reset(token)


@final
class CallCacheClient:
    """A worker's client with a journal of its replies; requests without a seed bypass it."""

    def __init__(self, client: Client, journal: CallJournal, worker: str) -> None:
        self._client = client
        self._journal = journal
        self._worker = worker
        self._name: str | None = None
        """The name under which the worker's replies are stored; None until it is known."""

    def __repr__(self) -> str:
        return f"Journaled({self._client!r})"

    @property
    def identity(self) -> Identity:
        """The identity of the wrapped client."""
        return client_identity(self._client)

    async def _stored_name(self) -> str:
        if self._name is None:
            identity = self.identity
            self._name = (
                await self._journal.name_worker(self._worker, identity_digest(identity))
                if identity
                else self._worker
            )
        return self._name

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply of the journal, else of the client.

        Raises:
            ClientError: the call failed; failures are not stored.
            LimitReachedError: the listener allows no further attempt.
            StoreError: the journal cannot be read or written.
        """
        if request.sampling.seed is None:
            return await self._client.complete(request, listener)
        async with self._journal.claim(await self._stored_name(), request) as claim:
            known = claim.reply
            if known is None:
                reply = await self._client.complete(request, listener)
                self._journal.misses += 1
                return await claim.keep(reply)
        self._journal.hits += 1
        if (count := _REPLAYS.get()) is not None:
            count.replies += 1
        await anyio.lowlevel.checkpoint()
        if listener.streaming:
            for delta in split_reply(known, 0):
                await listener.on_delta(delta)
        return known


def stored_worker_name(worker: str, identity: str, first: str) -> str:
    """Return the worker's id if `identity` is the first for this id, else the id and `identity`."""
    return worker if identity == first else f"{worker} {identity}"


def read_reply(text: bytes) -> Reply:
    """Decode a reply from a journal row.

    Raises:
        StoreError: the row is damaged, or was written by a later version.
    """
    try:
        return _reply_adapter().validate_json(text)
    except ValueError:
        raise StoreError(
            "the call journal has a reply that cannot be read: use the version of Batuta that "
            "wrote the journal, or move it away to pay for its calls again"
        ) from None


def write_reply(reply: Reply) -> bytes:
    """Encode a reply for a journal row."""
    return orjson.dumps(reply, default=str)


@cache
def _reply_adapter() -> TypeAdapter[Reply]:
    """Return the adapter of replies, built on first use because that takes a while."""
    return TypeAdapter(Reply)
