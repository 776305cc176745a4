"""Expected credit of workers with few scores.

A newcomer's scores are regressed on the directions in which the well-known workers differ; its
expected credit is a lower confidence bound of that regression.

Axes: n questions, m workers, k of them well known, c directions, d coordinates of a question
(directions and features), e = d + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

MAX_COMPONENTS = 3
"""Maximum number of directions in which a joining worker may differ from its own mean."""
DOUBT = 1.0
"""Number of standard errors subtracted from a newcomer's expected credit."""
PRIOR_OUTCOMES = 8.0
"""The weight of the prior, in pseudo-observations (scores of a joining worker)."""
_PRIOR_VARIANCE = 0.25
"""The prior variance of a score, with the weight of `PRIOR_OUTCOMES`."""


@dataclass(frozen=True, slots=True, eq=False)
class JoiningPosterior:
    """A newcomer's expected credit as a linear function, by ridge regression.

    The mean is shrunk towards the workers' mean with the weight of one score, and the other
    coefficients towards 0 with the weights `penalty_d`.
    """

    mean: float
    """The expected credit at the origin."""
    weights_d: Floats
    """The change of the expected credit along each coordinate."""
    covariance_ee: Floats
    """The covariance of the mean and the weights."""

    @classmethod
    def fit(
        cls, points_nd: Floats, scores_n: Floats, usual: float, penalty_d: Sequence[float]
    ) -> JoiningPosterior:
        """Fit the posterior to a newcomer's scores.

        Args:
            points_nd: the coordinates of the questions that the newcomer was asked.
            scores_n: the newcomer's score on each question, in [0, 1].
            usual: the mean credit of the other workers.
            penalty_d: the weight of each coefficient's prior, in pseudo-observations.
        """
        design_ne = _make_design(points_nd)
        inverse_ee = np.linalg.inv(design_ne.T @ design_ne + np.diag([1.0, *penalty_d]))
        target_n = np.asarray(scores_n, np.float64) - usual
        weights_e = inverse_ee @ design_ne.T @ target_n
        residual = float(np.sum((target_n - design_ne @ weights_e) ** 2))
        variance = (residual + PRIOR_OUTCOMES * _PRIOR_VARIANCE) / (len(target_n) + PRIOR_OUTCOMES)
        return cls(usual + float(weights_e[0]), weights_e[1:], variance * inverse_ee)

    def lower_end_n(self, points_nd: Floats) -> NDArray[np.float64]:
        """Return the expected credit on each question, minus `DOUBT` standard errors."""
        design_ne = _make_design(points_nd)
        error_n = np.sqrt(np.einsum("nd,de,ne->n", design_ne, self.covariance_ee, design_ne))
        return self.mean + points_nd @ self.weights_d - DOUBT * error_n

    def usual_error(self) -> float:
        """Return the standard error on a question one unit from the origin in each direction."""
        return float(np.sqrt(np.trace(self.covariance_ee)))


def main_directions(less_nk: Floats) -> NDArray[np.float64]:
    """Return the main components, scaled to unit variance, of credits minus their means: (k, c)."""
    less = less_nk.astype(np.float64)
    spread, right = np.linalg.eigh(less.T @ less / len(less))
    chosen = np.argsort(-spread)[:MAX_COMPONENTS]
    chosen = chosen[spread[chosen] > np.finfo(np.float32).eps]
    return right[:, chosen] / np.sqrt(spread[chosen])


def _make_design(points_nd: Floats) -> NDArray[np.float64]:
    ones_n = np.ones(len(points_nd))
    return np.column_stack([ones_n, points_nd]).astype(np.float64)
