"""Features from hashed n-grams of words and characters, with numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.features import Floats, SavedFeatures
from batuta.errors import ConfigError

SparseRow = tuple[NDArray[np.intp], Floats]
"""The indices of a vector's entries that are not 0, and their values."""

_PRIME = np.uint64(0x100000001B3)
_INVERSE = np.uint64(pow(0x100000001B3, -1, 2**64))
_MIXERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SPACE = 32
_BLOCK_ROWS = 512
"""Maximum number of rows that are dense at the same time."""
_MAX_SVD_TEXTS = 2000
"""Maximum number of texts used for the SVD; more would take longer and hardly change the result."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HashedNgrams:
    """Signed hashes of word and character n-grams, weighted by TF-IDF and projected by SVD.

    Weinberger et al., "Feature Hashing for Large Scale Multitask Learning" (arXiv 0902.2206),
    section 2; truncated SVD by the randomised range finder of Halko, Martinsson and Tropp,
    "Finding structure with randomness" (arXiv 0909.4061), algorithm 4.4.
    """

    buckets: int = 2**14
    words: tuple[int, ...] = (1, 2)
    """Lengths of word n-grams."""
    characters: tuple[int, ...] = (3, 4, 5)
    """Lengths of character n-grams in UTF-8 bytes, across words."""
    dimensions: int | None = 128
    """Maximum number of dimensions of a text's vector, at most one per text that the SVD is fitted
    to; None: one per bucket, without SVD."""
    most_bytes: int = 8192
    """Maximum number of bytes that are read; of a longer text, half of them from each end."""
    idf: Floats | None = field(default=None, repr=False)
    """The weight of each bucket, (buckets,); None: not fitted."""
    directions: Floats | None = field(default=None, repr=False)
    """The directions on which vectors are projected, (buckets, d); None: not fitted, or no SVD."""

    @property
    def name(self) -> str:
        """The method, and the dimensions that were asked for."""
        return f"hashed-ngrams-{self.dimensions or self.buckets}"

    def fit(self, texts: Sequence[str]) -> HashedNgrams:
        """Return the features with IDF weights and SVD directions fitted to the texts.

        There are no directions if `dimensions` is None.

        Raises:
            ConfigError: there are no texts.
        """
        if not texts:
            raise ConfigError("features need at least one training question")
        return self.fit_counts([self.counts(text) for text in texts])

    def fit_counts(self, counted: Sequence[SparseRow]) -> HashedNgrams:
        """Return the features fitted to texts' counts, as `counts` returns them; at least one text.

        Of more than `_MAX_SVD_TEXTS` texts, evenly chosen ones are used for the SVD.
        """
        present = np.zeros(self.buckets, np.float32)
        for indices, _ in counted:
            present[indices] += 1
        idf = (np.log((1 + len(counted)) / (1 + present)) + 1).astype(np.float32)
        if self.dimensions is None:
            return replace(self, idf=idf, directions=None)
        stride = -(-len(counted) // _MAX_SVD_TEXTS)
        rows = [_tf_idf_row(*row, idf) for row in counted[::stride]]
        return replace(
            self, idf=idf, directions=_main_directions(rows, self.buckets, self.dimensions)
        )

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return a row for each text, (n, d), with length 1 unless all its entries are 0.

        Raises:
            ConfigError: the features are not fitted.
        """
        width = self.buckets if self.directions is None else self.directions.shape[1]
        rows = [self.vector(self.counts(text)) for text in texts]
        return np.asarray(rows, np.float32).reshape(len(texts), width)

    def vector(self, counts: SparseRow) -> Floats:
        """Return the row of the text with these counts: (d,).

        Raises:
            ConfigError: the features are not fitted.
        """
        if self.idf is None:
            raise ConfigError("these features were not fitted; call fit with training questions")
        indices, values = _tf_idf_row(*counts, self.idf)
        if self.directions is not None:
            return unit_rows((values @ self.directions[indices])[None])[0]
        dense = np.zeros(self.buckets, np.float32)
        dense[indices] = values
        return dense

    def save(self) -> SavedFeatures:
        """Return the parameters and the tensors, from which `load` makes these features."""
        card = {
            "kind": "hashed-ngrams",
            "buckets": self.buckets,
            "words": list(self.words),
            "characters": list(self.characters),
            "dimensions": self.dimensions,
            "most_bytes": self.most_bytes,
        }
        tensors = {"features.idf": self.idf, "features.directions": self.directions}
        return card, {name: tensor for name, tensor in tensors.items() if tensor is not None}

    @classmethod
    def load(cls, card: Mapping[str, Any], tensors: Mapping[str, Floats]) -> Self:
        """Load what `save` returned.

        Raises:
            KeyError: an entry of the card or a tensor is missing.
            ValueError: the tensors' shapes do not match the card.
        """
        loaded = cls(
            buckets=int(card["buckets"]),
            words=tuple(card["words"]),
            characters=tuple(card["characters"]),
            dimensions=card["dimensions"],
            most_bytes=int(card["most_bytes"]),
            idf=tensors["features.idf"],
            directions=tensors.get("features.directions"),
        )
        directions = loaded.directions
        rows = (loaded.buckets,) if directions is None else (loaded.buckets, len(directions))
        if loaded.idf is None or any(len(loaded.idf) != row for row in rows):
            raise ValueError("the tensors' shapes do not match the card")
        return loaded

    def counts(self, text: str) -> SparseRow:
        """Return the buckets of the text's n-grams with their signed counts, except 0."""
        hashes = np.concatenate(list(self._hashes(text)))
        signs = np.where(hashes >> np.uint64(63), np.float32(1), np.float32(-1))
        counts = np.bincount(
            (hashes % np.uint64(self.buckets)).astype(np.intp), signs, self.buckets
        )
        indices = np.flatnonzero(counts)
        return indices, counts[indices].astype(np.float32)

    def _hashes(self, text: str) -> Sequence[NDArray[np.uint64]]:
        """Return an array for each length of n-grams, with a 64-bit hash of each n-gram."""
        encoded = " ".join(text.casefold().split()).encode("utf-8", "replace")
        if len(encoded) > self.most_bytes:
            half = self.most_bytes // 2
            encoded = encoded[:half] + b" " + encoded[-half:]
        bytes_n = np.frombuffer(b" " + encoded + b" ", np.uint8)
        return [
            *(_span_hashes(bytes_n, length) for length in self.characters),
            *(_word_span_hashes(bytes_n, length) for length in self.words),
        ]


