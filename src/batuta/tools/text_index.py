"""Keyword (BM25, SQLite's FTS5) and embedding search over the passages of texts, in memory.

The two rankings are combined by reciprocal rank fusion.
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
"""Maximum number of passages with vectors in one text; later passages are found by keywords."""
MIN_COSINE = 0.3
"""Minimum similarity to the query at which embedding search finds a passage."""
_MARK = ENCODER_NAME.encode() + b"\n"
"""Prefix of stored vectors; vectors of another encoder are ignored."""

Floats = NDArray[np.float32]


def pack_vectors(vectors: Floats) -> bytes:
    """Return vectors in the form that is stored: 16-bit floats after the encoder's name."""
    return _MARK + vectors.astype(np.float16).tobytes()


@final
class PassageVectors:
    """The vectors of texts' passages, by text id."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[NDArray[np.int64], Floats]] = {}
        """For each text the row numbers of its passages, and their vectors."""
        self.size = 0
        """Bytes of all vectors."""

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def add(self, name: str, rows: range, vectors: Floats) -> None:
        """Add the vectors of a text, which may have more passages than vectors.

        Args:
            name: the text's id.
            rows: the row numbers of its passages.
            vectors: the vectors of its first passages, one per row.
        """
        self.forget(name)
        self._known[name] = np.arange(rows.start, rows.start + len(vectors)), vectors
        self.size += vectors.nbytes

    def add_stored(self, name: str, rows: range, stored: bytes) -> None:
        """Add the stored vectors of a text, unless encoder or number of passages differ."""
        numbers = stored.removeprefix(_MARK)
        if len(numbers) == len(stored) or len(numbers) != 2 * WIDTH * len(rows[:MAX_ENCODED]):
            return
        vectors = np.frombuffer(numbers, np.float16).astype(np.float32)
        self.add(name, rows, vectors.reshape(-1, WIDTH))

    def forget(self, name: str) -> None:
        """Drop the vectors of a text."""
        if name in self._known:
            self.size -= self._known.pop(name)[1].nbytes

    def find_near(self, query_vector: Floats, named: Collection[str], most: int) -> list[int]:
        """Return at most `most` rows of the texts' passages near the query, nearest first."""
        known = [self._known[name] for name in named if name in self._known]
        if not known:
            return []
        scores = np.concatenate([vectors @ query_vector for _, vectors in known])
        rows = np.concatenate([numbers for numbers, _ in known])
        is_near = scores >= MIN_COSINE
        scores, rows = scores[is_near], rows[is_near]
        return rows[np.lexsort((rows, -scores))][:most].tolist()


PASSAGE_CHARACTERS = 1200
"""Approximate characters of a passage; a longer line is its own passage, or several if it has more
than twice this length."""
MAX_WORDS = 32
"""Maximum number of words of a query that are searched."""
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
"""Each ranking has this many times the requested passages before both are fused."""
_FUSED = 60
"""The constant of reciprocal rank fusion: the larger it is, the less the first ranks count."""
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM passages WHERE passages MATCH ? LIMIT ?)"
COMMON_SHARE, COMMON_PASSAGES = 0.1, 100
"""A word in more than 10 % of the passages, and in more than 100 of them, is dropped from a query
that also has rarer words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of a text, and its location."""

    file: str
    """The text's id."""
    place: str
    """The passage's location in the text: `page 3`, `lines 10-24` or `line 7`."""
    text: str


