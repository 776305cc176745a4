"""Fits a selector to a history: features, each worker's expected credit, and the guard.

Expected credit comes from ridge regression and similar questions. A few dozen outcomes, as a
history has of a newcomer, estimate a worker's credit only to about eight percentage points. Used
directly, they would often make the luckiest newcomer the best single worker. So an unknown outcome
of a newcomer counts as the lower bound of a regression on the directions in which well-known
workers differ and on the features.

The guard lets the best single worker answer unless another worker is clearly better. It is fitted
on training questions that are held out twice: in random folds, where similar questions remain, and
in folds of whole task families, where none does. The gain of leaving the best worker on a new
family is measured against the best single worker of the *other* families, because the best of all
families was chosen with outcomes that are unknown for a new family.

Axes: n training questions, d features, m workers, k of them well known, c directions, f families.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.features import Features
from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.conductors.selector.model import Selector, SelectorGuard, WorkerIndices
from batuta.conductors.selector.newcomers import PRIOR_OUTCOMES, NewcomerPosterior, main_directions
from batuta.conductors.selector.value_model import Smoothing, ValueModel
from batuta.core import WorkerId
from batuta.errors import SourceError
from batuta.lab.learners.clustering import k_means_centres, nearest_centre
from batuta.lab.learners.history import History

Floats = NDArray[np.float32]
Folds = NDArray[np.signedinteger[Any]]
"""The fold, family or worker of each question, as a number: (n,)."""

NEWCOMER_SHARE = 0.5
"""A worker with less than this share of the outcomes of the best-known worker is a newcomer."""
_FEATURE_OUTCOMES = 2.0
"""Prior strength of the weight of each feature, in outcomes; features have length 1."""


def fit_values(
    workers: Sequence[WorkerId], features_nd: Floats, scores_nm: Floats, smoothing: Smoothing
) -> ValueModel:
    """Fit expected credit to outcomes on training questions; NaN marks an unknown outcome.

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
    """Return the weights, (d, m), of a ridge regression of each worker on its known outcomes."""
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


def held_out_values(values: ValueModel, fold_n: Folds) -> tuple[Floats, Floats]:
    """Return the values of each training question, predicted by a fit to the other folds.

    Returns:
        Expected credit (n, m) and closeness (n,), as `ValueModel` returns them.

    Raises:
        SourceError: all outcomes of a worker are in one fold.
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
    """Return a mask, (m,), of the workers with few outcomes, but at least one."""
    count_m = (~np.isnan(reward_nm)).sum(axis=0)
    return (count_m > 0) & (count_m < NEWCOMER_SHARE * count_m.max())


def fill_in_newcomers(
    reward_nm: Floats, is_new_m: NDArray[np.bool_], held_nk: Floats, features_nd: Floats
) -> NDArray[np.float32]:
    """Return the rewards, (n, m), with a lower bound for each unknown reward of a newcomer.

    `held_nk` are the expected rewards of the other workers, each question held out.
    """
    mean_k = np.nanmean(reward_nm[:, ~is_new_m], axis=0)
    less_nk = held_nk - mean_k
    less_nc = less_nk @ main_directions(less_nk)
    position_nd = np.column_stack([less_nc, features_nd])
    penalty_d = [PRIOR_OUTCOMES] * less_nc.shape[1] + [_FEATURE_OUTCOMES] * features_nd.shape[1]
    filled_nm = reward_nm.astype(np.float32)
    for m in np.flatnonzero(is_new_m):
        unknown_n = np.isnan(reward_nm[:, m])
        posterior = NewcomerPosterior.fit(
            position_nd[~unknown_n], reward_nm[~unknown_n, m], float(mean_k.mean()), penalty_d
        )
        filled_nm[unknown_n, m] = posterior.lower_end_n(position_nd[unknown_n])
    return filled_nm


ADVANTAGES = (0.0, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2)
"""The bounds on the advantage, in credit, that are tried."""
_QUANTILES = 30
"""Number of bounds on closeness that are tried."""
_GAIN_Z = 2.5
"""Number of standard errors by which a gain in random folds must exceed 0: some two hundred bounds
are tried, and the greatest gain exceeds one standard error by chance."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HeldOutTrial:
    """The predictions for held-out training questions, and their rewards."""

    value_nm: Floats
    close_n: Floats
    reward_nm: Floats
    """The reward of each worker; NaN if unknown."""
    best_n: WorkerIndices | int
    """The best single worker on all questions, or for each question on those of other folds."""

    def gain_n(self, guard: SelectorGuard) -> NDArray[np.float64]:
        """Return the gain of each question over the best single worker, (n,); 0 if unknown."""
        rows = np.arange(len(self.close_n))
        picked = guard(self.value_nm, self.close_n, self.best_n)
        gain_n = self.reward_nm[rows, picked] - self.reward_nm[rows, self.best_n]
        return np.nan_to_num(gain_n).astype(np.float64)


