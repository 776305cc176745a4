"""A client that pays for no finished call twice: every reply is on disk before it is given back.

A training or an evaluation that was killed asks the same questions again when it goes on; what was
answered then is read from the journal, with the usage and cost of the time it was paid.
"""

from __future__ import annotations

import sqlite3
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self, final

import anyio.lowlevel
import orjson
from pydantic import TypeAdapter

from batuta.clients.replay import fingerprint
from batuta.clients.scripted import fragments
from batuta.core import Client, Listener, Reply, Request
from batuta.core.conductor import SILENT
from batuta.errors import StoreError

BUSY = 30.0
"""Seconds to wait for another process that writes."""
_TABLE = "CREATE TABLE IF NOT EXISTS calls (worker TEXT, request BLOB, reply BLOB, PRIMARY KEY (worker, request)) WITHOUT ROWID"  # noqa: E501


@final
class Journal:
    """Finished calls on disk; several processes may write to one file."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file.

        Raises:
            StoreError: the file cannot be opened or is no journal.
        """
        self.path = path
        self.replayed = 0
        """Calls that were answered from the file."""
        self.paid = 0
        """Calls that were made and written down."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(
                path, timeout=BUSY, isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"the call journal {path} cannot be opened: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()

    def read(self, worker: str, request: Request) -> Reply | None:
        """What the worker answered to exactly this request, its seed included.

        Raises:
            StoreError: the file cannot be read.
        """
        try:
            row = self._file.execute(
                "SELECT reply FROM calls WHERE worker = ? AND request = ?",
                (worker, fingerprint(request)),
            ).fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"the call journal {self.path} cannot be read: {error}") from None
        return None if row is None else _adapter().validate_json(row[0])

    def write(self, worker: str, request: Request, reply: Reply) -> None:
        """Keep a reply; the first one to a request stays.

        Raises:
            StoreError: the disk is full or the file cannot be written.
        """
        row = (worker, fingerprint(request), orjson.dumps(reply, default=str))
        try:
            self._file.execute("INSERT OR IGNORE INTO calls VALUES (?, ?, ?)", row)
        except sqlite3.Error as error:
            raise StoreError(f"the call journal {self.path} cannot be written: {error}") from None


@final
class Journaled:
    """A worker's client whose replies are kept. Requests without a seed are asked anew."""

    def __init__(self, client: Client, journal: Journal, worker: str) -> None:
        self._client = client
        self._journal = journal
        self._worker = worker

    def __repr__(self) -> str:
        return f"Journaled({self._client!r})"

    async def complete(self, request: Request, listener: Listener = SILENT) -> Reply:
        """The reply of the journal, else of the client.

        Raises:
            ClientError: the call gave no usable reply; failures are not kept.
            StoreError: the journal cannot be read or written.
        """
        seeded = request.sampling.seed is not None
        known = self._journal.read(self._worker, request) if seeded else None
        if known is not None:
            self._journal.replayed += 1
            await anyio.lowlevel.checkpoint()
            if listener.streaming:
                for delta in fragments(known, 0):
                    await listener.spoke(delta)
            return known
        reply = await self._client.complete(request, listener)
        if seeded:
            self._journal.write(self._worker, request, reply)
            self._journal.paid += 1
        return reply


@cache
def _adapter() -> TypeAdapter[Reply]:
    """Built on first use: it takes a fortieth of the whole start."""
    return TypeAdapter(Reply)
