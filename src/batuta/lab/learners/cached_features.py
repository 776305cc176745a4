"""Features of texts that many methods share, computed once for each text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.features import Features, Floats, SavedFeatures
from batuta.conductors.hashed_ngrams import HashedNgrams, SparseRow

MAX_CACHED_TEXTS = 20_000
"""Maximum number of texts in each cache, which drops the least recently used."""
MAX_CACHED_FITS = 8


@dataclass(frozen=True, slots=True, eq=False)
class CachedFeatures:
    """Features that compute counts, fits and vectors once and cache them.

    An evaluation gives the same questions to a dozen methods, and splits them anew for each seed.
    `save` saves the plain features.
    """

    features: HashedNgrams = HashedNgrams()
    _fitted: Callable[[tuple[str, ...]], Features] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        @lru_cache(MAX_CACHED_TEXTS)
        def packed(text: str) -> _PackedRow:
            return _pack_row(self.features.counts(text))

        @lru_cache(MAX_CACHED_FITS)
        def fitted(texts: tuple[str, ...]) -> Features:
            known = self.features.fit_counts([_unpack_row(packed(text)) for text in texts])

            @lru_cache(MAX_CACHED_TEXTS)
            def vector(text: str) -> Floats:
                return known.vector(_unpack_row(packed(text)))

            return _CachedFittedFeatures(known, vector)

        object.__setattr__(self, "_fitted", fitted)

    def __reduce__(self) -> tuple[Callable[..., Features], tuple[HashedNgrams]]:
        """Pickle without the caches, which are empty in another process."""
        return CachedFeatures, (self.features,)

    @property
    def name(self) -> str:
        """The name of the plain features."""
        return self.features.name

    def fit(self, texts: Sequence[str]) -> Features:
        """Return the features fitted to these texts.

        Raises:
            ConfigError: there are no texts.
        """
        return self._fitted(tuple(texts)) if texts else self.features.fit(texts)

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return what the plain features return.

        Raises:
            ConfigError: the features are not fitted, and there is a text.
        """
        return self.features(texts)

    def save(self) -> SavedFeatures:
        """Return the plain features in the form in which they are saved."""
        return self.features.save()


@dataclass(frozen=True, slots=True, eq=False)
class _CachedFittedFeatures:
    """Fitted features that cache the vectors of texts."""

    features: HashedNgrams
    vector: Callable[[str], Floats] = field(repr=False)

    def __reduce__(self) -> tuple[Callable[..., Features], tuple[HashedNgrams]]:
        return _restore_features, (self.features,)

    @property
    def name(self) -> str:
        return self.features.name

    def fit(self, texts: Sequence[str]) -> Features:
        return self.features.fit(texts)

    def __call__(self, texts: Sequence[str]) -> Floats:
        if not texts:
            return self.features(texts)
        return np.stack([self.vector(text) for text in texts])

    def save(self) -> SavedFeatures:
        return self.features.save()


def _restore_features(features: HashedNgrams) -> Features:
    """Return the plain fitted features, for another process."""
    return features


_PackedRow = tuple[NDArray[np.uint32], NDArray[np.int16]]


def _pack_row(row: SparseRow) -> _PackedRow:
    """Return the row in half the memory; counts are small integers, as texts are bounded."""
    indices, counts = row
    return indices.astype(np.uint32), counts.astype(np.int16)


def _unpack_row(row: _PackedRow) -> SparseRow:
    indices, counts = row
    return indices.astype(np.intp), counts.astype(np.float32)
