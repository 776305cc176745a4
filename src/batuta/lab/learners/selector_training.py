"""Fits a selector to a history: features, expected credit, and the guard.

Axes: n questions, m workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.features import Features
from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.conductors.selector.model import Selector
from batuta.conductors.selector.value_model import Smoothing
from batuta.errors import SourceError
from batuta.lab.learners.clustering import k_means_centres, nearest_centre
from batuta.lab.learners.history import History
from batuta.lab.learners.selector_guard import HeldOutTrial, fit_guard
from batuta.lab.learners.value_fit import (
    fill_in_newcomers,
    find_newcomers,
    fit_values,
    held_out_values,
)

Floats = NDArray[np.float32]
Folds = NDArray[np.signedinteger[Any]]

FOLDS = 5
_MIN_QUESTIONS = 20
"""The fewest questions for fitting and holding out."""
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
    """The credit that a dollar is worth, which is subtracted from the reward."""


def fit_selector(
    history: History, recipe: SelectorRecipe | None = None, *, seed: int = 0
) -> Selector:
    """Fit a selector to the history.

    Raises:
        SourceError: the history has too few questions, or lacks costs that the recipe needs.
    """
    recipe = recipe or SelectorRecipe()
    history = history.drop_unscored()
    reward_nm = compute_rewards(history, recipe.dollar)
    features = recipe.features.fit(history.questions)
    features_nd = features(history.questions)
    rng = np.random.Generator(np.random.PCG64(seed))
    family_n = family_numbers(history, features_nd, rng)
    lot_n, family_fold_n = random_folds(len(reward_nm), rng), grouped_folds(family_n, rng)
    reward_nm = _estimate_newcomers(history, features_nd, reward_nm, lot_n)
    smoothing = _choose_smoothing(history, features_nd, reward_nm, lot_n)
    values = fit_values(history.workers, features_nd, reward_nm, smoothing)

    def trial(fold_n: Folds, best_n: Folds | int) -> HeldOutTrial:
        value_nm, close_n = held_out_values(values, fold_n)
        return HeldOutTrial(value_nm=value_nm, close_n=close_n, reward_nm=reward_nm, best_n=best_n)

    by_lot = trial(lot_n, int(values.mean_m.argmax()))
    by_family = trial(family_fold_n, _best_elsewhere_n(reward_nm, family_fold_n))
    return Selector(
        title=recipe.name,
        features=features,
        values=values,
        guard=fit_guard(by_lot, by_family, family_n),
    )


def mean_reward_picked(reward_nm: Floats, picked_n: NDArray[np.intp]) -> float:
    """Return the mean reward of the workers picked.

    An unknown reward counts as the mean of the known ones on that question; if it were skipped,
    hard questions would go to workers about which little is known.
    """
    earned_n = reward_nm[np.arange(len(picked_n)), picked_n]
    unknown_n = np.isnan(earned_n)
    if unknown_n.any():
        earned_n = np.where(unknown_n, np.nanmean(reward_nm, axis=1), earned_n)
    return float(earned_n.mean())


def compute_rewards(history: History, dollar: float) -> Floats:
    """Return the credit less the price of its dollars (n, m); NaN if unknown.

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
    """Return a random fold for each question; all have about the same size."""
    return rng.permutation(count) % FOLDS


def grouped_folds(group_n: Folds, rng: np.random.Generator) -> Folds:
    """Return a fold for each question, each group in one fold; folds are of similar size."""
    sizes = np.bincount(group_n)
    fold_of, filled = np.zeros(len(sizes), np.int64), np.zeros(FOLDS)
    drawn = rng.permutation(len(sizes))
    for group in drawn[np.argsort(-sizes[drawn], kind="stable")]:
        fold_of[group] = filled.argmin()
        filled[fold_of[group]] += sizes[group]
    return fold_of[group_n]


def family_numbers(history: History, features_nd: Floats, rng: np.random.Generator) -> Folds:
    """Return the family of each question as a number; its cluster if families are unknown."""
    names, family_n = np.unique(np.asarray(history.families), return_inverse=True)
    if len(names) >= FOLDS:
        return family_n
    return nearest_centre(features_nd, k_means_centres(features_nd, 4 * FOLDS, rng))


def _best_elsewhere_n(reward_nm: Floats, fold_n: Folds) -> Folds:
    """Return the best single worker of the other folds, for each question."""
    best_n = np.zeros(len(fold_n), np.int64)
    for fold in np.unique(fold_n):
        others_nm = reward_nm[fold_n != fold]
        count_m = np.maximum((~np.isnan(others_nm)).sum(axis=0), 1)
        best_n[fold_n == fold] = (np.nansum(others_nm, axis=0) / count_m).argmax()
    return best_n


def _estimate_newcomers(
    history: History, features_nd: Floats, reward_nm: Floats, fold_n: Folds
) -> Floats:
    """Return the rewards, with the unknown ones of newcomers filled in."""
    is_new_m = find_newcomers(reward_nm)
    if not is_new_m.any():
        return reward_nm
    known = [worker for worker, is_new in zip(history.workers, is_new_m, strict=True) if not is_new]
    values = fit_values(known, features_nd, reward_nm[:, ~is_new_m], Smoothing())
    return fill_in_newcomers(reward_nm, is_new_m, held_out_values(values, fold_n)[0], features_nd)


def _choose_smoothing(
    history: History, features_nd: Floats, reward_nm: Floats, fold_n: Folds
) -> Smoothing:
    """Return the smoothing whose picks earn most on random held-out questions."""

    def earned(smoothing: Smoothing) -> float:
        values = fit_values(history.workers, features_nd, reward_nm, smoothing)
        return mean_reward_picked(reward_nm, held_out_values(values, fold_n)[0].argmax(axis=1))

    return max(_SMOOTHING_GRID, key=earned)