def fit_guard(
    random_trial: HeldOutTrial, family_trial: HeldOutTrial, family_n: Folds
) -> SelectorGuard:
    """Return the bounds under which leaving the best single worker most reliably gains.

    The chosen bounds have the greatest gain in random folds less 2.5 standard errors, which must be
    above 0; their gain on new families is zero or above its standard error. Among equal gains the
    strictest bound on closeness is chosen, as the trials have no questions between those like the
    known questions and those of new families. If no bounds qualify, the best single worker always
    answers.

    `random_trial` is the trial in random folds, `family_trial` the one in folds of whole families.
    """
    quantiles = np.linspace(0, 1, _QUANTILES, endpoint=False)
    bounds = np.unique(
        np.quantile(np.append(random_trial.close_n, family_trial.close_n), quantiles)
    )
    chosen, most = SelectorGuard(), 0.0
    for closeness in bounds[::-1]:  # the strictest first, which wins ties
        for advantage in ADVANTAGES:
            guard = SelectorGuard(advantage, float(closeness))
            gain_n = random_trial.gain_n(guard)
            lower_bound = float(gain_n.sum() - _GAIN_Z * np.sqrt(len(gain_n)) * gain_n.std())
            if lower_bound > most and wins_on_families(family_trial.gain_n(guard), family_n):
                chosen, most = guard, lower_bound
    return chosen


def wins_on_families(gain_n: NDArray[np.float64], family_n: Folds) -> bool:
    """Return whether the gains on held-out families are zero, or above their standard error.

    If only one family has a gain, it equals the standard error, and does not suffice.
    """
    gain_f = np.bincount(family_n, gain_n)
    return not gain_f.any() or bool(gain_f.sum() > 1.001 * np.sqrt(np.sum(gain_f**2)))


