"""Fits the selector's guard on held-out training questions.

They are held out twice: in random folds, where similar questions remain, and in folds of whole task
families, where none does. The gain of leaving the best worker on a new family is measured against
the best single worker of the *other* families, as the overall best was chosen with the family's own
outcomes, which are unknown for a new family.

Axes: n questions, m workers, f families.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.selector.model import SelectorGuard, Workers

Floats = NDArray[np.float32]
ADVANTAGES = (0.0, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2)
"""Bounds on the advantage that are tried, in credit."""
_QUANTILES = 30
"""The number of bounds on closeness that are tried."""
_SURE = 2.5
"""Standard errors by which a gain in random folds must exceed 0: the greatest of some two hundred
bounds exceeds one by luck alone."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HeldOutTrial:
    """The predictions for held-out training questions, and their rewards."""

    value_nm: Floats
    close_n: Floats
    reward_nm: Floats
    """NaN if unknown."""
    best_n: Workers | int
    """The best single worker, of all questions or of those not held out with each."""

    def gain_n(self, guard: SelectorGuard) -> NDArray[np.float64]:
        """Return what each question earns above the best single worker; 0 where unknown."""
        rows = np.arange(len(self.close_n))
        picked = guard(self.value_nm, self.close_n, self.best_n)
        gain_n = self.reward_nm[rows, picked] - self.reward_nm[rows, self.best_n]
        return np.nan_to_num(gain_n).astype(np.float64)


def fit_guard(
    by_lot: HeldOutTrial, by_family: HeldOutTrial, family_n: NDArray[np.signedinteger[Any]]
) -> SelectorGuard:
    """Return the bounds under which leaving the best single worker most reliably gains.

    Their gain in random folds, less 2.5 standard errors, is the greatest and above 0; their gain on
    new families is zero or above its standard error. Among equal bounds the strictest are taken, as
    there is no evidence between questions like the known ones and those of new families. If no
    bounds qualify, the best single worker always answers.

    Args:
        by_lot: the trial in random folds.
        by_family: the trial in folds of whole families.
        family_n: the family of each question.
    """
    quantiles = np.linspace(0, 1, _QUANTILES, endpoint=False)
    bounds = np.unique(np.quantile(np.append(by_lot.close_n, by_family.close_n), quantiles))
    chosen, most = SelectorGuard(), 0.0
    for closeness in bounds[::-1]:  # the strictest first
        for advantage in ADVANTAGES:
            guard = SelectorGuard(advantage, float(closeness))
            gain_n = by_lot.gain_n(guard)
            lower_bound = float(gain_n.sum() - _SURE * np.sqrt(len(gain_n)) * gain_n.std())
            if lower_bound > most and wins_on_families(by_family.gain_n(guard), family_n):
                chosen, most = guard, lower_bound
    return chosen


def wins_on_families(gain_n: NDArray[np.float64], family_n: NDArray[np.signedinteger[Any]]) -> bool:
    """Tell whether the gains on held-out families are zero, or above their standard error.

    The gain of a single family equals its standard error, and does not suffice.
    """
    gain_f = np.bincount(family_n, gain_n)
    return not gain_f.any() or bool(gain_f.sum() > 1.001 * np.sqrt(np.sum(gain_f**2)))
