"""Logistic regression over named features, with Gaussian priors and posterior draws.

A feature is shared or apart, as in `sparse_design`. Axes: p shared features, o features apart, e
entries of the design, s draws.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import final

import numpy as np

from batuta.lab.tune.sparse_design import (
    NOTHING_APART,
    Design,
    Factor,
    Matrix,
    Places,
    add_up,
    pair_within,
    solve_upper,
)

Feature = tuple[object, ...]
"""The name of a feature, which begins with the feature's kind."""

SAMPLES = 32
"""The number of posterior draws over which expectations are taken."""
_STEPS, _CLOSE = 24, 1e-3
"""Maximum number of steps and halved steps of a fit, and the step length below which it ends."""
_REFACTORED = 0.05
"""The step length above which the precision is factored again; a shorter step hardly changes the
precision."""
_OVERSHOOT = 0.5
"""A step is too long if the slope at its end is below minus this share of the slope at its start.
If outcomes are certain the precision is small, and a Newton step may lead far beyond the mode."""


@final
class LogisticRegression:
    """A regression over a growing set of rows, with the posterior mode and draws around it.

    Draws use Laplace's approximation. Each fit starts at the last mode.
    """

    def __init__(
        self, variances: Mapping[str, float], slopes: Container[object] = (), apart: str = ""
    ) -> None:
        """Start without outcomes.

        Args:
            variances: the prior variance of a feature's weight, by its kind.
            slopes: the kinds of features that are multiplied by the level of ease.
            apart: the kind of the features apart, empty for none. Each row has at most one feature
                of this kind, with the value 1.
        """
        self._slopes = slopes
        self._variances = variances
        self._apart = apart
        self._numbers: dict[Feature, int] = {}
        """The number of every feature that occurs in a row."""
        self._others: dict[Feature, int] = {}
        """The number of every other feature that a prediction used since the last draw."""
        self._deviations: list[float] = []
        self._columns: dict[int, int] = {}
        """The column of each shared feature that occurs in a row, by the feature's number."""
        self._apart_columns: dict[int, int] = {}
        self._rows: dict[Feature, int] = {}
        self._entries: tuple[list[int], list[int], list[float]] = ([], [], [])
        self._apart_of: list[int] = []
        self._offset: list[float] = []
        self._pairs = np.zeros(0, np.intp), np.zeros(0, np.intp)
        self._paired = 0
        self._shared: Matrix = np.zeros(0)
        self._own: Matrix = np.zeros(0)
        self._design: Design = self._build_design()
        self._factor: Factor | None = None
        self._drawn: Matrix = np.zeros((0, SAMPLES))
        self._rng = np.random.default_rng(0)
        self._seed = 0

    def row(
        self, key: Feature, features: Callable[[], Iterable[tuple[Feature, float]]], offset: float
    ) -> int:
        """Return the number of the row of that key, which is created if needed.

        A new row has the `features` with their values; `offset` is added to its log-odds.
        """
        known = self._rows.get(key)
        if known is None:
            known = self._rows[key] = len(self._rows)
            self._offset.append(offset)
            self._apart_of.append(NOTHING_APART)
            shared: dict[int, float] = {}
            for name, by in features():
                number = self._number_of(name)
                if name[0] == self._apart:
                    columns = self._apart_columns
                    self._apart_of[known] = columns.setdefault(number, len(columns))
                else:
                    column = self._columns.setdefault(number, len(self._columns))
                    shared[column] = shared.get(column, 0.0) + by
            self._entries[0].extend([known] * len(shared))
            self._entries[1].extend(shared)
            self._entries[2].extend(shared.values())
        return known

    def _number_of(self, name: Feature) -> int:
        known = self._numbers.get(name)
        if known is None:
            known = self._numbers[name] = len(self._numbers)
            self._deviations.append(self._variances[str(name[0])] ** 0.5)
        return known

    def _find_number(self, name: Feature) -> int:
        known = self._numbers.get(name)
        if known is None:
            following = len(self._numbers) + len(self._others)
            known = self._others.setdefault(name, following)
        return known

    def weight_of(self, name: Feature) -> float:
        """Return the feature's weight at the mode; 0 for a feature without outcomes."""
        number = self._numbers.get(name, -1)
        if number in self._apart_columns:
            return float(self._own[self._apart_columns[number]])
        return float(self._shared[self._columns[number]]) if number in self._columns else 0.0

    def fit(self, row: Places, score: Matrix, seed: int, extra: Matrix | None = None) -> None:
        """Find the mode, given the row and the score of each outcome.

        `seed` is the seed of the next draw; `extra` is added to the log-odds of the outcomes.
        """
        self._design = self._build_design()
        self._shared = _append_zeros(self._shared, len(self._columns))
        self._own = _append_zeros(self._own, len(self._apart_columns))
        prior_p, prior_o = self._precisions(self._columns), self._precisions(self._apart_columns)
        many, longest = len(self._rows), np.inf
        step, slope = (np.zeros(len(prior_p)), np.zeros(len(prior_o))), 0.0
        for _ in range(_STEPS):
            right = apply_sigmoid(self.log_odds()[row] + (0.0 if extra is None else extra))
            shared, own = self._design.transpose(add_up(row, score - right, many))
            gradient = shared - prior_p * self._shared, own - prior_o * self._own
            if _sum_products(gradient, step) < -_OVERSHOOT * slope:
                # undo half of the step: the posterior is log-concave, so the step passed the mode
                step, slope = (step[0] / 2, step[1] / 2), slope / 2
                self._shared, self._own = self._shared - step[0], self._own - step[1]
                continue
            if longest > _REFACTORED:
                spread = np.maximum(right * (1 - right), 0.01)
                self._factor = self._design.factor(add_up(row, spread, many), prior_p, prior_o)
            assert self._factor is not None  # noqa: S101 - `longest` is infinite at first
            step = self._design.solve(self._factor, *gradient)
            slope = _sum_products(gradient, step)
            self._shared, self._own = self._shared + step[0], self._own + step[1]
            longest = max(float(np.abs(part).max(initial=0.0)) for part in step)
            if longest < _CLOSE:
                break
        self._seed = seed

    def _precisions(self, columns: Mapping[int, int]) -> Matrix:
        return np.array([self._deviations[number] ** -2.0 for number in columns])

    def _build_design(self) -> Design:
        row_e = np.array(self._entries[0], np.intp)
        new = int(np.searchsorted(row_e, self._paired))
        fresh = pair_within(row_e[new:])
        one, other = (
            np.concatenate([known, more + new])
            for known, more in zip(self._pairs, fresh, strict=True)
        )
        self._pairs, self._paired = (one, other), len(self._rows)
        return Design(
            (row_e, np.array(self._entries[1], np.intp), np.array(self._entries[2], np.float64)),
            np.array(self._apart_of, np.intp),
            (len(self._columns), len(self._apart_columns)),
            pairs=self._pairs,
        )

    def log_odds(self) -> Matrix:
        """Return the log-odds of each row at the mode."""
        return self._design.multiply(self._shared, self._own) + self._offset

    def draw(self) -> None:
        """Draw from the posterior around the mode, by the seed of the last fit.

        The weights of features without outcomes are drawn from their priors when they are needed.
        """
        assert self._factor is not None  # noqa: S101 - fitted before
        self._rng = np.random.default_rng(self._seed)
        self._others = {}
        self._drawn = np.zeros((len(self._numbers), SAMPLES))
        shared = solve_upper(self._factor.lower, self._make_noise(len(self._columns)))
        noise = self._make_noise(len(self._apart_columns))
        own = noise / np.sqrt(self._factor.apart_o)[:, None]
        own -= self._design.follow(self._factor, shared)
        self._drawn[list(self._columns)] = self._shared[:, None] + shared
        self._drawn[list(self._apart_columns)] = self._own[:, None] + own

    def _make_noise(self, many: int) -> Matrix:
        """Return noise, (many, s), in antithetic pairs, so that the draws' mean varies little."""
        half = self._rng.standard_normal((many, SAMPLES // 2))
        return np.concatenate([half, -half], axis=1)

    def _draw_others(self) -> None:
        new = list(self._others)[len(self._drawn) - len(self._numbers) :]
        deviation = np.sqrt([self._variances[str(name[0])] for name in new])
        drawn = deviation[:, None] * self._make_noise(len(new))
        self._drawn = np.concatenate([self._drawn, drawn])

    def predict(self, wanted: Sequence[Iterable[tuple[Feature, float]]]) -> tuple[Matrix, Matrix]:
        """Return the log-odds of each prediction in each draw, linear in the level, without offset.

        Args:
            wanted: the features of each prediction with their values; neither may be empty.

        Returns:
            The log-odds at level 0 and their slope over the level, each (prediction, draw).
        """
        numbers: list[int] = []
        values: tuple[list[float], list[float]] = ([], [])
        begins: list[int] = []
        for features in wanted:
            begins.append(len(numbers))
            for name, by in features:
                numbers.append(self._find_number(name))
                has_level = name[0] in self._slopes
                values[has_level].append(by)
                values[not has_level].append(0.0)
        if len(self._numbers) + len(self._others) > len(self._drawn):
            self._draw_others()
        drawn = self._drawn[numbers]
        plain, slope = (
            np.add.reduceat(drawn * np.array(value)[:, None], begins, axis=0) for value in values
        )
        return plain, slope


def _sum_products(one: tuple[Matrix, Matrix], other: tuple[Matrix, Matrix]) -> float:
    return float(one[0] @ other[0] + one[1] @ other[1])


def _append_zeros(known: Matrix, size: int) -> Matrix:
    return np.concatenate([known, np.zeros(size - len(known))])


def apply_sigmoid(logit: Matrix) -> Matrix:
    """Return the probabilities of log-odds."""
    return 0.5 * (1 + np.tanh(logit / 2))