FOLDS = 5
_MIN_QUESTIONS = 20
"""Minimum number of questions for fitting and holding out."""
_SMOOTHING_GRID = (
    *(Smoothing(neighbours=share) for share in (0.0, 0.5, 1.0)),
    Smoothing(neighbours=1.0, sharpness=0.0),  # all neighbours weigh the same, as in kNN routers
    Smoothing(neighbours=1.0, sharpness=30.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorRecipe:
    """The settings of a selector's training."""

    name: str = "mini"
    features: Features = HashedNgrams()
    dollar: float = 0.0
    """The credit that a dollar is worth; a reward is credit less the worth of the call's cost."""


def fit_selector(
    history: History, recipe: SelectorRecipe | None = None, *, seed: int = 0
) -> Selector:
    """Fit a selector to the history.

    Raises:
        SourceError: the history has too few questions or too few outcomes of a worker, or lacks
            costs that the recipe needs.
    """
    recipe = recipe or SelectorRecipe()
    history = history.drop_unscored()
    reward_nm = compute_rewards(history, recipe.dollar)
    features = recipe.features.fit(history.questions)
    features_nd = features(history.questions)
    rng = np.random.Generator(np.random.PCG64(seed))
    family_n = family_numbers(history, features_nd, rng)
    random_fold_n, family_fold_n = random_folds(len(reward_nm), rng), grouped_folds(family_n, rng)
    reward_nm = _estimate_newcomers(history, features_nd, reward_nm, random_fold_n)
    smoothing = _choose_smoothing(history, features_nd, reward_nm, random_fold_n)
    values = fit_values(history.workers, features_nd, reward_nm, smoothing)

    def trial(fold_n: Folds, best_n: Folds | int) -> HeldOutTrial:
        value_nm, close_n = held_out_values(values, fold_n)
        return HeldOutTrial(value_nm=value_nm, close_n=close_n, reward_nm=reward_nm, best_n=best_n)

    random_trial = trial(random_fold_n, int(values.mean_m.argmax()))
    family_trial = trial(family_fold_n, _best_elsewhere_n(reward_nm, family_fold_n))
    return Selector(
        title=recipe.name,
        features=features,
        values=values,
        guard=fit_guard(random_trial, family_trial, family_n),
    )


def mean_reward_picked(reward_nm: Floats, picked_n: NDArray[np.intp]) -> float:
    """Return the mean reward of the workers picked.

    An unknown reward counts as the mean of the known rewards on that question; if it were skipped,
    hard questions would go to workers about which little is known.
    """
    earned_n = reward_nm[np.arange(len(picked_n)), picked_n]
    unknown_n = np.isnan(earned_n)
    if unknown_n.any():
        earned_n = np.where(unknown_n, np.nanmean(reward_nm, axis=1), earned_n)
    return float(earned_n.mean())


def compute_rewards(history: History, dollar: float) -> Floats:
    """Return the credit less what the dollars are worth, (n, m); NaN if unknown.

    Raises:
        SourceError: there are too few questions, or a needed cost is unknown.
    """
    known = ~np.isnan(history.scores_qm)
    if len(history.questions) < _MIN_QUESTIONS:
        raise SourceError(
            f"a selector needs outcomes on at least {_MIN_QUESTIONS} questions, not on "
            f"{len(history.questions)}"
        )
    if not dollar:
        return history.scores_qm
    unknown = np.argwhere(known & np.isnan(history.usd_qm))
    if len(unknown):
        raise SourceError(
            f"the cost of some of {history.workers[int(unknown[0, 1])]}'s calls is unknown: write "
            "their usd into the history, or train without a price for dollars"
        )
    return (history.scores_qm - dollar * history.usd_qm).astype(np.float32)


def random_folds(count: int, rng: np.random.Generator) -> Folds:
    """Return a random fold for each question, (n,); folds have about the same size."""
    return rng.permutation(count) % FOLDS


def grouped_folds(group_n: Folds, rng: np.random.Generator) -> Folds:
    """Return a fold for each question, (n,): each group is in one fold, and sizes are similar."""
    sizes = np.bincount(group_n)
    fold_of, filled = np.zeros(len(sizes), np.int64), np.zeros(FOLDS)
    drawn = rng.permutation(len(sizes))
    for group in drawn[np.argsort(-sizes[drawn], kind="stable")]:
        fold_of[group] = filled.argmin()
        filled[fold_of[group]] += sizes[group]
    return fold_of[group_n]


def family_numbers(history: History, features_nd: Floats, rng: np.random.Generator) -> Folds:
    """Return the family of each question as a number, (n,).

    If fewer than `FOLDS` families are known, clusters of the features are used instead.
    """
    names, family_n = np.unique(np.asarray(history.families), return_inverse=True)
    if len(names) >= FOLDS:
        return family_n
    return nearest_centre(features_nd, k_means_centres(features_nd, 4 * FOLDS, rng))


def _best_elsewhere_n(reward_nm: Floats, fold_n: Folds) -> Folds:
    """Return for each question the best single worker on the questions of other folds, (n,)."""
    best_n = np.zeros(len(fold_n), np.int64)
    for fold in np.unique(fold_n):
        others_nm = reward_nm[fold_n != fold]
        count_m = np.maximum((~np.isnan(others_nm)).sum(axis=0), 1)
        best_n[fold_n == fold] = (np.nansum(others_nm, axis=0) / count_m).argmax()
    return best_n


def _estimate_newcomers(
    history: History, features_nd: Floats, reward_nm: Floats, fold_n: Folds
) -> Floats:
    """Return the rewards, (n, m), with estimates of unknown rewards of newcomers."""
    is_new_m = find_newcomers(reward_nm)
    if not is_new_m.any():
        return reward_nm
    known = [worker for worker, is_new in zip(history.workers, is_new_m, strict=True) if not is_new]
    values = fit_values(known, features_nd, reward_nm[:, ~is_new_m], Smoothing())
    return fill_in_newcomers(reward_nm, is_new_m, held_out_values(values, fold_n)[0], features_nd)


def _choose_smoothing(
    history: History, features_nd: Floats, reward_nm: Floats, fold_n: Folds
) -> Smoothing:
    """Return the smoothing with the highest mean reward on held-out questions."""

    def earned(smoothing: Smoothing) -> float:
        values = fit_values(history.workers, features_nd, reward_nm, smoothing)
        return mean_reward_picked(reward_nm, held_out_values(values, fold_n)[0].argmax(axis=1))

    return max(_SMOOTHING_GRID, key=earned)
