"""Fits each worker's expected credit on a question by ridge regression and similar questions.

Newcomers, about which a history has few outcomes, are treated separately. A few dozen outcomes
estimate a worker's credit only to about eight points. Used directly they are harmful: the luckiest
newcomer becomes the best single worker, and the rewards of its other picks are unknown. So an
unknown outcome of a newcomer counts as the lower bound of a regression on the directions in which
well-known workers differ and on the features.

Axes: n training questions, d features, m workers, k of them well known, c directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.selector.newcomers import PRIOR_OUTCOMES, JoiningPosterior, main_directions
from batuta.conductors.selector.value_model import Smoothing, ValueModel
from batuta.core import WorkerId
from batuta.errors import SourceError

Floats = NDArray[np.float32]
NEWCOMER_SHARE = 0.5
"""The share of the best known worker's outcomes below which a worker is a newcomer."""
_FEATURE_OUTCOMES = 2.0
"""The weight of the prior of a single feature's weight, in outcomes; features have length 1."""


def fit_values(
    workers: Sequence[WorkerId], features_nd: Floats, scores_nm: Floats, smoothing: Smoothing
) -> ValueModel:
    """Fit the estimates to outcomes on training questions; NaN marks unknown ones.

    Raises:
        SourceError: a worker has no outcome.
    """
    known_nm = ~np.isnan(scores_nm)
    unknown = np.flatnonzero(~known_nm.any(axis=0))
    if len(unknown):
        name = workers[int(unknown[0])]
        raise SourceError(f"the history has no outcome of {name}: ask it, or leave it out")
    mean_m = (np.nansum(scores_nm, axis=0) / known_nm.sum(axis=0)).astype(np.float32)
    credit_nm = np.where(known_nm, scores_nm - mean_m, 0).astype(np.float32)
    return ValueModel(
        workers=tuple(workers),
        smoothing=smoothing,
        mean_m=mean_m,
        memory_nd=features_nd,
        credit_nm=credit_nm,
        known_nm=known_nm.astype(np.float32),
        linear_dm=_fit_ridge(features_nd, credit_nm, known_nm, smoothing.ridge),
        mean_j=np.empty(0, np.float32),
        mixture_mj=np.empty((len(workers), 0), np.float32),
    )


def _fit_ridge(
    features_nd: Floats, credit_nm: Floats, known_nm: NDArray[np.bool_], penalty: float
) -> Floats:
    """Fit one ridge regression per worker to the questions with a known outcome: (d, m)."""
    alike: dict[bytes, list[int]] = {}
    for m in range(known_nm.shape[1]):
        alike.setdefault(known_nm[:, m].tobytes(), []).append(m)
    linear_dm = np.zeros((features_nd.shape[1], credit_nm.shape[1]), np.float32)
    for columns in alike.values():
        rows = known_nm[:, columns[0]]
        x_nd = features_nd[rows]
        gram_dd = x_nd.T @ x_nd + penalty * np.eye(x_nd.shape[1], dtype=np.float32)
        linear_dm[:, columns] = np.linalg.solve(gram_dd, x_nd.T @ credit_nm[rows][:, columns])
    return linear_dm


def held_out_values(
    values: ValueModel, fold_n: NDArray[np.signedinteger[Any]]
) -> tuple[Floats, Floats]:
    """Return the values expected of each training question without those of its own fold.

    Returns:
        Expected credit (n, m) and closeness (n,), as `ValueModel` returns them.
    """
    width = values.credit_nm.shape[1]
    value_nm = np.empty((len(fold_n), width), np.float32)
    close_n = np.empty(len(fold_n), np.float32)
    scores_nm = np.where(values.known_nm > 0, values.credit_nm + values.mean_m, np.float32(np.nan))
    for fold in np.unique(fold_n):
        inside = fold_n == fold
        others = fit_values(
            values.workers[:width],
            values.memory_nd[~inside],
            scores_nm[~inside],
            values.smoothing,
        )
        value_nm[inside], close_n[inside] = others(values.memory_nd[inside])
    return value_nm, close_n


def find_newcomers(reward_nm: Floats) -> NDArray[np.bool_]:
    """Return a mask of the workers with some outcomes, but few: (m,)."""
    count_m = (~np.isnan(reward_nm)).sum(axis=0)
    return (count_m > 0) & (count_m < NEWCOMER_SHARE * count_m.max())


def fill_in_newcomers(
    reward_nm: Floats, is_new_m: NDArray[np.bool_], held_nk: Floats, features_nd: Floats
) -> NDArray[np.float32]:
    """Return the rewards with unknown ones of newcomers replaced by a lower bound.

    Args:
        reward_nm: the rewards; NaN if unknown.
        is_new_m: the mask of newcomers, each of which has an outcome.
        held_nk: the other workers' expected rewards, with each question held out.
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
        posterior = JoiningPosterior.fit(
            place_nd[~unknown_n], reward_nm[~unknown_n, m], float(mean_k.mean()), penalty_d
        )
        filled_nm[unknown_n, m] = posterior.lower_end_n(place_nd[unknown_n])
    return filled_nm
