"""Vectors of passages, by which a query finds what means the same in other words."""

from __future__ import annotations

from collections.abc import Collection
from typing import final

import numpy as np
from numpy.typing import NDArray

from batuta.encoder import ENCODER_NAME, WIDTH

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