def _tf_idf_row(indices: NDArray[np.intp], counts: Floats, idf: Floats) -> SparseRow:
    """Return sublinear TF times IDF, scaled to length 1."""
    values = np.sign(counts) * (1 + np.log(np.abs(counts))) * idf[indices]
    return indices, unit_rows(values[None])[0]


def _span_hashes(bytes_n: NDArray[np.uint8], length: int) -> NDArray[np.uint64]:
    """Return the mixed polynomial hash of every run of `length` bytes."""
    count = max(len(bytes_n) - length + 1, 0)
    hashes = np.full(count, length, np.uint64)
    for shift in range(length):
        hashes = hashes * _PRIME + bytes_n[shift : shift + count]
    return _mix_bits(hashes)


def _word_span_hashes(bytes_n: NDArray[np.uint8], length: int) -> NDArray[np.uint64]:
    """Return a hash of every run of `length` words: the mixed sum of byte * prime^position."""
    spaces = np.flatnonzero(bytes_n == _SPACE)
    if len(spaces) <= length:
        return np.empty(0, np.uint64)
    starts, ends = spaces[:-length], spaces[length:]
    sums = (bytes_n * _modular_powers(_PRIME, len(bytes_n))).cumsum(dtype=np.uint64)
    runs = (sums[ends] - sums[starts]) * _modular_powers(_INVERSE, len(bytes_n))[starts]
    return _mix_bits(runs + np.uint64(length << 32))


def _modular_powers(base: np.uint64, count: int) -> NDArray[np.uint64]:
    """Return base^0, base^1, …, modulo 2^64."""
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return factors.cumprod(dtype=np.uint64)


def _mix_bits(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits so that each depends on the whole hash (splitmix64's finaliser)."""
    mixed = hashes ^ (hashes >> np.uint64(30))
    mixed = mixed * _MIXERS[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIXERS[1]
    return mixed ^ (mixed >> np.uint64(31))


def _main_directions(rows: Sequence[SparseRow], buckets: int, dimensions: int) -> Floats:
    """Return the rows' first right singular vectors, (buckets, d), with fixed signs.

    They are approximations by two power iterations. There are fewer than `dimensions` if there are
    fewer rows or buckets.
    """
    rng = np.random.Generator(np.random.PCG64(0))
    width = min(dimensions + 16, len(rows), buckets)
    basis = rng.standard_normal((buckets, width)).astype(np.float32)
    for _ in range(2):
        product = np.zeros_like(basis)
        for dense in _dense_blocks(rows, buckets):
            product += dense.T @ (dense @ basis)
        basis = np.linalg.qr(product)[0]
    small = np.concatenate([dense @ basis for dense in _dense_blocks(rows, buckets)])
    right = np.linalg.svd(small, full_matrices=False)[2]
    vectors = basis @ right[:dimensions].T
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.sign(vectors[largest, np.arange(vectors.shape[1])])
    return np.ascontiguousarray(vectors * signs, np.float32)


def _dense_blocks(rows: Sequence[SparseRow], buckets: int) -> Iterator[Floats]:
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        dense = np.zeros((len(block), buckets), np.float32)
        for row, (indices, values) in zip(dense, block, strict=True):
            row[indices] = values
        yield dense


def unit_rows(rows: Floats) -> Floats:
    """Scale each row to length 1; a zero row stays zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
