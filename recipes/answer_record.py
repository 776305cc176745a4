"""A file of answers that a recipe has paid for, kept as they come, so that a measurement goes on where it was cut off."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines; one that was cut off is left out."""
    rows: list[dict[str, Any]] = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def add_row(path: Path, row: dict[str, Any]) -> None:
    """Write a row at the end of the file, on a line of its own also where the last one was cut off."""
    torn = path.exists() and path.read_bytes()[-1:] not in {b"\n", b""}
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps(row, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


class AnswerRecord:
    """The rows of a file by what makes each the only one of its kind; the first one counts."""

    FIELDS: ClassVar[tuple[str, ...]]
    """The fields of a row that are its key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in read_rows(path):
            self._take(row)

    def add(self, **row: Any) -> None:
        """Keep a row."""
        add_row(self.path, row)
        self._take(row)

    def _take(self, row: dict[str, Any]) -> None:
        self.rows.setdefault(tuple(row[name] for name in self.FIELDS), row)
