"""Workers of whom a history knows little: what they are believed to earn where nobody asked them.

A few dozen outcomes say how good a worker is to some eight points. Learned from as they stand they
are harmful: the luckiest newcomer is taken for the best single worker, and what its other picks
would have earned nobody can tell, so that the guard never leaves it. So a newcomer is regressed on
the directions in which the well-known workers differ, and on the questions' features; where its
outcome is unknown it is believed to earn the lower end of what that regression says.

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
NEWCOMER_SHARE = 0.5
"""Of the outcomes of the worker that is known best; who has less is a newcomer."""
DOUBT = 1.0
"""Standard errors that are taken from what a newcomer is expected to earn."""
PRIOR_OUTCOMES = 8.0
"""Outcomes of a joining worker that weigh as much as what is believed without them."""
_FEATURE_OUTCOMES = 2.0
"""The same of a single feature of the questions; features have length 1."""
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


def find_newcomers(reward_nm: Floats) -> NDArray[np.bool_]:
    """Of which workers little is known, but something (m,)."""
    count_m = (~np.isnan(reward_nm)).sum(axis=0)
    return (count_m > 0) & (count_m < NEWCOMER_SHARE * count_m.max())


def fill_in_newcomers(
    reward_nm: Floats, is_new_m: NDArray[np.bool_], held_nk: Floats, features_nd: Floats
) -> NDArray[np.float32]:
    """The same rewards; of newcomers, where they are unknown, the lower end of what is believed.

    Args:
        reward_nm: NaN: unknown.
        is_new_m: who is a newcomer; each has an outcome.
        held_nk: what the others were expected to earn, each question held out.
        features_nd: the questions' features.
    """
    mean_k = np.nanmean(reward_nm[:, ~is_new_m], axis=0)
    less_nk = held_nk - mean_k
    less_nc = less_nk @ main_directions(less_nk)
    place_nd = np.column_stack([less_nc, features_nd])
    penalty_d = [PRIOR_OUTCOMES] * less_nc.shape[1] + [_FEATURE_OUTCOMES] * features_nd.shape[1]
    filled_nm = reward_nm.astype(np.float32)
    for m in np.flatnonzero(is_new_m):
        unknown_n = np.isnan(reward_nm[:, m])
        believed = JoiningPosterior.fit(
            place_nd[~unknown_n], reward_nm[~unknown_n, m], float(mean_k.mean()), penalty_d
        )
        filled_nm[unknown_n, m] = believed.lower_end_n(place_nd[unknown_n])
    return filled_nm


def _make_design(place_nd: Floats) -> NDArray[np.float64]:
    ones_n = np.ones(len(place_nd))
    return np.column_stack([ones_n, place_nd]).astype(np.float64)
