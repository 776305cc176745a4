"""A selector learns from a history: features, expected credits, two stages, the guard."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.errors import SourceError
from batuta.solvers.features import Features
from batuta.solvers.hashed_ngrams import HashedNgrams
from batuta.solvers.history import History
from batuta.solvers.selector.guard import (
    HeldOutTrial,
    SelectorGuard,
    fit_guard,
    held_out_gain_n,
)
from batuta.solvers.selector.head import (
    TEMPERATURE,
    CorrectionHead,
    HeadBatch,
    ProgressCallback,
    evolve_head,
    fit_soft_targets,
    import_search_library,
    mean_reward_picked,
)
from batuta.solvers.selector.model import Selector, head_inputs
from batuta.solvers.selector.newcomers import fill_in_newcomers, find_newcomers
from batuta.solvers.selector.rivals import RIVALS, ClusterRanking, NeighbourLead
from batuta.solvers.selector.value_model import Smoothing, ValueModel, fit_values, held_out_values

Floats = NDArray[np.float32]
Folds = NDArray[np.signedinteger[Any]]

FOLDS = 5
_VALIDATION_FOLD = 0
"""The fold whose questions judge the two stages."""
_MIN_QUESTIONS = 20
"""Questions below which nothing can be learned and held out too."""
_SMOOTHING_GRID = (
    *(Smoothing(neighbours=share) for share in (0.0, 0.5, 1.0)),
    Smoothing(neighbours=1.0, sharpness=0.0),  # all neighbours alike, as kNN routers take them
    Smoothing(neighbours=1.0, sharpness=30.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorRecipe:
    """How a selector is trained."""

    name: str = "mini"
    features: Features = HashedNgrams()
    dollar: float = 0.0
    """Credit that a dollar is worth; the reward is the credit less that."""
    evolve: bool = True
    """Stage 2; it needs the package cmaes."""
    rivals: bool = True
    """Whether kNN and clusters are tried beside the selector's own estimate."""


def fit_selector(
    history: History,
    recipe: SelectorRecipe | None = None,
    *,
    seed: int = 0,
    on_progress: ProgressCallback | None = None,
) -> Selector:
    """The selector that this history teaches.

    Args:
        history: outcomes on training questions.
        recipe: how; by default the published one.
        seed: of the folds and of the search.
        on_progress: hears of every step.

    Raises:
        SourceError: the history has too few questions, or not the costs that the recipe needs.
        ConfigError: stage 2 is wanted and cmaes is missing.
    """
    recipe = recipe or SelectorRecipe()
    if recipe.evolve:
        import_search_library()
    history = history.drop_unscored()
    reward_nm = compute_rewards(history, recipe.dollar)
    features = recipe.features.fit(history.questions)
    features_nd = features(history.questions)
    rng = np.random.Generator(np.random.PCG64(seed))
    family_n = family_numbers(history, features_nd, rng)
    by_lot, by_family = random_folds(len(reward_nm), rng), grouped_folds(family_n, rng)
    reward_nm = _hear_newcomers(history, features_nd, reward_nm, by_lot)
    smoothing = _choose_smoothing(history, features_nd, reward_nm, by_lot)
    values = fit_values(history.workers, features_nd, reward_nm, smoothing)
    tried, close_n = held_out_values(values, by_lot)
    batch = HeadBatch(head_inputs(features_nd, tried, values.mean_m), tried, reward_nm)
    head = _fit_head(
        batch, by_lot != _VALIDATION_FOLD, recipe=recipe, seed=seed, on_progress=on_progress
    )
    folds = HeldOutFolds(family_n, lot=by_lot, family=by_family)
    strange = held_out_values(values, by_family)
    own = ReadingTrial(
        None,
        _held_out_trial(
            values,
            features_nd,
            reward_nm=reward_nm,
            tried=(tried, close_n),
            fold_n=by_lot,
            head=head,
        ),
        replace(
            _held_out_trial(
                values, features_nd, reward_nm=reward_nm, tried=strange, fold_n=by_family, head=head
            ),
            best_n=_best_elsewhere_n(reward_nm, by_family),
        ),
    )
    best = int(values.mean_m.argmax())
    chosen = own
    for kind in RIVALS if recipe.rivals else ():
        rival = _try_rival(kind, own, features_nd, folds=folds, seed=seed)
        if folds.is_ahead(rival, chosen, best):
            chosen = rival
    return Selector(
        title=recipe.name,
        features=features,
        values=values,
        head=head,
        guard=folds.fit_guard(own, best),
        rival=chosen.kind and chosen.kind.fit(features_nd, reward_nm, seed),
        rival_guard=folds.fit_guard(chosen, best) if chosen.kind else SelectorGuard(),
    )


