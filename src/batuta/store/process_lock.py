"""A lock file that a process holds until it releases the lock or dies."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from batuta.errors import StoreError
from batuta.store.database import explain_error, is_sqlite, make_private_file, parse_url

SERVER_SUFFIX = ".server.lock"
"""Suffix of the lock file that a server holds while it uses an SQLite store."""


@final
class ProcessLock:
    """A lock that is held until `release`, or until the process dies in any way.

    It is a transaction on a separate SQLite file, since SQLite locks correctly on every platform.
    """

    def __init__(self, path: Path, busy: str = "") -> None:
        """Take the lock.

        Args:
            path: the lock file.
            busy: the error message if another process holds the lock; empty: a message that
                another server uses the folder.

        Raises:
            StoreError: another process holds the lock, or the file cannot be created or used.
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
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"{path} cannot be created: {reason}") from None
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise StoreError(
                    busy
                    or f"another server uses {path.parent}: stop it, give this one another folder "
                    "with BATUTA_HOME or BATUTA_STORE, or give both one PostgreSQL with "
                    "BATUTA_STORE"
                ) from None
            raise explain_error(error, parse_url(path)) from None

    def release(self) -> None:
        """Release the lock."""
        self._file.close()


@contextmanager
def lock_server_store(target: str) -> Generator[None]:
    """Lock an SQLite file for one server; a PostgreSQL database can serve many.

    Args:
        target: a path of an SQLite file, or a database URL.

    Raises:
        StoreError: another server uses the file, the lock file cannot be created, or the target
            names no database.
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
