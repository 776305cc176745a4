"""Fits what each worker is expected to earn on a question: ridge regression, and similar questions.

Newcomers, of whom a history knows little, are a case of their own. A few dozen outcomes say how
good a worker is to some eight points. Learned from as they stand they are harmful: the luckiest
newcomer is taken for the best single worker, and what its other picks would have earned nobody can
tell. So where its outcome is unknown a newcomer is believed to earn the lower end of what a
regression says, on the directions in which the well-known workers differ and on the features.

Axes: n training questions, d features, m workers, k of them well known, c directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.selector.newcomers import (
    PRIOR_OUTCOMES,
    JoiningPosterior,
    main_directions,
)
from batuta.conductors.selector.value_model import Smoothing, ValueModel
from batuta.core import WorkerId
from batuta.errors import SourceError

Floats = NDArray[np.float32]
NEWCOMER_SHARE = 0.5
"""Share of the best known worker's outcomes below which a worker is a newcomer."""
_FEATURE_OUTCOMES = 2.0
"""Outcomes that the prior of a single feature's weight counts as; features have length 1."""


def fit_values(
    workers: Sequence[WorkerId], features_nd: Floats, scores_nm: Floats, smoothing: Smoothing
) -> ValueModel:
    """The estimates from outcomes on training questions; NaN: unknown.

    Raises:
        SourceError: of a worker there is no outcome at all.
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
    """One regression a worker, over the questions where it is known: (d, m)."""
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
        Expected credit (n, m) and closeness (n,), as `ValueModel` gives them.
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
    """Return the mask of workers of which little is known, but something: (m,)."""
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