@dataclass(frozen=True, slots=True, eq=False)
class ReadingTrial:
    """How one way of reading questions did on those that were held out."""

    kind: type[ClusterRanking | NeighbourLead] | None
    """None: the selector's own."""
    by_lot: HeldOutTrial
    by_family: HeldOutTrial


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutFolds:
    """Which questions are held out together."""

    family_n: Folds
    lot: Folds
    family: Folds

    def fit_guard(self, trial: ReadingTrial, best: int) -> SelectorGuard:
        """The bounds within which this reading may leave the best single worker."""
        return fit_guard(trial.by_lot, trial.by_family, self.family_n, best, fold_n=self.family)

    def is_ahead(self, trial: ReadingTrial, other: ReadingTrial, best: int) -> bool:
        """Whether it earns surely more than another, each within bounds set on other folds."""
        one_n, other_n = (
            held_out_gain_n(
                held.by_lot,
                held.by_family,
                self.family_n,
                best,
                lot_fold_n=self.lot,
                fold_n=self.family,
            )
            for held in (trial, other)
        )
        more_n = one_n - other_n
        return bool(more_n.sum() > np.sqrt(np.sum((more_n - more_n.mean()) ** 2)))


def _best_elsewhere_n(reward_nm: Floats, fold_n: Folds) -> Folds:
    """The best single worker of the other folds, for each question."""
    best_n = np.zeros(len(fold_n), np.int64)
    for fold in np.unique(fold_n):
        inside = fold_n == fold
        others_nm = reward_nm[~inside]
        count_m = np.maximum((~np.isnan(others_nm)).sum(axis=0), 1)
        best_n[inside] = (np.nansum(others_nm, axis=0) / count_m).argmax()
    return best_n


def _try_rival(
    kind: type[ClusterRanking | NeighbourLead],
    own: ReadingTrial,
    features_nd: Floats,
    folds: HeldOutFolds,
    seed: int,
) -> ReadingTrial:
    """A rival on the same questions, held out in the same folds."""
    trials: list[HeldOutTrial] = []
    for trial, fold_n in ((own.by_lot, folds.lot), (own.by_family, folds.family)):
        value_nm = np.empty_like(trial.value_nm)
        for fold in np.unique(fold_n):
            inside = fold_n == fold
            rival = kind.fit(features_nd[~inside], trial.reward_nm[~inside], seed)
            value_nm[inside] = rival(features_nd[inside])
        trials.append(replace(trial, value_nm=value_nm))
    return ReadingTrial(kind, *trials)


