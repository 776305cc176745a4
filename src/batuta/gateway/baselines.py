"""The published methods as served models, `baseline/NAME`, to compare with on one's own traffic.

They are the methods of `batuta eval`, under the same names. Those that learn do so from a history
of outcomes, when they are first asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar, final

import anyio
import anyio.to_thread

from batuta.baselines import (
    BestOfN,
    Conducted,
    MixtureOfAgents,
    SelfConsistency,
    SelfReflection,
    Single,
    Solver,
    fixed_pipeline,
)
from batuta.baselines import cascade as cascades
from batuta.baselines.cascade import Cascade
from batuta.baselines.checking import Checker
from batuta.baselines.pipeline import CALLS
from batuta.baselines.routing import CHOOSERS, ROUTERS, RandomRouting
from batuta.baselines.solver import Players
from batuta.core import (
    Brief,
    Conductor,
    Decision,
    Draft,
    Limits,
    Listener,
    Malformed,
    Pool,
    Question,
    Run,
)
from batuta.core.conductor import SILENT
from batuta.errors import BatutaError, ConfigError
from batuta.gateway.models import Served
from batuta.solvers.history import History
from batuta.solvers.random import RandomWorkflows
from batuta.solvers.selector import Recipe

BASELINE = "baseline/"
"""What their names begin with."""
UNTAUGHT = "it learns from outcomes: start the server with --history FILE"
CASCADE = "cascade"
SPEECHLESS = (
    "it learns from outcomes with their answers: start the server with --history FILE, or with "
    "--cascade FOLDER where it has learned"
)

_MOA, _MOA_8 = MixtureOfAgents(), MixtureOfAgents(layers=2, proposers=7)
PLAIN: Mapping[str, Solver] = {
    "best-single": Single(),
    "self-consistency@5": SelfConsistency(5),
    "best-of-5": BestOfN(5),
    "self-reflection": SelfReflection(),
    "moa": Conducted(_MOA, _MOA.calls),
    "moa-8": Conducted(_MOA_8, _MOA_8.calls),
    "pipeline": Conducted(fixed_pipeline(), CALLS),
    "random": Conducted(RandomWorkflows()),
    "random-routing": Conducted(RandomRouting(), 1),
}
"""The methods that need no history."""
LEARNED = tuple(name for name in (*ROUTERS, *CHOOSERS) if name not in PLAIN)
"""The methods that do."""
_LEAST = 3
"""Workers that Smoothie compares; for fewer there is little to route between either."""

_Method = TypeVar("_Method")


def baselines(
    pool: Pool,
    limits: Limits,
    history: History | None = None,
    cascade: Cascade | None = None,
    checker: str | None = None,
) -> tuple[Served, ...]:
    """Every method that can be played over the pool.

    Args:
        pool: the workers.
        limits: the most a run may spend; its steps are those that the method needs.
        history: outcomes of the workers; None: what learns is not served.
        cascade: one that has learned; None: it learns from the history.
        checker: the worker that checks the cascade's answers; None: nobody does.

    Raises:
        ConfigError: the history knows fewer than three of the pool's workers, the cascade none,
            or the checker is none of them.
    """
    served = [_served(name, solver, pool, limits) for name, solver in PLAIN.items()]
    checks = _checker(checker, pool)
    if cascade is not None:
        if not any(worker in pool for worker in cascade.selector.workers):
            known = ", ".join(cascade.selector.workers)
            raise ConfigError(f"the cascade knows no worker of this pool, only {known}")
        served.append(_served(CASCADE, replace(cascade, checker=checks), pool, limits))
    if history is None:
        return tuple(served)
    known = [worker for worker in history.workers if worker in pool]
    if len(known) < _LEAST:
        raise ConfigError(
            f"the history knows {len(known)} workers of this pool and the baselines need {_LEAST}: "
            f"it names {', '.join(history.workers)}"
        )
    mine = history.select(workers=known)
    served += [_served(name, _learning(name, mine), pool, limits) for name in LEARNED]
    if mine.samples is not None and cascade is None:
        served.append(_served(CASCADE, _cascade(mine, checks), pool, limits))
    return tuple(served)


def untaught(history: History | None = None, cascade: Cascade | None = None) -> dict[str, str]:
    """The names of the methods that nothing here teaches, each with what to do."""
    absent = {BASELINE + name: UNTAUGHT for name in LEARNED if history is None}
    if cascade is None and (history is None or history.samples is None):
        absent[BASELINE + CASCADE] = SPEECHLESS
    return absent


def _checker(name: str | None, pool: Pool) -> Checker | None:
    """Raises: ConfigError: there is no such worker."""
    if name is None:
        return None
    if name not in pool:
        known = ", ".join(worker.id for worker in pool)
        raise ConfigError(f"there is no worker {name!r} to check answers; choose among: {known}")
    return Checker(pool[name].id)


def _learning(name: str, history: History) -> Solver:
    if name in ROUTERS:
        return Conducted(LateConductor(name, partial(ROUTERS[name], history)))
    return LateSolver(name, partial(CHOOSERS[name], history), len(history.workers))


def _cascade(history: History, checker: Checker | None) -> Solver:
    """Fitted without its selector's second stage, which wins little and needs a package."""
    fit = partial(cascades.fit_cascade, history, Recipe(evolve=False), checker=checker)
    return LateSolver(CASCADE, fit, cascades.CALLS)


def _served(name: str, solver: Solver, pool: Pool, limits: Limits) -> Served:
    steps = solver.calls or limits.steps
    bounds = Limits(steps, 1, limits.tokens, limits.usd, limits.seconds, limits.unknown)
    text = f"The baseline {name}, a published method to compare with."
    if isinstance(solver, Conducted):
        return Served(
            BASELINE + name, solver.conductor, pool, bounds, calls=solver.calls, description=text
        )
    return Served(
        BASELINE + name, None, pool, bounds, solver=solver, calls=solver.calls, description=text
    )


@final
class Late(Generic[_Method]):
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
                await anyio.to_thread.run_sync(self._work)
        assert self._fitted is not None  # noqa: S101 - else an error was raised
        return self._fitted

    def _work(self) -> None:
        """Keeps what was fitted even if whoever wanted it has gone."""
        self._fitted = self._fit()


@final
class LateConductor:
    """A router that is fitted when it first plans."""

    def __init__(self, name: str, fit: Callable[[], Conductor]) -> None:
        self.name = name
        self._late = Late(fit)

    async def plan(self, brief: Brief, listener: Listener = SILENT) -> Decision:
        """The router's decision; why it could not be fitted is the reason of a malformed one."""
        try:
            router = await self._late.get()
        except BatutaError as error:
            return Malformed(Draft(), f"{self.name}: {error}")
        return await router.plan(brief, listener)


@final
class LateSolver:
    """A solver that is fitted when it first answers."""

    def __init__(self, name: str, fit: Callable[[], Solver], calls: int) -> None:
        self.name = name
        self.calls = calls
        self._late = Late(fit)

    async def answer(self, question: Question, players: Players, seed: int) -> Run:
        """The solver's run."""
        return await (await self._late.get()).answer(question, players, seed)
