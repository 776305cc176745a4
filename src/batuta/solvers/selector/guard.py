"""When the selector may leave the best single worker.

Another worker is picked only if it is expected to earn clearly more and if the question is close
to one that was trained on. Both bounds are set on training questions that were held out, in folds
at random and in folds of whole task families: they are those that earn most on the former among
those that lose nothing on the latter, where a family's questions are all new. What they lose there
is measured from the best single worker of the *other* families: the one of all questions was chosen
with the family's own outcomes, which nobody has of a new one. Questions held out
at random are mostly very close to others, those of new families far from all, and between the two
there is no evidence: of bounds that earn about the same, the strictest is taken, unless wider ones
surely won on new families.

Axes: n questions, m workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Workers = NDArray[np.signedinteger[Any]]
"""Their places."""
ADVANTAGES = (0.0, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2)
"""Bounds that are tried, in credit."""
_QUANTILES = 30
"""Bounds on closeness that are tried."""
_STANDARD_ERRORS = 1.0
"""Standard errors by which what is gained on new families must be above 0."""
_AT_RANDOM = 2.5
"""The same of what is gained at random: the greatest of some two hundred gains is above its error
by luck alone."""
FEW_FAMILIES = 8
"""Families below which what they win says less of the next one."""
FEW_FAMILIES_ERRORS = 1.5
"""Standard errors over families by which few of them must win more than the best worker alone."""
_SURE = 2.0
"""Standard errors by which wider bounds must have won on new families to be preferred for it."""
_KEPT = 0.95
"""Share of the greatest gain at random that stricter bounds must keep."""
_MAX_FOLD_LOSS = 0.003
"""Credit a question that may be lost on a fold of families never seen."""


@dataclass(frozen=True, slots=True)
class SelectorGuard:
    """The bounds."""

    advantage: float = 0.0
    """In credit: how much more than the best single worker another must be expected to earn."""
    closeness: float = 2.0
    """Cosine to the closest training question; above 1: the best single worker always answers."""

    def __call__(self, value_nm: Floats, close_n: Floats, best: int | Workers) -> NDArray[np.intp]:
        """The worker for each question, (n,).

        Args:
            value_nm: expected credit, or what stands for it.
            close_n: cosine to the closest training question.
            best: the best single worker, of all questions or of each.
        """
        rows, first_n = np.arange(len(value_nm)), value_nm.argmax(axis=1)
        more_n = value_nm[rows, first_n] - value_nm[rows, best]
        leaves = (more_n > self.advantage) & (close_n >= self.closeness)
        return np.where(leaves, first_n, best)

    def hold_back(self, value_nm: Floats, best: int) -> Floats:
        """The same values, but nobody's above the best worker's by less than the advantage.

        So whoever asks in the order of the values asks the best worker first unless the guard
        would leave it.
        """
        its_n1 = value_nm[:, [best]]
        short_nm = (value_nm > its_n1) & (value_nm - its_n1 <= self.advantage)
        return np.where(short_nm, np.nextafter(its_n1, np.float32(-1)), value_nm)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HeldOutTrial:
    """Training questions as they looked while they were held out."""

    value_nm: Floats
    close_n: Floats
    reward_nm: Floats
    """NaN: unknown."""
    best_n: Workers | None = None
    """The best single worker of the questions that were not held out with it; None: of all."""

    def select(self, rows: NDArray[np.bool_]) -> HeldOutTrial:
        """The same of some questions."""
        best_n = None if self.best_n is None else self.best_n[rows]
        return HeldOutTrial(
            value_nm=self.value_nm[rows],
            close_n=self.close_n[rows],
            reward_nm=self.reward_nm[rows],
            best_n=best_n,
        )

    def gain_n(self, guard: SelectorGuard, best: int) -> NDArray[np.float64]:
        """What each question earns more than with the best single worker; 0 where unknown."""
        rows = np.arange(len(self.close_n))
        alone = best if self.best_n is None else self.best_n
        picked = guard(self.value_nm, self.close_n, alone)
        gain_n = self.reward_nm[rows, picked] - self.reward_nm[rows, alone]
        return np.nan_to_num(gain_n).astype(np.float64)


def fit_guard(
    by_lot: HeldOutTrial,
    by_family: HeldOutTrial,
    family_n: NDArray[np.signedinteger[Any]],
    best: int,
    *,
    fold_n: NDArray[np.signedinteger[Any]],
) -> SelectorGuard:
    """The strictest bounds that earn about the most at random and lose nothing on new families.

    What they gain at random is at least 2.5 of its standard errors, and what they gain on new
    families less its standard error over families (one and a half of them where fewer than eight
    families are known) is not below 0, so that luck with a few of them does not open the guard, and
    no fold of families loses much.

    Args:
        by_lot: held out in folds at random.
        by_family: held out in folds of whole families.
        family_n: each question's family.
        best: the best single worker.
        fold_n: each question's fold of whole families.
    """
    found: list[tuple[float, float, SelectorGuard]] = []
    few_families = len(np.unique(family_n)) < FEW_FAMILIES
    errors = FEW_FAMILIES_ERRORS if few_families else _STANDARD_ERRORS
    quantiles = np.linspace(0, 1, _QUANTILES, endpoint=False)
    bounds = np.unique(np.quantile(np.append(by_lot.close_n, by_family.close_n), quantiles))
    for closeness in bounds:
        for advantage in ADVANTAGES:
            guard = SelectorGuard(advantage, float(closeness))
            gain_n = by_lot.gain_n(guard, best)
            strange_n = by_family.gain_n(guard, best)
            strange_f = np.bincount(family_n, strange_n).astype(np.float64)
            error = errors * _root_of_squares(strange_f)
            fold_means = np.bincount(fold_n, strange_n) / np.maximum(np.bincount(fold_n), 1)
            if (
                gain_n.sum() > 0
                and gain_n.sum() >= _AT_RANDOM * _root_of_squares(gain_n - gain_n.mean())
                and strange_f.sum() >= error
                and fold_means.min() >= -_MAX_FOLD_LOSS
            ):
                surely = max(float(strange_f.sum()) - _SURE * error, 0.0)
                found.append((float(gain_n.sum()), surely, guard))
    most = max((gain for gain, _, _ in found), default=0.0)
    good = [one for one in found if one[0] >= _KEPT * most]
    strictest = max(good, key=lambda one: (one[1], one[2].closeness, one[0]), default=None)
    return SelectorGuard() if strictest is None else strictest[2]


def held_out_gain_n(
    by_lot: HeldOutTrial,
    by_family: HeldOutTrial,
    family_n: NDArray[np.signedinteger[Any]],
    best: int,
    *,
    lot_fold_n: NDArray[np.signedinteger[Any]],
    fold_n: NDArray[np.signedinteger[Any]],
) -> NDArray[np.float64]:
    """What each question earns more than with the best worker, by bounds set on other folds.

    Args:
        by_lot: held out in folds at random.
        by_family: held out in folds of whole families.
        family_n: each question's family.
        best: the best single worker.
        lot_fold_n: each question's fold at random.
        fold_n: each question's fold of whole families.
    """
    gain_n = np.zeros(len(lot_fold_n))
    for fold in np.unique(lot_fold_n):
        inside = lot_fold_n == fold
        guard = fit_guard(
            by_lot.select(~inside),
            by_family.select(~inside),
            family_n[~inside],
            best,
            fold_n=fold_n[~inside],
        )
        gain_n[inside] = by_lot.select(inside).gain_n(guard, best)
    return gain_n


def _root_of_squares(part_n: NDArray[np.float64]) -> float:
    """The standard error of a sum of independent parts around 0."""
    return float(np.sqrt(np.sum(part_n**2)))
