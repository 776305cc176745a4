"""Logistic regression over named features, with Gaussian priors and draws of the posterior."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Places = NDArray[np.intp]
Feature = tuple[object, ...]
"""A name; its first part says what sort of feature it is."""

SAMPLES = 32
"""Draws of all that is unknown, over which expectations are taken."""
_ROUNDS, _CLOSE = 8, 1e-3


@final
class LogisticRegression:
    """A regression, its mode, and draws in Laplace's approximation."""

    def __init__(
        self,
        variances: Mapping[str, float],
        slopes: Container[object] = (),
        before: LogisticRegression | None = None,
    ) -> None:
        """Begins without outcomes.

        Args:
            variances: of each feature's weight, by the first part of its name.
            slopes: first parts of the names of features that count with the level of ease.
            before: an earlier one, from whose mode this one sets out.
        """
        self._slopes = slopes
        self._variances = variances
        self.columns: dict[Feature, int] = {}
        self._rows: dict[Feature, int] = {}
        self._entries: tuple[list[int], list[int], list[float]] = ([], [], [])
        self._offset: list[float] = []
        self._before = before
        self.theta: Matrix = np.zeros(0)
        self._draws: Matrix = np.zeros((SAMPLES, 0))
        self._unseen: dict[Feature, Matrix] = {}
        self._seed = 0

    def row(
        self, key: Feature, features: Callable[[], Iterable[tuple[Feature, float]]], offset: float
    ) -> int:
        """The number of the row of outcomes that have those features."""
        known = self._rows.get(key)
        if known is None:
            known = self._rows[key] = len(self._rows)
            self._offset.append(offset)
            for name, by in features():
                for place, value in zip(
                    self._entries, (known, self.columns.setdefault(name, len(self.columns)), by),
                    strict=True,
                ):  # fmt: skip
                    place.append(value)  # pyright: ignore[reportArgumentType]
        return known

    def fit(self, row: Places, score: Matrix, seed: int, extra: Matrix | None = None) -> None:
        """The mode; `extra` is added to the log-odds of each outcome."""
        prior = np.array([1 / self._variances[str(name[0])] for name in self.columns])
        if len(self.theta) != len(prior):
            self._begin(len(prior))
        matrix, many = self._design(), len(self._rows)
        self._precision = np.diag(prior)
        for _ in range(_ROUNDS):
            logit = matrix @ self.theta + self._offset
            right = apply_sigmoid(logit[row] + (0.0 if extra is None else extra))
            spread = np.maximum(right * (1 - right), 0.01)
            weight, miss = np.bincount(row, spread, many), np.bincount(row, score - right, many)
            self._precision = (matrix * weight[:, None]).T @ matrix + np.diag(prior)
            step = np.linalg.solve(self._precision, matrix.T @ miss - prior * self.theta)
            self.theta = self.theta + step
            if float(np.abs(step).max(initial=0.0)) < _CLOSE:
                break
        self._seed = seed

    def _begin(self, width: int) -> None:
        self.theta = np.zeros(width)
        if self._before is not None:
            for name, column in self.columns.items():
                if (known := self._before.columns.get(name)) is not None:
                    self.theta[column] = self._before.theta[known]
            self._before = None

    def _design(self) -> Matrix:
        matrix = np.zeros((len(self._rows), len(self.columns)))
        rows, columns, values = self._entries
        np.add.at(matrix, (rows, columns), values)
        return matrix

    def log_odds(self) -> Matrix:
        """Of each row, at the mode."""
        return self._design() @ self.theta + self._offset

    def draw(self) -> None:
        """Draws from the posterior around the mode."""
        rng = np.random.default_rng(self._seed)
        noise = rng.standard_normal((len(self.theta), SAMPLES))
        lower = np.linalg.cholesky(self._precision) if len(self.theta) else np.zeros((0, 0))
        self._draws = self.theta + np.linalg.solve(lower.T, noise).T
        self._unseen = {}

    def predict(self, features: Iterable[tuple[Feature, float]]) -> tuple[Matrix, Matrix]:
        """For each draw the log-odds without the level, and what the level adds: (s,), (s,)."""
        plain, slope = np.zeros(SAMPLES), np.zeros(SAMPLES)
        for name, by in features:
            column = self.columns.get(name)
            draw = self._draw_unseen(name) if column is None else self._draws[:, column]
            if name[0] in self._slopes:
                slope += by * draw
            else:
                plain += by * draw
        return plain, slope

    def _draw_unseen(self, name: Feature) -> Matrix:
        known = self._unseen.get(name)
        if known is None:
            rng = np.random.default_rng([self._seed, _number_of(name)])
            deviation = np.sqrt(self._variances[str(name[0])])
            known = self._unseen[name] = deviation * rng.standard_normal(SAMPLES)
        return known


def _number_of(name: Feature) -> int:
    return crc32(repr(name).encode("utf-8", "replace"))


def apply_sigmoid(logit: Matrix) -> Matrix:
    """Log-odds as chances."""
    return 0.5 * (1 + np.tanh(logit / 2))
