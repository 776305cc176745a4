"""The normal equations of a regression whose rows have few features each. Pure.

Features are either shared or apart. Each row has at most one feature apart, with the value 1, so
that the block of the features apart in the precision matrix is diagonal. These features are
eliminated exactly, and only a matrix of the shared features remains to be factored.

Axes: r rows, e entries (the shared features of the rows), x entries of rows with a feature apart, w
rows with a feature apart, p shared features, o features apart, k pairs of a shared feature and a
feature apart that occur in a row, s right-hand sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Places = NDArray[np.intp]

NOTHING_APART = -1
"""The number that a row without a feature apart has instead."""
_BLOCK = 128
"""The number of rows of a triangular system that are solved together. numpy has no solver for
triangular systems, and scipy is not in the default installation."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factor:
    """A factored precision matrix, with the features apart eliminated."""

    lower: Matrix
    """The Cholesky factor that remains for the shared features, (p, p)."""
    cross_k: Matrix
    """The non-zero entries of the block between the shared features and the features apart."""
    apart_o: Matrix
    """The diagonal of the features apart."""


@final
class Design:
    """The features of all rows, as a sparse matrix."""

    def __init__(
        self, entries: tuple[Places, Places, Matrix], apart_r: Places, sizes: tuple[int, int],
        *, pairs: tuple[Places, Places],
    ) -> None:  # fmt: skip
        """Store the entries and the indices of their products.

        Args:
            entries: row, shared feature and value of each entry, sorted by row; a row has a feature
                at most once.
            apart_r: the feature apart of each row, or `NOTHING_APART`.
            sizes: the numbers of shared features and of features apart.
            pairs: the pairs of entries of the same row, as `pair_within` returns them.
        """
        self._row_e, self._column_e, self._value_e = entries
        self._with_r = np.flatnonzero(apart_r != NOTHING_APART)
        self._apart_w = apart_r[self._with_r]
        self._rows = len(apart_r)
        self._shared, self._apart = sizes
        left, right = pairs
        self._pair_row = self._row_e[left]
        self._pair_value = self._value_e[left] * self._value_e[right]
        self._pair_index = self._flat_index(self._column_e[left], self._column_e[right])
        apart_e = apart_r[self._row_e]
        self._crossing_e = np.flatnonzero(apart_e != NOTHING_APART)
        key_x = apart_e[self._crossing_e] * self._shared + self._column_e[self._crossing_e]
        key_k, self._cross_x = np.unique(key_x, return_inverse=True)
        self._cross_apart, self._cross_column = np.divmod(key_k, max(self._shared, 1))
        self._cross_left, self._cross_right = pair_within(self._cross_apart)
        self._cross_index = self._flat_index(
            self._cross_column[self._cross_left], self._cross_column[self._cross_right]
        )

    def _flat_index(self, one: Places, other: Places) -> Places:
        """Return the index of each pair of shared features in the flattened lower triangle."""
        return np.maximum(one, other) * self._shared + np.minimum(one, other)

    def multiply(self, shared_p: Matrix, apart_o: Matrix) -> Matrix:
        """Multiply the design by the weights of the features; return a value for each row, (r,)."""
        found = add_up(self._row_e, self._value_e * shared_p[self._column_e], self._rows)
        found[self._with_r] += apart_o[self._apart_w]
        return found

    def transpose(self, value_r: Matrix) -> tuple[Matrix, Matrix]:
        """Multiply the transposed design by a value for each row; return (p,) and (o,)."""
        shared = add_up(self._column_e, self._value_e * value_r[self._row_e], self._shared)
        return shared, add_up(self._apart_w, value_r[self._with_r], self._apart)

    def factor(self, weight_r: Matrix, prior_p: Matrix, prior_o: Matrix) -> Factor:
        """Factor the precision, from the weight of each row and the features' prior precisions."""
        size = self._shared
        left = add_up(self._pair_index, self._pair_value * weight_r[self._pair_row], size * size)
        left[:: size + 1] += prior_p
        apart_o = add_up(self._apart_w, weight_r[self._with_r], self._apart) + prior_o
        value_x = self._value_e[self._crossing_e] * weight_r[self._row_e[self._crossing_e]]
        cross_k = add_up(self._cross_x, value_x, len(self._cross_apart))
        scaled_k = cross_k / apart_o[self._cross_apart]
        left -= add_up(
            self._cross_index, cross_k[self._cross_left] * scaled_k[self._cross_right], size * size
        )
        lower: Matrix = np.linalg.cholesky(left.reshape(size, size)).astype(np.float64, copy=False)
        return Factor(lower=lower, cross_k=cross_k, apart_o=apart_o)

    def solve(self, factor: Factor, shared_p: Matrix, apart_o: Matrix) -> tuple[Matrix, Matrix]:
        """Solve the equations of the precision for a right-hand side; return (p,) and (o,)."""
        from_apart = factor.cross_k * (apart_o / factor.apart_o)[self._cross_apart]
        rest = shared_p - add_up(self._cross_column, from_apart, self._shared)
        shared = solve_upper(factor.lower, solve_lower(factor.lower, rest[:, None]))
        return shared[:, 0], apart_o / factor.apart_o - self.follow(factor, shared)[:, 0]

    def follow(self, factor: Factor, shared_ps: Matrix) -> Matrix:
        """Return the decrease of the weights apart that follows from shared weights: (o, s)."""
        found = np.zeros((self._apart, shared_ps.shape[1]))
        if len(self._cross_apart):
            present, begins = np.unique(self._cross_apart, return_index=True)
            value_ks = factor.cross_k[:, None] * shared_ps[self._cross_column]
            found[present] = np.add.reduceat(value_ks, begins, axis=0)
        return found / factor.apart_o[:, None]


def add_up(index_e: Places, value_e: Matrix, size: int) -> Matrix:
    """Return the sum of the values at each index: (size,)."""
    found = np.bincount(index_e, value_e, size)
    return found.astype(np.float64, copy=False)  # without values they are integers


def pair_within(segment_e: Places) -> tuple[Places, Places]:
    """Return each pair of indices of the same segment once, the later index first.

    Each index is also paired with itself.

    Args:
        segment_e: the segment of each index, ascending.
    """
    index = np.arange(len(segment_e))
    begin = np.searchsorted(segment_e, segment_e)
    many = index - begin + 1
    left = np.repeat(index, many)
    before = np.cumsum(many) - many
    return left, begin[left] + np.arange(len(left)) - before[left]


def solve_lower(lower: Matrix, wanted: Matrix) -> Matrix:
    """Solve `lower @ x = wanted`."""
    found = wanted.copy()
    for at in range(0, len(lower), _BLOCK):
        block = slice(at, at + _BLOCK)
        found[block] -= lower[block, :at] @ found[:at]
        found[block] = np.linalg.solve(lower[block, block], found[block])
    return found


def solve_upper(lower: Matrix, wanted: Matrix) -> Matrix:
    """Solve `lower.T @ x = wanted`."""
    found = wanted.copy()
    for at in reversed(range(0, len(lower), _BLOCK)):
        block, later = slice(at, at + _BLOCK), slice(at + _BLOCK, None)
        found[block] -= lower[later, block].T @ found[later]
        found[block] = np.linalg.solve(lower[block, block].T, found[block])
    return found
