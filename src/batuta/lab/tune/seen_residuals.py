"""Corrects the model's expectations by each workflow's own runs.

The transition model learns from all workflows together. If it lacks a feature that matters for one
workflow, that workflow's outcomes differ from the expectations, in a group or at one of its levels.
The differences are shrunk and added to the expectations; the remaining error counts as uncertainty.

Axes: s posterior draws, c workflows, l levels of ease, r outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from batuta.lab.tune.library import Candidate
from batuta.lab.tune.search_settings import Arena
from batuta.lab.tune.sparse_design import Matrix
from batuta.lab.tune.transitions import Observations

_TRUST = 12.0
"""The weight of the model's expectation, in questions, against a workflow's own runs in a group. It
corresponds to a model error with a standard deviation of about 0.14."""
_LEVEL_TRUST = 30.0
"""The same weight for the difference of a level from its group, against the runs at that level."""
ExpectShares = Callable[[Sequence[Candidate], int], Matrix]
"""Returns the model's expected accuracy of each workflow at each level of a group: (c, l)."""


@dataclass(frozen=True, slots=True, eq=False)
class SeenShares:
    """The accuracy of workflows at each level of a group, and its uncertainty."""

    draw_scl: Matrix
    """Corrected draws from the model's posterior, which may lie outside [0, 1]."""
    apart_c: Matrix
    """The standard deviation of the model's remaining error; 0 for a workflow without outcomes."""

    @property
    def mean_cl(self) -> Matrix:
        """The expected accuracies: (c, l)."""
        return np.clip(self.draw_scl.mean(axis=0), 0.0, 1.0)

    def draw(self, rng: np.random.Generator) -> Matrix:
        """Draw the accuracies: (s, c, l)."""
        noise_sc = rng.standard_normal(self.draw_scl.shape[:2]) * self.apart_c
        return self.draw_scl + noise_sc[:, :, None]

    @property
    def deviation_cl(self) -> Matrix:
        """The standard deviations of the accuracies: (c, l)."""
        return np.sqrt(self.draw_scl.var(axis=0) + self.apart_c[:, None] ** 2)


@dataclass(frozen=True, slots=True, eq=False)
class _SeenGroup:
    """The sum of residuals and the number of outcomes of each workflow, by level."""

    index_of: dict[Candidate, int]
    residual_cl: Matrix
    count_cl: Matrix


@final
class SeenResiduals:
    """The differences between the outcomes of workflows and a model's expectations."""

    def __init__(self, seen: Observations, arena: Arena, expect: ExpectShares) -> None:
        self._seen = seen
        self._arena = arena
        self._expect = expect
        self._groups: dict[int, _SeenGroup] = {}

    def forget(self) -> None:
        """Discard the sums; needed after new outcomes or a new fit of the model."""
        self._groups.clear()

    def correct(
        self, candidates: Sequence[Candidate], group: int, modelled_scl: Matrix
    ) -> SeenShares:
        """Correct the model's draws `modelled_scl` by the workflows' own outcomes."""
        if group not in self._groups:
            self._groups[group] = self._count(group)
        seen = self._groups[group]
        index = np.array([seen.index_of.get(one, -1) for one in candidates], np.intp)
        known_c = index >= 0
        residual_cl = np.where(known_c[:, None], seen.residual_cl[index], 0.0)
        count_cl = np.where(known_c[:, None], seen.count_cl[index], 0.0)
        count_c = count_cl.sum(axis=1)
        by_group_c = residual_cl.sum(axis=1) / (count_c + _TRUST)
        residual_cl = residual_cl - count_cl * by_group_c[:, None]
        by_level_cl = residual_cl / (count_cl + _LEVEL_TRUST)
        share_c = np.clip(modelled_scl.mean(axis=(0, 2)) + by_group_c, 0.05, 0.95)
        return SeenShares(
            draw_scl=modelled_scl + by_group_c[:, None] + by_level_cl,
            apart_c=np.sqrt(share_c * (1 - share_c) / (count_c + _TRUST)) * known_c,
        )

    def _count(self, group: int) -> _SeenGroup:
        """Sum up each workflow's residuals (outcome less expectation), and count its outcomes."""
        index_of: dict[Candidate, int] = {}
        rows = [
            (index_of.setdefault(one, len(index_of)), level, score)
            for level in range(self._arena.levels)
            for task in self._arena.cells.get((group, level), ())
            for one, score in self._seen.scores.get(task.id, {}).items()
        ]
        residual_cl, count_cl = np.zeros((2, max(len(index_of), 1), self._arena.levels))
        if rows:
            table = np.array(rows)
            at_r, level_r = table[:, :2].astype(np.intp).T
            residual_r = table[:, 2] - self._expect(list(index_of), group)[at_r, level_r]
            np.add.at(residual_cl, (at_r, level_r), residual_r)
            np.add.at(count_cl, (at_r, level_r), 1.0)
        return _SeenGroup(index_of, residual_cl, count_cl)
