"""An SQLite file: nobody else reads it, it writes by way of a log, and the log can be emptied."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine

_T = TypeVar("_T")
BUSY_MS = 5_000
"""How long SQLite waits for another writer before it says `locked`."""

_WAL_PAUSE = 0.01
"""Seconds between attempts to switch a file to WAL."""

_PROBE_SECONDS = 1.0
"""Seconds that a probe waits for other writers."""

_CHECKPOINTS = 5
"""Attempts to empty the log, each of which waits for readers like any writer."""

_PRAGMAS = (
    f"PRAGMA busy_timeout={BUSY_MS}",
    "PRAGMA synchronous=NORMAL",  # a power cut loses the last commits, never the file
    "PRAGMA foreign_keys=ON",
    "PRAGMA secure_delete=ON",  # what is deleted is overwritten
)


def make_private_file(path: Path) -> None:
    """Makes the file, if there is none, so that nobody but this user can read it.

    SQLite gives the files that it puts beside it the same mode. A file that is there is not opened:
    closing it would give up the locks that this process has on it.

    Raises:
        OSError: it cannot be made.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def use_wal(connection: sqlite3.Connection) -> None:
    """Switches the file to WAL, for good.

    SQLite does not wait for others here, busy_timeout or not: of two processes that open a new
    file at the same time one would be told that it is locked.

    Raises:
        sqlite3.Error: it cannot be switched.
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


def set_pragmas(connection: Any, _record: object) -> None:
    """Sets up a new connection; SQLAlchemy calls it by its event `connect`."""
    cursor = connection.cursor()
    try:
        for pragma in _PRAGMAS:
            cursor.execute(pragma)
    finally:
        cursor.close()


def probe_file(url: URL, work: Callable[[Connection], _T]) -> _T:
    """Do `work` in a new connection that could write now, and change nothing. Blocks.

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
    """Empties the log of an SQLite file. Blocks.

    Somebody who reads at that moment keeps it from being emptied; then it is tried again, and at
    last left to the next deletion.
    """
    for _ in range(_CHECKPOINTS):
        with engine.connect() as connection:
            held = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar()
        if not held:
            return
        sleep(_WAL_PAUSE)