@final
class TextIndex:
    """Searchable texts by id. Methods may be called from any thread, and may block each other."""

    def __init__(self, encoder: SentenceEncoder | None = None) -> None:
        """Create an empty index.

        Args:
            encoder: for embedding search; None: keyword search only.
        """
        self._lock = Lock()
        self._encoding = Lock()
        self._encoder = encoder
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(_CREATE)
        self._sizes: dict[str, int] = {}
        """The characters of each text."""
        self._rows: dict[str, range] = {}
        """The row numbers of each text's passages."""
        self._next_row = 1
        self._vectors = PassageVectors()

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def size(self) -> int:
        """The characters of all texts plus the bytes of their vectors."""
        return sum(self._sizes.values()) + self._vectors.size

    def find_missing(self, ids: Iterable[str]) -> list[str]:
        """Return the ids whose texts are not indexed."""
        return [name for name in ids if name not in self._sizes]

    def add(
        self, texts: Iterable[tuple[str, str]], vectors: Mapping[str, bytes] | None = None
    ) -> None:
        """Add texts; a text whose id is already indexed is replaced.

        Args:
            texts: pairs of id and text.
            vectors: the results of `encode_text` by id; texts may lack them.
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
                    self._vectors.add_stored(name, self._rows[name], vectors[name])

    def keep_only(self, ids: Collection[str]) -> None:
        """Drop all texts with other ids."""
        with self._lock, self._database:
            for name in [name for name in self._sizes if name not in ids]:
                self._remove(name)

    def _remove(self, name: str) -> None:
        rows = self._rows.pop(name, range(0))
        self._sizes.pop(name, None)
        self._vectors.forget(name)
        if rows:
            ends = (rows.start, rows.stop - 1)
            self._database.execute("DELETE FROM passages WHERE rowid BETWEEN ? AND ?", ends)

    def encode_missing(self, seconds: float) -> None:
        """Encode texts without vectors, until the time is over or every text has its vectors.

        The text in progress is finished. Without an encoder, or while another thread is encoding,
        nothing is done.
        """
        if self._encoder is None or not self._encoding.acquire(blocking=False):
            return
        try:
            end = monotonic() + seconds
            for name in [name for name in list(self._rows) if name not in self._vectors]:
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
        """Return at most `most` passages of those texts that match the query, best first."""
        named = set(ids) & self._sizes.keys()
        if not named:
            return []
        query_vector = self._encoder([query])[0] if self._encoder is not None else None
        with self._lock:
            if query_vector is None:
                rows = self._find_words(query, named, most)
            else:
                with_words = self._find_words(query, named, most * _DEPTH)
                near = self._vectors.find_near(query_vector, named, most * _DEPTH)
                rows = fuse_ranks((with_words, near))[:most]
            return [self._read(row) for row in rows]

    def _read(self, row: int) -> Passage:
        file, place, text = self._database.execute(_READ, (row,)).fetchone()
        return Passage(file=file, place=place, text=text)

    def _find_words(self, query: str, named: set[str], most: int) -> list[int]:
        """Return at most `most` rows of passages with a word of the query, best first."""
        words = dict.fromkeys(f'"{word.lower()}"' for word in _WORD.findall(query))
        passages = sum(map(len, self._rows.values()))
        common = max(int(passages * COMMON_SHARE), COMMON_PASSAGES)
        rare = [word for word in list(words)[:MAX_WORDS] if self._count(word, common) <= common]
        expression = " OR ".join(rare or list(words)[:MAX_WORDS])
        if not expression:
            return []
        if len(named) == len(self._sizes):
            rows = self._database.execute(_FIND, (expression, most))
        else:
            rows = self._database.execute(_FIND_AMONG, (expression, json.dumps([*named]), most))
        return [row for (row,) in rows]

    def _count(self, word: str, most: int) -> int:
        """Return how many passages have the word, but at most `most + 1`."""
        (count,) = self._database.execute(_COUNT, (word, most + 1)).fetchone()
        return count

    def close(self) -> None:
        """Close the database and lose the index."""
        with self._lock:
            self._database.close()


def fuse_ranks(rankings: Iterable[Sequence[int]]) -> list[int]:
    """Combine rankings by reciprocal rank fusion; return the rows, best first."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            scores[row] = scores.get(row, 0.0) + 1 / (_FUSED + rank)
    return sorted(scores, key=lambda row: -scores[row])


def encode_text(encoder: SentenceEncoder, text: str) -> bytes:
    """Return the vectors of a text's passages, in the form that is stored."""
    bodies = [body for _, body in islice(split_passages(text), MAX_ENCODED)]
    return pack_vectors(encoder(bodies))


def split_passages(text: str) -> Iterator[tuple[str, str]]:
    """Yield a text's passages with their locations: the page if one has begun, else the lines."""
    page, first, size = "", 1, 0
    kept: list[str] = []
    number = 0
    for number, line in enumerate(text.split("\n"), 1):
        head = _PAGE.fullmatch(line)
        if head is not None or size + len(line) > PASSAGE_CHARACTERS:
            yield from _split_passage(kept, page, first, number - 1)
            kept, first, size = [], number, 0
        if head is not None:
            page, first = head[1], number + 1
            continue
        kept.append(line)
        size += len(line) + 1
    yield from _split_passage(kept, page, first, number)


def _split_passage(lines: list[str], page: str, first: int, last: int) -> Iterator[tuple[str, str]]:
    text = "\n".join(lines).strip()
    place = f"page {page}" if page else f"lines {first}-{last}" if last > first else f"line {first}"
    for at in range(0, len(text), PASSAGE_CHARACTERS * 2):
        yield place, text[at : at + PASSAGE_CHARACTERS * 2]
