"""Methods that must be fitted to outcomes before they can answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Protocol, TypeVar

import numpy as np

from batuta.conductors.selector import Selector
from batuta.core import Conductor, Question, Run, Task, WorkerId
from batuta.errors import ConfigError
from batuta.lab.baselines import ConductorSolver, Solver, SolverContext
from batuta.lab.baselines.cascade import Cascade, recorded_extractor
from batuta.lab.baselines.cascade_training import fit_cascade
from batuta.lab.baselines.checker import Checker
from batuta.lab.baselines.registry import BASELINES
from batuta.lab.baselines.routing.skill_orchestra import NAME as SKILLS
from batuta.lab.baselines.routing.smoothie import Smoothie
from batuta.lab.evals.result_log import TrialResult
from batuta.lab.learners.cached_features import CachedFeatures
from batuta.lab.learners.history import History, join_samples
from batuta.lab.learners.selector_training import SelectorRecipe, fit_selector
from batuta.lab.tasks.recorded import RecordedOutcomes

CHECKED_CASCADE = "cascade+checker"
"""The name of the cascade with a checker; a record does not have the checker's verdicts."""
ASKS_MODELS = frozenset({CHECKED_CASCADE, SKILLS})
"""Methods that ask models something other than the question, which no record can answer."""

QUESTION_FEATURES = CachedFeatures()
"""Features of questions, computed once for all methods that use the default ones."""


_Fitted_co = TypeVar("_Fitted_co", covariant=True)


class Fitter(Protocol[_Fitted_co]):
    """Fits a method to outcomes."""

    def __call__(self, history: History, *, seed: int = 0) -> _Fitted_co:
        """Return the fitted method; equal histories and seeds give equal methods.

        Raises:
            ConfigError: the method cannot be fitted to this history.
            SourceError: the history lacks something that the method needs.
        """
        ...


SolverFitter = Fitter[Solver]


@dataclass(frozen=True, slots=True)
class UnfittedSolver:
    """A method that is not fitted yet."""

    name: str
    fit: SolverFitter
    calls: None = None

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Raise a ConfigError, because an unfitted method cannot answer."""
        raise ConfigError(f"{self.name} must learn from outcomes before it can answer")


def conductor_fitter(fit: Fitter[Conductor]) -> SolverFitter:
    """Return a fitter of a solver that runs the fitted conductor's workflows."""
    return lambda history, *, seed=0: ConductorSolver(fit(history, seed=seed))


@lru_cache(maxsize=32)
def _fit_shared_selector(history: History, seed: int) -> Selector:
    """Fit the selector once for all methods that use it."""
    return fit_selector(history, SelectorRecipe(features=QUESTION_FEATURES), seed=seed)


def cascade_fitter(price: float | None = None) -> Fitter[Cascade]:
    """Return a fitter of the cascade; `price` is a call's price in credit, None to fit it too."""
    return lambda history, *, seed=0: fit_cascade(
        history, seed=seed, price=price, selector=_fit_shared_selector(history, seed)
    )


def _fit_checked_cascade(history: History, *, seed: int = 0) -> Cascade:
    return replace(cascade_fitter()(history, seed=seed), checker=Checker())


def _refuse_without_model(history: History, *, seed: int = 0) -> Solver:  # noqa: ARG001 - as all
    raise ConfigError(f"{SKILLS} learns by asking a model of the pool: use `batuta eval`")


LEARNED_METHODS: Mapping[str, SolverFitter] = {
    "mini": lambda history, *, seed=0: ConductorSolver(
        _fit_shared_selector(history, seed), calls=1
    ),
    "cascade": cascade_fitter(),
    CHECKED_CASCADE: _fit_checked_cascade,
    SKILLS: _refuse_without_model,
    **{
        each.name: conductor_fitter(partial(each.fit_router, features=QUESTION_FEATURES))
        for each in BASELINES
        if each.fit_router is not None
    },
    **{
        each.name: partial(each.fit_chooser, features=QUESTION_FEATURES)
        for each in BASELINES
        if each.fit_chooser is not None
    },
}
"""The fitters of this project's own methods and of the baselines that learn, by name."""


def adapt_to_record(solver: Solver, record: RecordedOutcomes) -> Solver:
    """Return the solver; if it compares answers, it compares those that the record extracted."""
    reads_answers = isinstance(solver, Cascade | Smoothie)
    return replace(solver, extract=recorded_extractor(record)) if reads_answers else solver


def measured_history(
    tasks: Sequence[Task],
    workers: Sequence[WorkerId],
    find_result: Callable[[WorkerId, Task], TrialResult | None],
    family: Callable[[Task], str],
) -> History:
    """Build a history of one run of each worker on each question.

    `find_result` returns None if the worker was not asked the question.
    """
    shape = (len(tasks), len(workers))
    credit_qm = np.full(shape, np.nan, np.float32)
    usd_qm = np.full(shape, np.nan)
    answers: list[list[str | None]] = [[None] * len(workers) for _ in tasks]
    for q, task in enumerate(tasks):
        for m, worker in enumerate(workers):
            result = find_result(worker, task)
            if result is None or result.score is None:
                continue
            credit_qm[q, m] = result.score
            usd_qm[q, m] = np.nan if result.answer_usd is None else float(result.answer_usd)
            answers[q][m] = result.answer
    texts = sorted({answer for row in answers for answer in row if answer is not None})
    codes: dict[str | None, int] = {text: code for code, text in enumerate(texts)}
    answers_qm = np.array([[codes.get(a, -1) for a in row] for row in answers], np.int32)
    samples = join_samples(credit_qm[:, :, None], answers_qm.reshape(*shape, 1), tuple(texts))
    return History(
        questions=tuple(task.question for task in tasks),
        workers=tuple(workers),
        scores_qm=credit_qm,
        usd_qm=usd_qm,
        runs_qm=(~np.isnan(credit_qm)).astype(np.int32),
        families=tuple(family(task) for task in tasks),
        answers=tuple(map(tuple, answers)),
        samples=samples,
    )


@lru_cache(maxsize=32)
def history_digest(history: History) -> str:
    """Return a digest of the outcomes, for the keys of runs of methods fitted to them."""
    words = repr((history.questions, history.workers, history.families, history.answers))
    found = blake2b(words.encode("utf-8", "replace"), digest_size=8)
    for array in (history.scores_qm, history.usd_qm, history.runs_qm):
        found.update(np.ascontiguousarray(array).tobytes())
    if history.samples is not None:
        found.update(np.ascontiguousarray(history.samples.credit_qms).tobytes())
    return found.hexdigest()
