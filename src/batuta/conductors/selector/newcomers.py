"""Workers of whom little is known: what they are believed to earn where nobody asked them.

A newcomer is regressed on the directions in which the well-known workers differ, and is believed to
earn the lower end of what that regression says.

Axes: n questions, m workers, k of them well known, c directions, d places of a question (directions
and features), e = d + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

MAX_COMPONENTS = 3
"""Directions in which a joining worker may differ from its own mean."""
DOUBT = 1.0
"""Standard errors that are taken from what a newcomer is expected to earn."""
PRIOR_OUTCOMES = 8.0
"""Outcomes of a joining worker that weigh as much as what is believed without them."""
_PRIOR_VARIANCE = 0.25
"""Of an outcome; it weighs as much as `PRIOR_OUTCOMES` of them."""


@dataclass(frozen=True, slots=True, eq=False)
class JoiningPosterior:
    """What a newcomer is believed to earn: linear in where a question lies, by ridge regression.

    Its mean is drawn to what workers usually earn, with the weight of one outcome; a weight on a
    direction or on a feature, to none, with the weight of several.
    """

    mean: float
    """Where a question lies in the middle of all."""
    weights_d: Floats
    covariance_ee: Floats
    """Of the mean and of the weights."""

    @classmethod
    def fit(
        cls, place_nd: Floats, scores_n: Floats, usual: float, penalty_d: Sequence[float]
    ) -> JoiningPosterior:
        """What its outcomes say.

        Args:
            place_nd: where its questions lie.
            scores_n: what it earned on them.
            usual: what workers earn on average.
            penalty_d: outcomes that each weight's prior counts as.
        """
        design_ne = _make_design(place_nd)
        inverse_ee = np.linalg.inv(design_ne.T @ design_ne + np.diag([1.0, *penalty_d]))
        target_n = np.asarray(scores_n, np.float64) - usual
        found_e = inverse_ee @ design_ne.T @ target_n
        missed = float(np.sum((target_n - design_ne @ found_e) ** 2))
        variance = (missed + PRIOR_OUTCOMES * _PRIOR_VARIANCE) / (len(target_n) + PRIOR_OUTCOMES)
        return cls(usual + float(found_e[0]), found_e[1:], variance * inverse_ee)

    def lower_end_n(self, place_nd: Floats) -> NDArray[np.float64]:
        """What it earns on each question, less `DOUBT` standard errors."""
        design_ne = _make_design(place_nd)
        error_n = np.sqrt(np.einsum("nd,de,ne->n", design_ne, self.covariance_ee, design_ne))
        return self.mean + place_nd @ self.weights_d - DOUBT * error_n

    def usual_error(self) -> float:
        """Standard error on a question that lies one unit out on each direction."""
        return float(np.sqrt(np.trace(self.covariance_ee)))


def main_directions(less_nk: Floats) -> NDArray[np.float64]:
    """The directions in which workers' values differ most, (k, c); unit spread."""
    less = less_nk.astype(np.float64)
    spread, right = np.linalg.eigh(less.T @ less / len(less))
    chosen = np.argsort(-spread)[:MAX_COMPONENTS]
    chosen = chosen[spread[chosen] > np.finfo(np.float32).eps]
    return right[:, chosen] / np.sqrt(spread[chosen])


def _make_design(place_nd: Floats) -> NDArray[np.float64]:
    ones_n = np.ones(len(place_nd))
    return np.column_stack([ones_n, place_nd]).astype(np.float64)
