"""The selector's guard, which leaves the best single worker only for a clear gain.

Axes: n questions, m workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Workers = NDArray[np.signedinteger[Any]]
"""Indices of workers."""


@dataclass(frozen=True, slots=True)
class SelectorGuard:
    """The guard's bounds, which `batuta.lab.learners.selector_guard` fits."""

    advantage: float = 0.0
    """The credit by which another worker must be expected to exceed the best single one."""
    closeness: float = 2.0
    """The least cosine to the closest training question; above 1 the best single worker always
    answers."""

    def __call__(self, value_nm: Floats, close_n: Floats, best: int | Workers) -> NDArray[np.intp]:
        """Return the worker for each question, (n,).

        Args:
            value_nm: the expected credit.
            close_n: the cosine to the closest training question.
            best: the best single worker, for all questions or for each.
        """
        rows, first_n = np.arange(len(value_nm)), value_nm.argmax(axis=1)
        more_n = value_nm[rows, first_n] - value_nm[rows, best]
        leaves = (more_n > self.advantage) & (close_n >= self.closeness)
        return np.where(leaves, first_n, best)

    def hold_back(self, value_nm: Floats, best: int) -> Floats:
        """Return the values with those that exceed the best worker's by too little put below it.

        Asking in the order of these values asks the best worker first unless the guard would leave
        it.
        """
        best_n1 = value_nm[:, [best]]
        short_nm = (value_nm > best_n1) & (value_nm - best_n1 <= self.advantage)
        return np.where(short_nm, np.nextafter(best_n1, np.float32(-1)), value_nm)
