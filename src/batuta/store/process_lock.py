"""A lock that keeps a second process away from a file, until the one that has it ends or dies."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from batuta.errors import StoreError
from batuta.store.database import explain_error, is_sqlite, make_private_file, parse_url

SERVER_SUFFIX = ".server.lock"
"""After the name of the runs' file: the lock of the server that uses it."""


@final
class ProcessLock:
    """Held until `release`, or until the process dies, however it dies.

    It is a transaction on an SQLite file of its own, which every system that runs Python locks
    and unlocks correctly.
    """

    def __init__(self, path: Path, busy: str = "") -> None:
        """Take the lock.

        Args:
            path: the file that is locked.
            busy: what to say where another process has it; empty: a server's sentence.

        Raises:
            StoreError: another process has it, or the file cannot be made.
        """
        try:
            make_private_file(path)
            self._file = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
            try:
                self._file.execute("BEGIN EXCLUSIVE")
            except sqlite3.Error:
                self._file.close()
                raise
        except (OSError, sqlite3.Error) as error:
            if "locked" in str(error):
                raise StoreError(
                    busy
                    or f"another server uses {path.parent}: stop it, give this one a folder of its "
                    "own with BATUTA_HOME, or give both one PostgreSQL with BATUTA_STORE"
                ) from None
            raise explain_error(error, parse_url(path)) from None

    def release(self) -> None:
        """Let others in."""
        self._file.close()


@contextmanager
def lock_server_store(target: str) -> Generator[None]:
    """Let one server at a time use an SQLite file; a server database serves many.

    Args:
        target: a path of an SQLite file, or a database URL.

    Raises:
        StoreError: another server uses the file, or the target names no database.
    """
    url = parse_url(target)
    if not is_sqlite(url):
        yield
        return
    path = Path(str(url.database))
    lock = ProcessLock(path.with_name(path.name + SERVER_SUFFIX))
    try:
        yield
    finally:
        lock.release()
