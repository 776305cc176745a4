"""Expected credit of workers with few scores.

A newcomer's scores are regressed on the directions in which the credits of the well-known workers
vary, and on features of the questions where the caller has them; its expected credit is a lower
confidence bound of that regression.

Axes: n questions, k well-known workers, c directions, d coordinates of a question (along the
directions, and any features), e = d + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

MAX_COMPONENTS = 3
"""Maximum number of directions in which a newcomer's credit may vary."""
DOUBT = 1.0
"""Number of standard errors subtracted from a newcomer's expected credit."""
PRIOR_OUTCOMES = 8.0
"""The weight of the prior, as a number of scores of a newcomer."""
_PRIOR_VARIANCE = 0.25
"""The prior variance of a score, with the weight of `PRIOR_OUTCOMES`."""


@dataclass(frozen=True, slots=True, eq=False)
class NewcomerPosterior:
    """A newcomer's expected credit as a linear function of a question's coordinates.

    In the ridge regression that fits it, the constant is shrunk towards the mean credit of the
    other workers with the weight of one score, and the coefficients towards 0 with the weights
    `penalty_d`.
    """

    mean: float
    """The expected credit of a question whose coordinates are 0."""
    weights_d: Floats
    """The change of the expected credit along each coordinate."""
    covariance_ee: Floats
    """The covariance of the mean and the weights."""

    @classmethod
    def fit(
        cls, points_nd: Floats, scores_n: Floats, prior_mean: float, penalty_d: Sequence[float]
    ) -> NewcomerPosterior:
        """Fit the posterior to a newcomer's scores.

        Args:
            points_nd: the coordinates of the questions that the newcomer was asked.
            scores_n: the newcomer's score on each question, in [0, 1].
            prior_mean: the mean credit of the other workers.
            penalty_d: the weight with which each coefficient is shrunk, as a number of scores.
        """
        design_ne = _make_design(points_nd)
        inverse_ee = np.linalg.inv(design_ne.T @ design_ne + np.diag([1.0, *penalty_d]))
        target_n = np.asarray(scores_n, np.float64) - prior_mean
        weights_e = inverse_ee @ design_ne.T @ target_n
        residual = float(np.sum((target_n - design_ne @ weights_e) ** 2))
        variance = (residual + PRIOR_OUTCOMES * _PRIOR_VARIANCE) / (len(target_n) + PRIOR_OUTCOMES)
        return cls(prior_mean + float(weights_e[0]), weights_e[1:], variance * inverse_ee)

    def lower_end_n(self, points_nd: Floats) -> NDArray[np.float64]:
        """Return the expected credit on each question, minus `DOUBT` standard errors."""
        design_ne = _make_design(points_nd)
        error_n = np.sqrt(np.einsum("nd,de,ne->n", design_ne, self.covariance_ee, design_ne))
        return self.mean + points_nd @ self.weights_d - DOUBT * error_n

    def typical_error(self) -> float:
        """Return the root of the mean squared standard error over questions.

        Their coordinates must be uncorrelated, with the mean 0 and the variance 1, as those along
        `main_directions` nearly are.
        """
        return float(np.sqrt(np.trace(self.covariance_ee)))


def main_directions(centred_nk: Floats) -> NDArray[np.float64]:
    """Return the directions in which credits vary most: (k, c).

    The product of `centred_nk` and a direction gives the coordinates of the questions along it;
    their mean square is 1. Directions without variation are left out, so c may be less than
    `MAX_COMPONENTS`, even 0.

    Args:
        centred_nk: the credits of the well-known workers, minus each worker's mean.
    """
    centred = centred_nk.astype(np.float64)
    spread, right = np.linalg.eigh(centred.T @ centred / len(centred))
    chosen = np.argsort(-spread)[:MAX_COMPONENTS]
    chosen = chosen[spread[chosen] > np.finfo(np.float32).eps]
    return right[:, chosen] / np.sqrt(spread[chosen])


def _make_design(points_nd: Floats) -> NDArray[np.float64]:
    ones_n = np.ones(len(points_nd))
    return np.column_stack([ones_n, points_nd]).astype(np.float64)
