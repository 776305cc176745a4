"""The selector's guard leaves the best single worker only for a clear gain on known questions.

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


@dataclass(frozen=True, slots=True)
class SelectorGuard:
    """The bounds, which `batuta.lab.learners.selector_guard` fits."""

    advantage: float = 0.0
    """In credit: how much more than the best single worker another must be expected to earn."""
    closeness: float = 2.0
    """Cosine to the closest training question; above 1: the best single worker always answers."""

    def __call__(self, value_nm: Floats, close_n: Floats, best: int | Workers) -> NDArray[np.intp]:
        """Return the worker for each question, (n,).

        Args:
            value_nm: expected credit.
            close_n: cosine to the closest training question.
            best: the best single worker, of all questions or of each.
        """
        rows, first_n = np.arange(len(value_nm)), value_nm.argmax(axis=1)
        more_n = value_nm[rows, first_n] - value_nm[rows, best]
        leaves = (more_n > self.advantage) & (close_n >= self.closeness)
        return np.where(leaves, first_n, best)

    def hold_back(self, value_nm: Floats, best: int) -> Floats:
        """Return the values with nobody's above the best worker's by less than the advantage.

        So whoever asks in the order of the values asks the best worker first unless the guard
        would leave it.
        """
        its_n1 = value_nm[:, [best]]
        short_nm = (value_nm > its_n1) & (value_nm - its_n1 <= self.advantage)
        return np.where(short_nm, np.nextafter(its_n1, np.float32(-1)), value_nm)
