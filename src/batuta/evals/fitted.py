"""Methods that learn from outcomes before they can answer: each one line of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Protocol

import numpy as np

from batuta.baselines import Conducted, Players, Solver
from batuta.baselines.cascade import PRICE, Cascade, answers_of, fit_cascade
from batuta.baselines.checking import Checker
from batuta.baselines.routing import CHOOSERS, ROUTERS
from batuta.baselines.routing.smoothie import Smoothie
from batuta.core import Conductor, Question, Run, Task, WorkerId
from batuta.errors import ConfigError
from batuta.evals.ledger import Result
from batuta.solvers.history import History, Samples
from batuta.solvers.once import Once
from batuta.solvers.selector import Recipe, Selector, fit_selector
from batuta.tasks.recorded import Recorded

CHECKED = "cascade+checker"
"""Its checker reads what another worker said, which no record can know."""

FEATURES = Once()
"""Of the questions, for all methods: what each of them takes when it is given none, read once."""


class Fit(Protocol):
    """Learns from outcomes how to answer."""

    def __call__(self, history: History, *, seed: int = 0) -> Solver:
        """What was learned; the same for the same history and seed."""
        ...


class FitConductor(Protocol):
    """Learns from outcomes whom to ask."""

    def __call__(self, history: History, *, seed: int = 0) -> Conductor:
        """What was learned; the same for the same history and seed."""
        ...


class FitCascade(Protocol):
    """Learns from outcomes whom to ask first, and when an answer is good enough."""

    def __call__(self, history: History, *, seed: int = 0) -> Cascade:
        """What was learned; the same for the same history and seed."""
        ...


@dataclass(frozen=True, slots=True)
class Untaught:
    """A method before it has learned."""

    name: str
    fit: Fit
    calls: None = None

    async def answer(self, question: Question, players: Players, seed: int) -> Run:
        """Refused.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{self.name} must learn from outcomes before it can answer")


def conducting(fit: FitConductor) -> Fit:
    """The same for a conductor, whose workflows are played by the engine."""
    return lambda history, *, seed=0: Conducted(fit(history, seed=seed))


@lru_cache(maxsize=32)
def _selector(history: History, seed: int) -> Selector:
    """Fitted once for all methods that need it."""
    return fit_selector(history, Recipe(features=FEATURES), seed=seed)


def cascade_at(price: float) -> FitCascade:
    """The cascade to which a call is worth that much credit."""
    return lambda history, *, seed=0: fit_cascade(
        history, seed=seed, price=price, selector=_selector(history, seed)
    )


def _checked(history: History, *, seed: int = 0) -> Cascade:
    return replace(cascade_at(PRICE)(history, seed=seed), checker=Checker())


FITTED: Mapping[str, Fit] = {
    "mini": lambda history, *, seed=0: Conducted(_selector(history, seed), calls=1),
    "cascade": cascade_at(PRICE),
    CHECKED: _checked,
    **{name: conducting(partial(fit, features=FEATURES)) for name, fit in ROUTERS.items()},
    **{name: partial(fit, features=FEATURES) for name, fit in CHOOSERS.items()},
}
"""By name; a new method is one line."""


def on_record(solver: Solver, record: Recorded) -> Solver:
    """The same; what looks at answers takes those that the record extracted."""
    looks = isinstance(solver, Cascade | Smoothie)
    return replace(solver, extract=answers_of(record)) if looks else solver


def measured_history(
    tasks: Sequence[Task],
    workers: Sequence[WorkerId],
    ran: Callable[[WorkerId, Task], Result | None],
    family: Callable[[Task], str],
) -> History:
    """What was measured of each worker alone, one run a question.

    Args:
        tasks: the questions.
        workers: who was asked.
        ran: the result of a worker's run; None: it was not asked.
        family: of a task.
    """
    shape = (len(tasks), len(workers))
    credit_qm = np.full(shape, np.nan, np.float32)
    usd_qm = np.full(shape, np.nan)
    said: list[list[str | None]] = [[None] * len(workers) for _ in tasks]
    for q, task in enumerate(tasks):
        for m, worker in enumerate(workers):
            result = ran(worker, task)
            if result is None or result.score is None:
                continue
            credit_qm[q, m] = result.score
            usd_qm[q, m] = np.nan if result.usd is None else float(result.usd)
            said[q][m] = result.answer
    texts = sorted({answer for row in said for answer in row if answer is not None})
    codes: dict[str | None, int] = {text: code for code, text in enumerate(texts)}
    answers_qm = np.array([[codes.get(a, -1) for a in row] for row in said], np.int32)
    samples = Samples(credit_qm[:, :, None], answers_qm.reshape(*shape, 1), tuple(texts))
    return History(
        tuple(task.question for task in tasks),
        tuple(workers),
        credit_qm,
        usd_qm,
        (~np.isnan(credit_qm)).astype(np.int32),
        tuple(family(task) for task in tasks),
        tuple(map(tuple, said)),
        samples,
    )


@lru_cache(maxsize=32)
def digest(history: History) -> str:
    """A short name of all that the outcomes say."""
    words = repr((history.questions, history.workers, history.families, history.answers))
    found = blake2b(words.encode("utf-8", "replace"), digest_size=8)
    for array in (history.scores_qm, history.usd_qm, history.runs_qm):
        found.update(np.ascontiguousarray(array).tobytes())
    if history.samples is not None:
        found.update(np.ascontiguousarray(history.samples.credit_qms).tobytes())
    return found.hexdigest()
