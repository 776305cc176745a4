"""The published methods as served models, `baseline/NAME`, to compare with on one's own traffic.

They are the rows of `baselines.registry`, under the names of `batuta eval`. Those that learn do so
from a history of outcomes, when they are first asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar, final

import anyio
import anyio.to_thread

from batuta.baselines import ConductorSolver, Solver, fit_cascade
from batuta.baselines.cascade import Cascade, most_calls
from batuta.baselines.checker import Checker
from batuta.baselines.registry import BASELINES, Baseline
from batuta.baselines.solver import SolverContext
from batuta.core import (
    CallListener,
    Conductor,
    Decision,
    Draft,
    Limits,
    MalformedPlan,
    PlanningContext,
    Pool,
    Question,
    Run,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.suggestions import suggest_names
from batuta.errors import BatutaError, ConfigError
from batuta.gateway.serving.models import ServedModel
from batuta.solvers.history import History
from batuta.solvers.selector import SelectorRecipe

BASELINE_PREFIX = "baseline/"
"""What their names begin with."""
NEEDS_HISTORY = "it learns from outcomes: start the server with --history FILE"
CASCADE = "cascade"
NEEDS_ANSWERS = (
    "it learns from outcomes with their answers: start the server with --history FILE, or with "
    "--cascade FOLDER where it has learned"
)

_MIN_WORKERS = 3
"""Workers that Smoothie compares; for fewer there is little to route between either."""

_Method = TypeVar("_Method")


def baseline_models(
    pool: Pool,
    limits: Limits,
    history: History | None = None,
    cascade: Cascade | None = None,
    *,
    checker: str | None = None,
) -> tuple[ServedModel, ...]:
    """Every method that can be run over the pool.

    Args:
        pool: the workers.
        limits: the most a run may spend; its steps are those that the method needs.
        history: outcomes of the workers; None: what learns is not served.
        cascade: one that has learned; None: it learns from the history.
        checker: the worker that checks the cascade's answers; None: nobody does.

    Raises:
        ConfigError: the history knows fewer than three of the pool's workers, the cascade none,
            or the checker is none of them, or there is no cascade for it.
    """
    served = [
        _baseline_model(each.default_name, each.build(each.number), pool, limits)
        for each in BASELINES
        if each.build is not None
    ]
    checks = _find_checker(checker, pool)
    if cascade is not None:
        if not any(worker in pool for worker in cascade.selector.workers):
            known = ", ".join(cascade.selector.workers)
            raise ConfigError(f"the cascade knows no worker of this pool, only {known}")
        served.append(_baseline_model(CASCADE, replace(cascade, checker=checks), pool, limits))
    elif checks is not None and (history is None or history.samples is None):
        raise ConfigError(f"{checker} would check the answers of baseline/cascade: {NEEDS_ANSWERS}")
    if history is None:
        return tuple(served)
    known = [worker for worker in history.workers if worker in pool]
    if len(known) < _MIN_WORKERS:
        raise ConfigError(
            f"the history knows {len(known)} workers of this pool and the baselines need "
            f"{_MIN_WORKERS}: "
            f"it names {', '.join(history.workers)}"
        )
    mine = history.select(workers=known)
    served += [
        _baseline_model(each.name, _learning_solver(each, mine), pool, limits)
        for each in BASELINES
        if each.build is None
    ]
    if mine.samples is not None and cascade is None:
        served.append(_baseline_model(CASCADE, _lazy_cascade(mine, checks), pool, limits))
    return tuple(served)


def unavailable_baselines(
    history: History | None = None, cascade: Cascade | None = None
) -> dict[str, str]:
    """The names of the methods that nothing here teaches, each with what to do."""
    absent = {
        BASELINE_PREFIX + each.name: NEEDS_HISTORY
        for each in BASELINES
        if each.build is None and history is None
    }
    if cascade is None and (history is None or history.samples is None):
        absent[BASELINE_PREFIX + CASCADE] = NEEDS_ANSWERS
    return absent


def _find_checker(name: str | None, pool: Pool) -> Checker | None:
    """Raises: ConfigError: there is no such worker."""
    if name is None:
        return None
    if name not in pool:
        known = suggest_names(name, (worker.id for worker in pool))
        raise ConfigError(f"there is no worker {name!r} to check answers; {known}")
    return Checker(pool[name].id)


def _learning_solver(baseline: Baseline, history: History) -> Solver:
    if baseline.fit_router is not None:
        fit = partial(baseline.fit_router, history)
        return ConductorSolver(LazyConductor(baseline.name, fit))
    assert baseline.fit_chooser is not None  # noqa: S101 - one of the three is there
    choose = partial(baseline.fit_chooser, history)
    return LazySolver(baseline.name, choose, len(history.workers))


def _lazy_cascade(history: History, checker: Checker | None) -> Solver:
    """Fitted without its selector's second stage, which wins little and needs a package."""
    fit = partial(fit_cascade, history, SelectorRecipe(evolve=False), checker=checker)
    return LazySolver(CASCADE, fit, most_calls(len(history.workers)))


def _baseline_model(name: str, solver: Solver, pool: Pool, limits: Limits) -> ServedModel:
    steps = solver.calls or limits.steps
    bounds = Limits(
        steps=steps,
        rounds=1,
        tokens=limits.tokens,
        usd=limits.usd,
        seconds=limits.seconds,
        unknown=limits.unknown,
    )
    text = f"The baseline {name}, a published method to compare with."
    if isinstance(solver, ConductorSolver):
        return ServedModel(
            name=BASELINE_PREFIX + name,
            conductor=solver.conductor,
            pool=pool,
            limits=bounds,
            calls=solver.calls,
            description=text,
        )
    return ServedModel(
        name=BASELINE_PREFIX + name,
        conductor=None,
        pool=pool,
        limits=bounds,
        solver=solver,
        calls=solver.calls,
        description=text,
    )


@final
class LazyMethod(Generic[_Method]):
    """A method that is fitted once, in a thread, when it is first wanted."""

    def __init__(self, fit: Callable[[], _Method]) -> None:
        self._fit = fit
        self._lock = anyio.Lock()
        self._fitted: _Method | None = None

    async def get(self) -> _Method:
        """The method.

        Raises:
            BatutaError: it could not be fitted; the next call tries again.
        """
        async with self._lock:
            if self._fitted is None:
                await anyio.to_thread.run_sync(self._run_fit)
        assert self._fitted is not None  # noqa: S101 - else an error was raised
        return self._fitted

    def _run_fit(self) -> None:
        """Keeps what was fitted even if whoever wanted it has gone."""
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
        """The router's decision; why it could not be fitted is the reason of a malformed one."""
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
        """The solver's run."""
        return await (await self._lazy.get()).answer(question, context, seed)
