"""Corrections of the model by each workflow's own runs.

The transition model shares what it learns among workflows. If it lacks a feature for what a
workflow does, the outcomes differ from its expectations, in a group or at one of its levels. The
differences are shrunk and added to the expectations; the remaining error counts as uncertainty.
While the search tries workflows it takes the model's error to be large. Which workflow is best is
decided with the error that the outcomes show: the model was fitted to them, and usually they differ
from it by no more than noise, so that own runs would count twice.
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
"""The weight of the model's expectation while searching, in questions, beside a workflow's own runs
in a group; it corresponds to a model error of about 0.14."""
_LEVEL_TRUST = 30.0
"""The same weight for a level's difference from its group, beside the runs at that level."""
ExpectShares = Callable[[Sequence[Candidate], int], Matrix]
"""Returns the model's expected share right of each workflow at each level of a group: (c, l)."""


@dataclass(frozen=True, slots=True, eq=False)
class SeenShares:
    """The share right of workflows at each level of a group, and its uncertainty."""

    draw_scl: Matrix
    """Corrected draws from the model's posterior."""
    apart_c: Matrix
    """The standard deviation of the model's remaining error; 0 for a workflow that did not run."""

    @property
    def mean_cl(self) -> Matrix:
        """The expected shares: (c, l)."""
        return np.clip(self.draw_scl.mean(axis=0), 0.0, 1.0)

    def draw(self, rng: np.random.Generator) -> Matrix:
        """Draw the shares: (s, c, l)."""
        noise_sc = rng.standard_normal(self.draw_scl.shape[:2]) * self.apart_c
        return self.draw_scl + noise_sc[:, :, None]

    @property
    def deviation_cl(self) -> Matrix:
        """The standard deviation of the shares: (c, l)."""
        return np.sqrt(self.draw_scl.var(axis=0) + self.apart_c[:, None] ** 2)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _SeenGroup:
    """The differences of a group's workflows from the model's expectations, shrunk."""

    place: dict[Candidate, int]
    left_c: Matrix
    """Over the whole group."""
    left_cl: Matrix
    """At a level, beyond that of the group."""
    apart_c: Matrix
    """The standard deviation of what is left of the difference in the group."""


@final
class SeenResiduals:
    """The differences between the outcomes of workflows and a model's expectations."""

    def __init__(self, seen: Observations, arena: Arena, expect: ExpectShares) -> None:
        self._seen = seen
        self._arena = arena
        self._expect = expect
        self._groups: dict[int, _SeenGroup] = {}
        self._searching = True

    def estimate_error(self) -> None:
        """Take the model's error from the outcomes from now on."""
        self._searching = False
        self.forget()

    def forget(self) -> None:
        """Discard the sums, after new outcomes or a new fit of the model."""
        self._groups.clear()

    def correct(
        self, candidates: Sequence[Candidate], group: int, modelled_scl: Matrix
    ) -> SeenShares:
        """Return the model's draws, corrected by each workflow's own outcomes in the group."""
        if group not in self._groups:
            self._groups[group] = self._count(group)
        seen = self._groups[group]
        place = np.array([seen.place.get(one, -1) for one in candidates], np.intp)
        known_c = place >= 0
        left_c, left_cl = seen.left_c[place] * known_c, seen.left_cl[place] * known_c[:, None]
        return SeenShares(
            draw_scl=modelled_scl + left_c[:, None] + left_cl,
            apart_c=seen.apart_c[place] * known_c,
        )

    def _count(self, group: int) -> _SeenGroup:
        """Take the mean of each workflow's outcomes above expectation, and shrink it."""
        place: dict[Candidate, int] = {}
        rows = [
            (place.setdefault(one, len(place)), level, score)
            for level in range(self._arena.levels)
            for task in self._arena.cells.get((group, level), ())
            for one, score in self._seen.scores.get(task.id, {}).items()
        ]
        left_cl, count_cl = np.zeros((2, max(len(place), 1), self._arena.levels))
        share_c = np.full(len(left_cl), 0.5)
        if rows:
            table = np.array(rows)
            at_r, level_r = table[:, :2].astype(np.intp).T
            expected_cl = self._expect(list(place), group)
            np.add.at(left_cl, (at_r, level_r), table[:, 2] - expected_cl[at_r, level_r])
            np.add.at(count_cl, (at_r, level_r), 1.0)
            share_c = np.clip(expected_cl.mean(axis=1), 0.05, 0.95)
        noise_c = share_c * (1 - share_c)
        count_c, sum_c = count_cl.sum(axis=1), left_cl.sum(axis=1)
        trust = (_TRUST, _LEVEL_TRUST) if self._searching else (None, None)
        left_c, apart_c = shrink_differences(sum_c, count_c, noise_c, trust[0])
        left_cl -= count_cl * left_c[:, None]
        left_cl, _ = shrink_differences(left_cl.T, count_cl.T, noise_c, trust[1])
        return _SeenGroup(place=place, left_c=left_c, left_cl=left_cl.T, apart_c=apart_c)


def shrink_differences(
    sums: Matrix, counts: Matrix, noise: Matrix, trust: float | None
) -> tuple[Matrix, Matrix]:
    """Return the expected true differences, and the standard deviations that are left of them.

    Args:
        sums: the sums of outcomes above expectation.
        counts: the numbers of outcomes.
        noise: the variance of one outcome.
        trust: the weight of the expectation in outcomes; None to take the variance of the true
            differences from what the means vary beyond noise, by the method of moments of
            DerSimonian and Laird (1986, Controlled Clinical Trials 7).
    """
    weights = counts / noise
    means = sums / np.maximum(counts, 1.0)
    if trust is None:
        beyond = float((weights * means**2).sum()) - np.count_nonzero(counts)
        variance = np.asarray(max(beyond, 0.0) / max(float(weights.sum()), 1e-12))
    else:
        variance = noise / trust
    kept = variance * weights / (1 + variance * weights)
    return kept * means, np.sqrt(variance * (1 - kept))
