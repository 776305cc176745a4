"""`batuta train selector`: fits a selector to outcomes and measures it on held-out questions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from batuta.conductors.selector import save_selector
from batuta.errors import ConfigError, SourceError
from batuta.lab.baselines import fit_cascade, save_cascade
from batuta.lab.learners.history import History, history_from_record, read_history
from batuta.lab.learners.selector_training import FOLDS, SelectorRecipe, fit_selector, random_folds
from batuta.lab.tasks import RECORDED_PREFIX
from batuta.lab.tasks.recorded import load_recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorTraining:
    """The result of a training.

    Credits are in [0, 1]. Those of workers are means over the compared questions, and None if there
    are none.
    """

    folder: Path
    name: str
    workers: int
    training_questions: int
    held_out_questions: int
    """Number of random questions to which the selector was not fitted."""
    compared_questions: int
    """Number of held-out questions with known scores of the picked and the best single worker."""
    credit: float | None
    """Mean credit of the workers that the selector picked."""
    best_single: float | None
    """Mean credit of the worker that is best on the training questions."""
    oracle: float | None
    """Mean credit of the best worker of each question."""
    cascade: tuple[float, float] | None
    """Mean credit of the cascade and its mean calls per question, over the held-out questions that
    have a recorded answer; None if there are none."""


def read_outcomes(history: Path | None, tasks: str | None, data: Path | None = None) -> History:
    """Read the history that the command line names.

    Raises:
        ConfigError: not exactly one of `history` and `tasks` is given, or `tasks` is not recorded.
        SourceError: the file or the set cannot be read.
    """
    if (history is None) == (tasks is None):
        raise ConfigError(
            "a selector learns from outcomes: give --history FILE or --tasks recorded:NAME"
        )
    if history is not None:
        return read_history(history)
    if tasks is None or not tasks.startswith(RECORDED_PREFIX):
        raise ConfigError(f"{tasks} has no recorded outcomes; name a set as recorded:NAME")
    return history_from_record(
        load_recorded(tasks.removeprefix(RECORDED_PREFIX), folder=data, with_texts=False)
    )


def train_selector(
    history: History,
    out: Path,
    recipe: SelectorRecipe | None = None,
    *,
    seed: int = 0,
) -> SelectorTraining:
    """Fit a selector on four fifths of the questions, measure it on the rest, and save it.

    If the history has the answers of each run, a cascade is fitted and measured too. Both are saved
    in the folder `out`. Without `recipe` the defaults of `SelectorRecipe` are used.

    Raises:
        SourceError: the history has too few questions or too few outcomes of a worker, or lacks the
            costs that the recipe needs.
        StoreError: the folder cannot be written.
    """
    known = history.drop_unscored()
    if len(known.questions) < 2 * FOLDS:
        raise SourceError(
            f"only {len(known.questions)} questions have a score; a selector needs far more, "
            f"at least {2 * FOLDS}"
        )
    fold_n = random_folds(len(known.questions), np.random.Generator(np.random.PCG64(seed)))
    training, held = (known.select(np.flatnonzero(part)) for part in (fold_n > 0, fold_n == 0))
    selector = fit_selector(training, recipe, seed=seed)
    save_selector(selector, out)
    earned: tuple[float, float] | None = None
    if training.samples is not None:
        cascade = fit_cascade(training, recipe, seed=seed, selector=selector)
        save_cascade(cascade, out)
        credit_n, calls_n = cascade.replay_history(held)
        if (known_n := calls_n > 0).any():  # without an answer there is no call to replay
            earned = float(credit_n[known_n].mean()), float(calls_n[known_n].mean())
    picked = np.asarray(selector.choose_indices(held.questions))
    best = training.workers.index(training.best_worker())
    credit_n, single_n = held.scores_qm[np.arange(len(picked)), picked], held.scores_qm[:, best]
    compared = ~np.isnan(credit_n + single_n)
    each_n = (credit_n, single_n, np.nanmax(held.scores_qm, axis=1))
    means = [float(each[compared].mean()) if compared.any() else None for each in each_n]
    return SelectorTraining(
        folder=out,
        name=selector.name,
        workers=len(history.workers),
        training_questions=len(training.questions),
        held_out_questions=len(held.questions),
        compared_questions=int(compared.sum()),
        credit=means[0],
        best_single=means[1],
        oracle=means[2],
        cascade=earned,
    )
