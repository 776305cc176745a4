"""The baselines as methods of a server: plugins of the kinds `baseline` and `learned-baseline`.

The served baselines are rows of `registry` and the cascade, under the names of `batuta eval`.
Methods that learn are fitted to a history of outcomes at their first question, but a cascade can
also be opened from the folder in which it was saved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar, final

import anyio
import anyio.to_thread

from batuta.core import (
    CallListener,
    Conductor,
    Decision,
    Draft,
    MalformedPlan,
    PlanningContext,
    Pool,
    Question,
    Run,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.suggestions import suggest_names
from batuta.engine.solver import ConductorSolver, Solver, SolverContext
from batuta.errors import BatutaError, ConfigError
from batuta.lab.baselines.cascade import Cascade, most_calls
from batuta.lab.baselines.cascade_folder import open_cascade
from batuta.lab.baselines.cascade_training import fit_cascade
from batuta.lab.baselines.checker import Checker
from batuta.lab.baselines.registry import BASELINES, Baseline
from batuta.lab.learners.history import History, read_history

CASCADE = "cascade"
_MIN_WORKERS = 3
"""Minimum number of workers: Smoothie needs three, and routing between two workers gains little."""

_Method = TypeVar("_Method")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBaselines:
    """Baselines that are fitted to outcomes of a pool's workers, and a cascade fitted before.

    Raises:
        ConfigError: the history has fewer than three of the pool's workers, the cascade was fitted
            to none of them, or there is a checker that is not in the pool or has no cascade.
    """

    pool: Pool
    history: History | None = None
    """Outcomes of the workers; None if no method that learns is served."""
    cascade: Cascade | None = None
    """A fitted cascade; None to fit a cascade to the history, if that has answers."""
    checker: str | None = None
    """The worker that checks the cascade's answers; None for no check."""

    def __post_init__(self) -> None:
        self._find_checker()
        if self.cascade is not None and not any(
            w in self.pool for w in self.cascade.selector.workers
        ):
            known = ", ".join(self.cascade.selector.workers)
            raise ConfigError(f"the cascade was fitted to no worker of this pool, only to {known}")
        if self.history is not None:
            known = [worker for worker in self.history.workers if worker in self.pool]
            if len(known) < _MIN_WORKERS:
                raise ConfigError(
                    f"the history has {len(known)} workers of this pool and the baselines need "
                    f"{_MIN_WORKERS}; its workers are {', '.join(self.history.workers)}"
                )
        if self.checker is not None and CASCADE not in self.names:
            raise ConfigError(
                f"the checker {self.checker} needs baseline/{CASCADE}, which is fitted to "
                "outcomes with their answers: start the server with --history FILE, or with a "
                "fitted cascade: --cascade FOLDER"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The methods that can be opened."""
        history = self.history
        learned = [] if history is None else [row.name for row in BASELINES if row.build is None]
        has_answers = history is not None and history.samples is not None
        return (*learned, CASCADE) if self.cascade is not None or has_answers else tuple(learned)

    def open(self, name: str) -> Solver:
        """Open one of the `names`; an unfitted method is fitted when it first answers."""
        checker = self._find_checker()
        if name == CASCADE and self.cascade is not None:
            return replace(self.cascade, checker=checker)
        assert self.history is not None  # noqa: S101 - else the name is not among `names`
        known = [worker for worker in self.history.workers if worker in self.pool]
        own_history = self.history.select(workers=known)
        if name == CASCADE:
            return _lazy_cascade(own_history, checker)
        return _learning_solver(next(row for row in BASELINES if row.name == name), own_history)

    def _find_checker(self) -> Checker | None:
        if self.checker is None:
            return None
        if self.checker not in self.pool:
            known = suggest_names(self.checker, (worker.id for worker in self.pool))
            raise ConfigError(f"there is no worker {self.checker!r} to check answers; {known}")
        return Checker(self.pool[self.checker].id)


def open_learned(
    pool: Pool, history: Path | None, cascade: Path | None, checker: str | None
) -> ServedBaselines:
    """Open the methods that learn from outcomes, for the workers of this pool.

    `history` is a file of outcomes, `cascade` the folder of a fitted cascade, and `checker` the id
    of the worker that checks the cascade's answers; each may be None.

    Raises:
        BatutaError: a file cannot be read, or a file or the checker does not fit the pool.
    """
    return ServedBaselines(
        pool=pool,
        history=None if history is None else read_history(history),
        cascade=None if cascade is None else open_cascade(cascade),
        checker=checker,
    )


def open_baseline(name: str) -> Solver:
    """Open a baseline that needs no fitting, by its `default_name`."""
    row = next(row for row in BASELINES if row.default_name == name)
    assert row.build is not None  # noqa: S101 - the entry points name those that are built
    return row.build(row.number)


def _learning_solver(baseline: Baseline, history: History) -> Solver:
    if baseline.fit_router is not None:
        fit = partial(baseline.fit_router, history)
        return ConductorSolver(LazyConductor(baseline.name, fit))
    assert baseline.fit_chooser is not None  # noqa: S101 - one of the three is there
    choose = partial(baseline.fit_chooser, history)
    return LazySolver(baseline.name, choose, len(history.workers))


def _lazy_cascade(history: History, checker: Checker | None) -> Solver:
    """Return the cascade, which is fitted when it first answers."""
    fit = partial(fit_cascade, history, checker=checker)
    return LazySolver(CASCADE, fit, most_calls(len(history.workers)))


@final
class LazyMethod(Generic[_Method]):
    """A method that is fitted once, in a thread, at the first use."""

    def __init__(self, fit: Callable[[], _Method]) -> None:
        self._fit = fit
        self._lock = anyio.Lock()
        self._fitted: _Method | None = None

    async def get(self) -> _Method:
        """Return the fitted method.

        Raises:
            BatutaError: fitting failed; the next call tries again.
        """
        async with self._lock:
            if self._fitted is None:
                await anyio.to_thread.run_sync(self._run_fit)
        assert self._fitted is not None  # noqa: S101 - else an error was raised
        return self._fitted

    def _run_fit(self) -> None:
        """Fit and store the method, even if the caller was cancelled."""
        self._fitted = self._fit()


@final
class LazyConductor:
    """A router that is fitted when it first plans."""

    def __init__(self, name: str, fit: Callable[[], Conductor]) -> None:
        self.name = name
        self._lazy = LazyMethod(fit)

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Return the router's decision, or a malformed plan with the reason why fitting failed."""
        try:
            router = await self._lazy.get()
        except BatutaError as error:
            return MalformedPlan(draft=Draft(), reason=f"{self.name}: {error}")
        return await router.plan(context, listener)


@final
class LazySolver:
    """A solver that is fitted when it first answers."""

    def __init__(self, name: str, fit: Callable[[], Solver], calls: int) -> None:
        self.name = name
        self.calls = calls
        self._lazy = LazyMethod(fit)

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Return the solver's run.

        Raises:
            BatutaError: the solver cannot be fitted, or cannot answer with the context's pool.
        """
        return await (await self._lazy.get()).answer(question, context, seed)
