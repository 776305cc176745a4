"""What the outcomes so far say of every workflow in every cell, tried or not, and how surely.

A Gaussian process over pairs of a workflow and a cell (a group of questions and how easy they
are). Two workflows are alike as far as they give the same roles to the same workers; two cells as
far as they are of one group and of the same ease. So what a checker does in one workflow tells of
the others in which it checks, few data are shrunk from the cell to the group and to the whole,
and a workflow that was never tried has an expectation and a doubt.

Questions differ in difficulty more than workflows do: each has an effect of its own that is
estimated with the rest, which makes every comparison a paired one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from batuta.tune.library import Candidate, StepRole

Matrix = NDArray[np.float64]
Cell = tuple[int, int]
"""A group and a level of ease in it, 0 the hardest."""

_JITTER = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Variances:
    """How much may differ by what, as variances of the log-odds of a right answer.

    In log-odds a second check gains less than the first, as it does in life.
    """

    mean: float = 2.0
    """All workflows together from cell to cell."""
    shape: float = 0.1
    """Workflows of different shapes."""
    step: float = 0.5
    """Workflows with and without a step of one role."""
    role: float = 1.0
    """Workers in one role."""
    pair: float = 0.1
    """Pairs of a solver and a checker."""
    own: float = 0.1
    """One workflow from what its parts promise."""
    group: float = 0.7
    """Of all these, the share that differs by group."""
    level: float = 0.4
    """Of all these, the share that differs by ease."""
    question: float = 1.5
    """Questions of one cell."""


_SEARCHED = ("mean", "shape", "step", "role", "pair", "own", "group", "level")
_SHARES = ("group", "level")
_STEPS = (0.5, 2.0)
_SPREAD = 1.5
"""Standard deviation, in natural logarithms, of how far a variance may be from its default."""
_LEAST_WEIGHT = 0.03
"""Of one answer, so that a certain one does not count for nothing."""


@lru_cache(maxsize=2**14)
def describe_parts(candidate: Candidate) -> Mapping[tuple[str, ...], float]:
    """What a workflow has in common with others: its shape, its roles, its pairs."""
    parts: dict[tuple[str, ...], float] = {("shape", *candidate.shape): 1.0}
    prepared = candidate.steps[0].role in {StepRole.PLAN, StepRole.LOOK_UP}
    solvers = candidate.of_role(StepRole.SOLVE)
    for step in candidate.steps:
        role = "role", step.role, step.worker
        weight = 1 / len(solvers) if step.role is StepRole.SOLVE else 1.0
        parts[role] = parts.get(role, 0.0) + weight
        parts["step", step.role] = parts.get(("step", step.role), 0.0) + weight
        if prepared and step.role is StepRole.SOLVE:
            parts["role", "follow", step.worker] = weight
        if step.wording:
            parts["role", step.role, "wording", str(step.wording)] = 1.0
    for check in (*candidate.of_role(StepRole.CHECK), *candidate.of_role(StepRole.DECIDE)):
        for solver in solvers:
            parts["pair", check.role, solver.worker, check.worker] = 1 / len(solvers)
            if solver.worker == check.worker:
                parts["role", "self"] = 1 / len(solvers)
    return parts


@dataclass(slots=True)
class Observations:
    """Every outcome so far, as numbers."""

    candidates: list[Candidate] = field(default_factory=list[Candidate])
    places: dict[Candidate, int] = field(default_factory=dict[Candidate, int])
    scores: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    """By question and the candidate's place."""

    def add(self, question: str, candidate: Candidate, score: float) -> None:
        """One outcome."""
        if candidate not in self.places:
            self.places[candidate] = len(self.candidates)
            self.candidates.append(candidate)
        self.scores[question, self.places[candidate]] = score


