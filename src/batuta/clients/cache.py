"""A client that pays for no finished call twice: every reply is on disk before it is given back.

A training or an evaluation that was killed asks the same questions again when it goes on; what was
answered then is read from the journal, with the usage and cost of the time it was paid.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, Self, final
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

BUSY_SECONDS = 30.0
"""Seconds to wait for another process that writes."""
_CREATE_REACHED = "CREATE TABLE IF NOT EXISTS reached (worker TEXT PRIMARY KEY, identity TEXT)"
_CREATE_TABLE = "CREATE TABLE IF NOT EXISTS calls (worker TEXT, request BLOB, reply BLOB, PRIMARY KEY (worker, request)) WITHOUT ROWID"  # noqa: E501

_LOG = logging.getLogger(__name__)


def warn_if_emptied(*paths: str | Path) -> None:
    """Log a sentence for each file of paid calls that is there and holds nothing at all.

    An empty file is an empty database to SQLite, so what was paid before would be paid again
    without a word. To be asked once, before any process opens the files: each begins as empty.

    Args:
        paths: of the files; of an address of a database nothing is said.
    """
    for path in map(Path, paths):
        if path.is_file() and not path.stat().st_size:
            _LOG.warning("%s is empty: calls that it once held are paid for again", path)


def open_journal_file(path: Path, table: str, name: str) -> sqlite3.Connection:
    """Return a file of one table whose rows are kept whatever kills this process, one at a time.

    Args:
        path: of the file; its folder is made.
        table: how the table is made.
        name: what the file is called in an error.

    Raises:
        StoreError: the file cannot be opened or is none of this kind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        file.execute("PRAGMA journal_mode=WAL")
        file.execute("PRAGMA synchronous=NORMAL")
        file.execute(table)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"{name} {path} cannot be opened: {error}; what was paid is written there: restore it "
            "from a backup, or move it away and what it held is paid for again"
        ) from None
    return file


@dataclass(frozen=True, slots=True)
class CallClaim:
    """The right to make one call, or its reply."""

    reply: Reply | None
    """The earlier reply; None if the holder is to make the call."""
    keep: Callable[[Reply], Awaitable[Reply]]
    """Writes the reply down; gives back the one that stays, the first."""


class CallJournal(Protocol):
    """Finished calls, each paid once.

    Laws: of several who claim the same call at the same time one makes it and the others wait for
    its reply; a claim that ends without a reply lets the next one make the call; a reply that was
    kept is given to everybody after that, whatever dies.
    """

    hits: int
    misses: int

    async def name_worker(self, worker: str, identity: str) -> str:
        """Return the name under which that worker's replies are kept, if it is reached so.

        The plain id for whoever was the first behind it; whoever came after has a name of its own.

        Args:
            worker: its id.
            identity: digest of what decides its replies, see `clients.identity`.
        """
        ...

    def claim(self, worker: str, request: Request) -> AbstractAsyncContextManager[CallClaim]:
        """Return the call of that worker with exactly this request, its seed included."""
        ...


@final
class CallCache:
    """Finished calls on disk; several processes may write to one file."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it.

        Raises:
            StoreError: the file cannot be opened or is no journal.
        """
        self.path = path
        self.hits = 0
        """Calls that were answered from the file."""
        self.misses = 0
        """Calls that were made and written down."""
        self._locks: WeakValueDictionary[tuple[str, bytes], anyio.Lock] = WeakValueDictionary()
        self._file = open_journal_file(path, _CREATE_TABLE, "the call journal")
        self._execute(_CREATE_REACHED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, worker: str, request: Request) -> Reply | None:
        """Return the worker's earlier reply to exactly this request, its seed included."""
        try:
            row = self._file.execute(
                "SELECT reply FROM calls WHERE worker = ? AND request = ?",
                (worker, request_fingerprint(request)),
            ).fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"the call journal {self.path} cannot be read: {error}") from None
        return None if row is None else read_reply(row[0])

    def write(self, worker: str, request: Request, reply: Reply) -> None:
        """Keep a reply; the first one to a request stays."""
        row = (worker, request_fingerprint(request), write_reply(reply))
        try:
            self._file.execute("INSERT OR IGNORE INTO calls VALUES (?, ?, ?)", row)
        except sqlite3.Error as error:
            raise StoreError(f"the call journal {self.path} cannot be written: {error}") from None

    async def name_worker(self, worker: str, identity: str) -> str:
        """Return the name under which that worker's replies are kept, as `CallJournal` says."""
        self._execute("INSERT OR IGNORE INTO reached VALUES (?, ?)", worker, identity)
        rows = self._execute("SELECT identity FROM reached WHERE worker = ?", worker)
        return name_kept(worker, identity, rows[0][0])

    def _execute(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        try:
            return self._file.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the call journal {self.path} cannot be used: {error}") from None

    @asynccontextmanager
    async def claim(self, worker: str, request: Request) -> AsyncGenerator[CallClaim]:
        """Yield the call, claimed among the tasks of this process.

        Other processes are not waited for.
        """

        async def keep(reply: Reply) -> Reply:
            self.write(worker, request, reply)
            return reply

        lock = self._locks.setdefault((worker, request_fingerprint(request)), anyio.Lock())
        async with lock:
            yield CallClaim(self.read(worker, request), keep)


@final
class CallCacheClient:
    """A worker's client whose replies are kept. Requests without a seed are asked anew."""

    def __init__(self, client: Client, journal: CallJournal, worker: str) -> None:
        self._client = client
        self._journal = journal
        self._worker = worker
        self._name: str | None = None
        """The name under which its replies are kept; None: it is not known yet."""

    def __repr__(self) -> str:
        return f"Journaled({self._client!r})"

    @property
    def identity(self) -> Identity:
        """The client's."""
        return client_identity(self._client)

    async def _kept_name(self) -> str:
        if self._name is None:
            found = self.identity
            self._name = (
                await self._journal.name_worker(self._worker, identity_digest(found))
                if found
                else self._worker
            )
        return self._name

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply of the journal, else of the client.

        Raises:
            ClientError: the call gave no usable reply; failures are not kept.
        """
        if request.sampling.seed is None:
            return await self._client.complete(request, listener)
        async with self._journal.claim(await self._kept_name(), request) as claim:
            known = claim.reply
            if known is None:
                reply = await self._client.complete(request, listener)
                self._journal.misses += 1
                return await claim.keep(reply)
        self._journal.hits += 1
        await anyio.lowlevel.checkpoint()
        if listener.streaming:
            for delta in split_reply(known, 0):
                await listener.on_delta(delta)
        return known


def name_kept(worker: str, identity: str, first: str) -> str:
    """Return the worker's id for the first that was behind it, else the id and who it is now."""
    return worker if identity == first else f"{worker} {identity}"


def read_reply(text: bytes) -> Reply:
    """Return the reply in a row of a journal."""
    return _reply_adapter().validate_json(text)


def write_reply(reply: Reply) -> bytes:
    """Return a reply as a row of a journal has it."""
    return orjson.dumps(reply, default=str)


@cache
def _reply_adapter() -> TypeAdapter[Reply]:
    """Return the adapter of replies, built on first use: it takes a fortieth of the whole start."""
    return TypeAdapter(Reply)
