"""Texts in passages that are found by their words, SQLite's FTS5, and by what they mean.

Both are in memory. A passage that stands high in one of the two rankings, or in both, comes first.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from time import monotonic
from typing import final

import numpy as np
from numpy.typing import NDArray

from batuta.encoder import ENCODER_NAME, WIDTH, SentenceEncoder

MAX_ENCODED = 400
"""Passages of one text that have vectors; those behind them are found by their words."""
LEAST_COSINE = 0.3
"""A passage that is less like the query has nothing to do with it."""
_MARK = ENCODER_NAME.encode() + b"\n"
"""Stands before the vectors that are kept: those of another encoder say nothing here."""

Floats = NDArray[np.float32]


def pack_vectors(vectors: Floats) -> bytes:
    """Return vectors as they are kept: two bytes for each number."""
    return _MARK + vectors.astype(np.float16).tobytes()


@final
class PassageVectors:
    """The vectors of the passages of texts, by the texts' ids."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[NDArray[np.int64], Floats]] = {}
        """The numbers of each text's passages, with their vectors."""
        self.size = 0
        """Bytes of them all."""

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def add(self, name: str, rows: range, vectors: Floats) -> None:
        """Add those of the first passages of a text.

        Args:
            name: the text.
            rows: the numbers of its passages.
            vectors: a vector for each of the first of them.
        """
        self.forget(name)
        self._known[name] = np.arange(rows.start, rows.start + len(vectors)), vectors
        self.size += vectors.nbytes

    def add_kept(self, name: str, rows: range, kept: bytes) -> None:
        """Add those that were kept of a text, if they are of this encoder and of its passages."""
        numbers = kept.removeprefix(_MARK)
        if len(numbers) == len(kept) or len(numbers) != 2 * WIDTH * len(rows[:MAX_ENCODED]):
            return
        vectors = np.frombuffer(numbers, np.float16).astype(np.float32)
        self.add(name, rows, vectors.reshape(-1, WIDTH))

    def forget(self, name: str) -> None:
        """Forget those of a text."""
        if name in self._known:
            self.size -= self._known.pop(name)[1].nbytes

    def find_near(self, meant: Floats, named: Collection[str], most: int) -> list[int]:
        """Return the passages of those texts that mean nearly the same, the nearest first."""
        known = [self._known[name] for name in named if name in self._known]
        if not known:
            return []
        scores = np.concatenate([vectors @ meant for _, vectors in known])
        rows = np.concatenate([numbers for numbers, _ in known])
        is_near = scores >= LEAST_COSINE
        scores, rows = scores[is_near], rows[is_near]
        return rows[np.lexsort((rows, -scores))][:most].tolist()


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
_FIND = "SELECT rowid FROM passages WHERE passages MATCH ? ORDER BY rank LIMIT ?"
_FIND_AMONG = (
    "SELECT rowid FROM passages WHERE passages MATCH ?"
    " AND file IN (SELECT value FROM json_each(?)) ORDER BY rank LIMIT ?"
)
_READ = "SELECT file, place, body FROM passages WHERE rowid = ?"
_DEPTH = 4
"""So many times the wanted passages are ranked by words and by meaning before both are joined."""
_FUSED = 60
"""The constant of reciprocal rank fusion: the larger it is, the less a first place counts."""
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

    def __init__(self, encoder: SentenceEncoder | None = None) -> None:
        """Index nothing yet.

        Args:
            encoder: finds what a query means; None: passages are found by their words alone.
        """
        self._lock = Lock()
        self._encoding = Lock()
        self._encoder = encoder
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(_CREATE)
        self._sizes: dict[str, int] = {}
        self._rows: dict[str, range] = {}
        """The passages of each text."""
        self._next_row = 1
        self._vectors = PassageVectors()

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def size(self) -> int:
        """Characters of all its texts, and bytes of their vectors."""
        return sum(self._sizes.values()) + self._vectors.size

    def find_missing(self, ids: Iterable[str]) -> list[str]:
        """Return those of the ids whose texts are not here."""
        return [one for one in ids if one not in self._sizes]

    def add(
        self, texts: Iterable[tuple[str, str]], vectors: Mapping[str, bytes] | None = None
    ) -> None:
        """Add texts by their ids; one that is here already is replaced.

        Args:
            texts: the ids and texts.
            vectors: what `encode_text` made of them, as far as it did.
        """
        with self._lock, self._database:
            for name, text in texts:
                self._remove(name)
                first = self._next_row
                rows = enumerate(split_passages(text), first)
                added = self._database.executemany(
                    "INSERT INTO passages (rowid, body, file, place) VALUES (?, ?, ?, ?)",
                    ((row, body, name, place) for row, (place, body) in rows),
                )
                self._next_row += max(added.rowcount, 0)
                self._sizes[name] = len(text)
                self._rows[name] = range(first, self._next_row)
                if vectors and name in vectors:
                    self._vectors.add_kept(name, self._rows[name], vectors[name])

    def keep_only(self, ids: Collection[str]) -> None:
        """Forget every other text."""
        with self._lock, self._database:
            for name in [one for one in self._sizes if one not in ids]:
                self._remove(name)

    def _remove(self, name: str) -> None:
        rows = self._rows.pop(name, range(0))
        self._sizes.pop(name, None)
        self._vectors.forget(name)
        if rows:
            ends = (rows.start, rows.stop - 1)
            self._database.execute("DELETE FROM passages WHERE rowid BETWEEN ? AND ?", ends)

    def encode_missing(self, seconds: float) -> None:
        """Find the vectors of texts that have none, until the time is over or all have some.

        A text that was begun is finished. While another thread does it, nothing is done.
        """
        if self._encoder is None or not self._encoding.acquire(blocking=False):
            return
        try:
            end = monotonic() + seconds
            for name in [one for one in list(self._rows) if one not in self._vectors]:
                if monotonic() > end:
                    return
                with self._lock:
                    rows = self._rows.get(name, range(0))
                    bodies = [self._read(row).text for row in rows[:MAX_ENCODED]]
                vectors = self._encoder(bodies)
                with self._lock:
                    if self._rows.get(name) == rows:
                        self._vectors.add(name, rows, vectors)
        finally:
            self._encoding.release()

    def search(self, query: str, ids: Iterable[str], most: int) -> list[Passage]:
        """Return the passages of those texts that have the query's words or meaning, best first."""
        named = set(ids) & self._sizes.keys()
        if not named:
            return []
        meant = self._encoder([query])[0] if self._encoder is not None else None
        with self._lock:
            if meant is None:
                rows = self._find_words(query, named, most)
            else:
                found = self._find_words(query, named, most * _DEPTH)
                near = self._vectors.find_near(meant, named, most * _DEPTH)
                rows = fuse_ranks((found, near))[:most]
            return [self._read(row) for row in rows]

    def _read(self, row: int) -> Passage:
        file, place, text = self._database.execute(_READ, (row,)).fetchone()
        return Passage(file=file, place=place, text=text)

    def _find_words(self, query: str, named: set[str], most: int) -> list[int]:
        """Return the passages that have the query's words, the best first."""
        words = dict.fromkeys(f'"{word.lower()}"' for word in _WORD.findall(query))
        passages = sum(map(len, self._rows.values()))
        common = max(int(passages * COMMON_SHARE), COMMON_PASSAGES)
        rare = [word for word in list(words)[:MAX_WORDS] if self._count(word, common) <= common]
        wanted = " OR ".join(rare or list(words)[:MAX_WORDS])
        if not wanted:
            return []
        if len(named) == len(self._sizes):
            found = self._database.execute(_FIND, (wanted, most))
        else:
            found = self._database.execute(_FIND_AMONG, (wanted, json.dumps([*named]), most))
        return [row for (row,) in found]

    def _count(self, word: str, most: int) -> int:
        """Return how many passages have the word: one more than the most if there are more."""
        (count,) = self._database.execute(_COUNT, (word, most + 1)).fetchone()
        return count

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._database.close()


def fuse_ranks(rankings: Iterable[Sequence[int]]) -> list[int]:
    """Return what several rankings name, best first: what stands high in one of them or in more."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            scores[row] = scores.get(row, 0.0) + 1 / (_FUSED + rank)
    return sorted(scores, key=lambda row: -scores[row])


def encode_text(encoder: SentenceEncoder, text: str) -> bytes:
    """Return the vectors of a text's passages, as they are kept."""
    bodies = [body for _, body in islice(split_passages(text), MAX_ENCODED)]
    return pack_vectors(encoder(bodies))


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