@final
class Surrogate:
    """The posterior, given outcomes and which question is in which cell."""

    def __init__(
        self,
        seen: Observations,
        cells: Mapping[str, Cell],
        levels: int,
        before: Surrogate | None = None,
    ) -> None:
        """Computes the posterior.

        Args:
            seen: outcomes; those of questions without a cell are left out.
            cells: each question's.
            levels: of ease.
            before: the posterior before the latest outcomes, to begin with.
        """
        self.variances: Variances = before.variances if before else Variances()
        self._levels = levels
        self._covariance: Matrix = np.empty((0, 0))
        self._inverse: Matrix = np.empty((0, 0))
        self._weights: Matrix = np.empty(0)
        self._mean: Matrix = np.empty(0)
        self._noise: Matrix = np.empty(0)
        self._columns: dict[tuple[str, ...], int] = {}
        self._numbers: dict[Candidate, int] = {}
        keys = [key for key in seen.scores if key[0] in cells]
        questions = sorted({key[0] for key in keys})
        number = {question: place for place, question in enumerate(questions)}
        self._question = np.array([number[question] for question, _ in keys], np.intp)
        self._score = np.array([seen.scores[key] for key in keys])
        pairs = sorted({(place, cells[question]) for question, place in keys})
        at = {pair: place for place, pair in enumerate(pairs)}
        self._pair = np.array([at[place, cells[question]] for question, place in keys], np.intp)
        self._count = np.bincount(self._pair, minlength=len(pairs)).astype(np.float64)
        self._points = _Points.of(
            [seen.candidates[place] for place, _ in pairs], [cell for _, cell in pairs], self
        )
        self.effect: Matrix = np.zeros(len(questions))
        """Of each question, in the order of their ids."""
        self.questions: list[str] = questions
        self._base: float = _log_odds(float(self._score.mean())) if len(self._score) else 0.0
        self._latent: Matrix = np.full(len(pairs), self._base)
        self._pairs: list[tuple[Candidate, Cell]] = [
            (seen.candidates[place], cell) for place, cell in pairs
        ]
        if before is not None:
            self._continue(before)

    def _continue(self, before: Surrogate) -> None:
        """Begin with what is known."""
        effect = dict(zip(before.questions, before.effect, strict=True))
        self.effect = np.array([effect.get(question, 0.0) for question in self.questions])
        latent = dict(zip(before._pairs, before._latent, strict=True))
        self._latent = np.array([latent.get(pair, self._base) for pair in self._pairs])

    def column(self, part: tuple[str, ...]) -> int:
        """The place of a part."""
        return self._columns.setdefault(part, len(self._columns))

    def number(self, candidate: Candidate) -> int:
        """The number of a candidate."""
        return self._numbers.setdefault(candidate, len(self._numbers))

    def fit(self, rounds: int = 3, *, tunes: bool = False) -> None:
        """The posterior; `tunes` first chooses the variances that make the outcomes likeliest."""
        self._covariance = self._kernel(self._points, self._points)
        for _ in range(rounds):
            self._solve()
        if tunes:
            self._tune()
            for _ in range(rounds):
                self._solve()
        lower = np.linalg.cholesky(self._covariance + np.diag(self._noise + _JITTER))
        self._inverse = np.linalg.inv(lower).astype(np.float64, copy=False)

    def predict(self, candidates: Sequence[Candidate], group: int) -> tuple[Matrix, Matrix]:
        """Mean and covariance of the log-odds of each candidate at each level of the group.

        Rows go through the candidates, and in each through the levels.
        """
        points, mean, half = self._predict(candidates, group)
        return mean, self._kernel(points, points) - half @ half.T

    def predict_mean(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """The mean alone, which is quick."""
        points = self._points_of(candidates, group)
        return self._base + self._kernel(points, self._points) @ self._weights

    def predict_each(self, candidates: Sequence[Candidate], group: int) -> tuple[Matrix, Matrix]:
        """The same with each one's standard deviation in the place of the covariance."""
        points, mean, half = self._predict(candidates, group)
        variance = self._variance(points) - (half**2).sum(axis=1)
        return mean, np.sqrt(variance.clip(0))

    def _predict(
        self, candidates: Sequence[Candidate], group: int
    ) -> tuple[_Points, Matrix, Matrix]:
        points = self._points_of(candidates, group)
        cross = self._kernel(points, self._points)
        return points, self._base + cross @ self._weights, cross @ self._inverse.T

    def _points_of(self, candidates: Sequence[Candidate], group: int) -> _Points:
        cells = [(group, level) for level in range(self._levels)]
        asked = [(candidate, cell) for candidate in candidates for cell in cells]
        return _Points.of([one for one, _ in asked], [cell for _, cell in asked], self)

    def _scale(self) -> Matrix:
        scale = np.zeros(len(self._columns))
        for part, place in self._columns.items():
            scale[place] = getattr(self.variances, part[0])
        return scale

    def _variance(self, points: _Points) -> Matrix:
        scale = self._scale()
        parts = (points.widened(len(scale)) ** 2) @ scale
        return self.variances.mean + self.variances.own + parts

    def share(self, mean: Matrix, variance: Matrix | float = 0.0) -> Matrix:
        """The share right over a cell's questions, for log-odds that are known so surely."""
        return _apply_sigmoid(mean / np.sqrt(1 + np.pi / 8 * (self.variances.question + variance)))

    def _kernel(self, one: _Points, other: _Points) -> Matrix:
        v = self.variances
        alike = v.mean + v.own * (one.candidate[:, None] == other.candidate[None, :])
        scale = self._scale()
        alike = alike + (one.widened(len(scale)) * scale) @ other.widened(len(scale)).T
        group = 1 - v.group + v.group * (one.group[:, None] == other.group[None, :])
        away = (one.level[:, None] - other.level[None, :]) / max(self._levels - 1, 1)
        level = 1 - v.level + v.level * np.exp(-2 * away**2)
        return alike * group * level

    def _solve(self) -> None:
        """One step of Newton's method towards the mode, then one for the questions' effects."""
        size, logit = len(self._count), self._latent[self._pair] + self.effect[self._question]
        right = _apply_sigmoid(logit)
        weight = np.maximum(right * (1 - right), _LEAST_WEIGHT)
        wanted = logit + (self._score - right) / weight
        total = np.bincount(self._pair, weight, size)
        rest = weight * (wanted - self.effect[self._question])
        mean = np.bincount(self._pair, rest, size) / total
        self._regress(mean, 1 / total)
        rest = weight * (wanted - self._latent[self._pair])
        questions = len(self.effect)
        total = np.bincount(self._question, weight, questions)
        pull = np.bincount(self._question, rest, questions)
        self.effect = pull / (total + 1 / self.variances.question)

    def _regress(self, mean: Matrix, noise: Matrix) -> None:
        self._mean, self._noise = mean, noise
        covariance = self._covariance + np.diag(noise + _JITTER)
        weights = np.linalg.solve(covariance, mean - self._base)
        self._weights = weights.astype(np.float64, copy=False)
        self._latent = mean - (noise + _JITTER) * self._weights

    def _likelihood(self) -> float:
        """Of the outcomes under the present variances, and of these."""
        self._covariance = self._kernel(self._points, self._points)
        lower = np.linalg.cholesky(self._covariance + np.diag(self._noise + _JITTER))
        white = np.linalg.solve(lower, self._mean - self._base)
        likelihood = -0.5 * float(white @ white) - float(np.log(np.diag(lower)).sum())
        return likelihood + _log_prior(self.variances)

    def _tune(self) -> None:
        """Coordinate ascent of the marginal likelihood, each variance halved or doubled."""
        best = self._likelihood()
        for name in _SEARCHED:
            for step in _STEPS:
                before = self.variances
                value = getattr(before, name) * step
                value = min(max(value, 0.1), 0.95) if name in _SHARES else value
                self.variances = replace(before, **{name: value})
                likelihood = self._likelihood()
                if likelihood > best:
                    best = likelihood
                    break
                self.variances = before
        self._covariance = self._kernel(self._points, self._points)


def _log_prior(variances: Variances) -> float:
    usual = Variances()
    away = [np.log(getattr(variances, name) / getattr(usual, name)) for name in _SEARCHED]
    return -0.5 * float(np.square(away).sum()) / _SPREAD**2


def _apply_sigmoid(logit: Matrix) -> Matrix:
    return 0.5 * (1 + np.tanh(logit / 2))


def _log_odds(share: float) -> float:
    share = min(max(share, 0.02), 0.98)
    return float(np.log(share / (1 - share)))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Points:
    """Pairs of a candidate and a cell."""

    candidate: NDArray[np.intp]
    part: Matrix
    group: NDArray[np.intp]
    level: Matrix

    @classmethod
    def of(cls, candidates: Sequence[Candidate], cells: Sequence[Cell], of: Surrogate) -> _Points:
        described = [describe_parts(candidate) for candidate in candidates]
        places = [{of.column(part): by for part, by in parts.items()} for parts in described]
        width = 1 + max((max(row) for row in places), default=0)
        part = np.zeros((len(places), width))
        for row, found in zip(part, places, strict=True):
            row[list(found)] = list(found.values())
        return cls(
            candidate=np.array([of.number(candidate) for candidate in candidates], np.intp),
            part=part,
            group=np.array([group for group, _ in cells], np.intp),
            level=np.array([level for _, level in cells], np.float64),
        )

    def widened(self, width: int) -> Matrix:
        return np.pad(self.part, ((0, 0), (0, width - self.part.shape[1])))