def compute_rewards(history: History, dollar: float) -> Floats:
    """Credit less what its cost is worth (n, m); NaN: unknown.

    Raises:
        SourceError: too few questions, or a cost is needed and unknown.
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
    """A fold for each question, at random; all of about one size."""
    return rng.permutation(count) % FOLDS


def grouped_folds(group_n: Folds, rng: np.random.Generator) -> Folds:
    """A fold for each question; a group is never torn, and the folds are of about one size."""
    sizes = np.bincount(group_n)
    fold_of, filled = np.zeros(len(sizes), np.int64), np.zeros(FOLDS)
    drawn = rng.permutation(len(sizes))
    for group in drawn[np.argsort(-sizes[drawn], kind="stable")]:
        fold_of[group] = filled.argmin()
        filled[fold_of[group]] += sizes[group]
    return fold_of[group_n]


def family_numbers(history: History, features_nd: Floats, rng: np.random.Generator) -> Folds:
    """The number of each question's family; where families are unknown, of its cluster."""
    names, family_n = np.unique(np.asarray(history.families), return_inverse=True)
    if len(names) >= FOLDS:
        return family_n
    centres_kd = features_nd[rng.permutation(len(features_nd))[: 4 * FOLDS]]
    cluster_n = np.zeros(len(features_nd), np.int64)
    for _ in range(10):  # spherical k-means; an empty cluster keeps its centre
        cluster_n = (features_nd @ centres_kd.T).argmax(axis=1)
        for cluster in np.unique(cluster_n):
            centre = features_nd[cluster_n == cluster].sum(axis=0)
            centres_kd[cluster] = centre / max(float(np.linalg.norm(centre)), 1e-9)
    return np.unique(cluster_n, return_inverse=True)[1]


def _hear_newcomers(
    history: History, features_nd: Floats, reward_nm: Floats, fold_n: Folds
) -> Floats:
    """The same rewards, those of newcomers filled in where they are unknown."""
    is_new_m = find_newcomers(reward_nm)
    if not is_new_m.any():
        return reward_nm
    known = [worker for worker, is_new in zip(history.workers, is_new_m, strict=True) if not is_new]
    values = fit_values(known, features_nd, reward_nm[:, ~is_new_m], Smoothing())
    return fill_in_newcomers(reward_nm, is_new_m, held_out_values(values, fold_n)[0], features_nd)


def _choose_smoothing(
    history: History, features_nd: Floats, reward_nm: Floats, fold_n: Folds
) -> Smoothing:
    """The smoothing whose picks earn most on questions held out at random."""

    def earned(smoothing: Smoothing) -> float:
        values = fit_values(history.workers, features_nd, reward_nm, smoothing)
        return mean_reward_picked(reward_nm, held_out_values(values, fold_n)[0].argmax(axis=1))

    return max(_SMOOTHING_GRID, key=earned)


def _fit_head(
    batch: HeadBatch,
    is_training: NDArray[np.bool_],
    recipe: SelectorRecipe,
    seed: int,
    *,
    on_progress: ProgressCallback | None,
) -> CorrectionHead:
    """Both stages; of no stage, the first and both, what the validation questions favour."""
    train, validation = batch.select_rows(is_training), batch.select_rows(~is_training)
    idle = CorrectionHead.zeros(batch.inputs_nf.shape[1], batch.values_nm.shape[1])
    first = fit_soft_targets(train, on_progress)
    head = max((idle, first), key=lambda one: one.mean_reward(validation))
    return (
        evolve_head(head, train, validation=validation, seed=seed, on_progress=on_progress)
        if recipe.evolve
        else head
    )


def _held_out_trial(
    values: ValueModel,
    features_nd: Floats,
    reward_nm: Floats,
    tried: tuple[Floats, Floats],
    *,
    fold_n: Folds,
    head: CorrectionHead,
) -> HeldOutTrial:
    """How the policy would have picked; a head that learned is learned again without each fold."""
    value_nm, close_n = tried
    batch = HeadBatch(head_inputs(features_nd, value_nm, values.mean_m), value_nm, reward_nm)
    logits_nm = batch.values_nm / np.float32(TEMPERATURE)
    if head.weights_fm.any():
        for fold in np.unique(fold_n):
            inside = fold_n == fold
            logits_nm[inside] = fit_soft_targets(batch.select_rows(~inside)).logits(
                batch.select_rows(inside)
            )
    return HeldOutTrial(
        value_nm=logits_nm * np.float32(TEMPERATURE), close_n=close_n, reward_nm=reward_nm
    )
