"""One process at a time on a folder's jobs: two would both pay for what a crash left behind."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import final

from batuta.errors import StoreError
from batuta.store.database import make_private_file


@final
class FolderLock:
    """Held until `release`, or until the process dies, however it dies.

    It is a transaction on an SQLite file of its own, which every system that runs Python locks
    and unlocks rightly.
    """

    def __init__(self, path: Path) -> None:
        """Takes the claim.

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
                    f"another server keeps its jobs in {path.parent}: stop it, or give this one "
                    "a folder of its own with BATUTA_HOME"
                ) from None
            raise StoreError(f"{path} cannot be locked: {error}") from None

    def release(self) -> None:
        """Lets others in."""
        self._file.close()
