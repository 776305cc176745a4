"""Digests of files, whole writes, and SQLite files that several processes open."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(descriptor: int, data: bytes) -> None:
    """Write all bytes; `os.write` may write only a part if the disk is nearly full."""
    while data:
        data = data[os.write(descriptor, data) :]


_WAL_PAUSE = 0.01
"""Seconds between attempts to switch a file to WAL."""


def use_wal(connection: sqlite3.Connection, seconds: float) -> None:
    """Switch an SQLite file to WAL, permanently.

    SQLite ignores busy_timeout here: if two processes open a new file at the same time, one fails
    with `locked`, and tries again until `seconds` have passed.

    Raises:
        sqlite3.Error: the file cannot be switched.
    """
    import sqlite3  # noqa: PLC0415 - not always needed

    deadline = monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or monotonic() > deadline:
                raise
            sleep(_WAL_PAUSE)
        else:
            return
