"""Texts in passages that are found by their words: SQLite's FTS5, in memory."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import final

PASSAGE = 1200
"""Characters of a passage, about; a longer line is a passage of its own, cut into such pieces."""
MAX_WORDS = 32
"""Words of a query that count."""
_PAGE = re.compile(r"\[page (\d{1,6})\]")
_WORD = re.compile(r"\w+")
_CREATE = (
    "CREATE VIRTUAL TABLE passages USING fts5("
    "body, file UNINDEXED, place UNINDEXED, tokenize = 'porter unicode61 remove_diacritics 2')"
)
_FIND = "SELECT file, place, body FROM passages WHERE passages MATCH ? ORDER BY rank LIMIT ?"
_FIND_AMONG = (
    "SELECT file, place, body FROM passages WHERE passages MATCH ?"
    " AND file IN (SELECT value FROM json_each(?)) ORDER BY rank LIMIT ?"
)
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM passages WHERE passages MATCH ? LIMIT ?)"
COMMON_SHARE, COMMON_PASSAGES = 0.1, 100
"""A word in more passages, by both, is left out of a query that has rarer ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of a text, and where it stands."""

    file: str
    """The text's id."""
    place: str
    """`page 3`, or `lines 10-24`."""
    text: str


@final
class TextIndex:
    """Texts by their ids. Its methods may be called from any thread, and hold one another up."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(_CREATE)
        self._sizes: dict[str, int] = {}

    @property
    def size(self) -> int:
        """Characters of all its texts."""
        return sum(self._sizes.values())

    def find_missing(self, ids: Iterable[str]) -> list[str]:
        """Return those of the ids whose texts are not here."""
        return [one for one in ids if one not in self._sizes]

    def add(self, texts: Iterable[tuple[str, str]]) -> None:
        """Add texts by their ids; one that is here already is replaced."""
        with self._lock, self._database:
            for name, text in texts:
                self._remove(name)
                rows = ((body, name, place) for place, body in split_passages(text))
                self._database.executemany("INSERT INTO passages VALUES (?, ?, ?)", rows)
                self._sizes[name] = len(text)

    def keep_only(self, ids: Collection[str]) -> None:
        """Forget every other text."""
        with self._lock, self._database:
            for name in [one for one in self._sizes if one not in ids]:
                self._remove(name)

    def _remove(self, name: str) -> None:
        if self._sizes.pop(name, None) is not None:
            self._database.execute("DELETE FROM passages WHERE file = ?", (name,))

    def search(self, query: str, ids: Iterable[str], most: int) -> list[Passage]:
        """Return the passages of those texts that have the query's words, the best first."""
        words = dict.fromkeys(f'"{word.lower()}"' for word in _WORD.findall(query))
        named = set(ids) & self._sizes.keys()
        with self._lock:
            rare = [word for word in list(words)[:MAX_WORDS] if not self._is_common(word)]
            wanted = " OR ".join(rare or list(words)[:MAX_WORDS])
            if not wanted or not named:
                return []
            if len(named) == len(self._sizes):
                found = self._database.execute(_FIND, (wanted, most))
            else:
                found = self._database.execute(_FIND_AMONG, (wanted, json.dumps([*named]), most))
            return [Passage(file=file, place=place, text=text) for file, place, text in found]

    def _is_common(self, word: str) -> bool:
        """Return True if so many passages have the word that it tells little, and ranks slowly."""
        (passages,) = self._database.execute("SELECT max(rowid) FROM passages").fetchone()
        most = max(int((passages or 0) * COMMON_SHARE), COMMON_PASSAGES)
        (count,) = self._database.execute(_COUNT, (word, most + 1)).fetchone()
        return count > most

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._database.close()


def split_passages(text: str) -> Iterator[tuple[str, str]]:
    """Yield the passages of a text with their places: pages where it has some, else lines."""
    page, first, size = "", 1, 0
    kept: list[str] = []
    number = 0
    for number, line in enumerate(text.split("\n"), 1):
        head = _PAGE.fullmatch(line)
        if head is not None or size + len(line) > PASSAGE:
            yield from _cut_passage(kept, page, first, number - 1)
            kept, first, size = [], number, 0
        if head is not None:
            page, first = head[1], number + 1
            continue
        kept.append(line)
        size += len(line) + 1
    yield from _cut_passage(kept, page, first, number)


def _cut_passage(lines: list[str], page: str, first: int, last: int) -> Iterator[tuple[str, str]]:
    text = "\n".join(lines).strip()
    place = f"page {page}" if page else f"lines {first}-{last}" if last > first else f"line {first}"
    for at in range(0, len(text), PASSAGE * 2):
        yield place, text[at : at + PASSAGE * 2]
