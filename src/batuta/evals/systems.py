"""Names to systems: what can be measured over a pool."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from batuta.baselines import (
    BestOfN,
    Conducted,
    Everyone,
    MixtureOfAgents,
    Prompted,
    Samples,
    SelfConsistency,
    SelfReflection,
    Single,
    Solver,
    best_worker,
    fixed_pipeline,
    shuffled_access,
    solve_only,
)
from batuta.core import Client, Conductor, Limits, Pool, WorkerId
from batuta.errors import ConfigError
from batuta.rehearsal import HandWritten
from batuta.solvers import Learned
from batuta.solvers.random import RandomWorkflows

ULTRA = "ultra"
RECURSIVE = "ultra+recursion"
BEST_SINGLE = "best-single"
ROUNDS = 3
"""Rounds of `ultra+recursion` at most."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is evaluated: a pool that can be called, and who conducts it."""

    pool: Pool
    clients: Mapping[WorkerId, Client]
    conductor: Conductor
    limits: Limits = Limits()
    simulated: bool = False
    """The workers are programs, not language models."""


@dataclass(frozen=True, slots=True)
class System:
    """A way of answering, under the name that it has in the report."""

    name: str
    solver: Solver
    calibrated: bool = False
    """It needs to know which worker is the best."""
    reference: bool = False
    """Right if any of its replies is: a line to compare with, no method."""
    worker: WorkerId | None = None
    """It is this worker and is played only where the pool has it."""

    @property
    def plans(self) -> bool:
        """Whether a conductor decides how many steps there are."""
        return self.solver.calls is None and not self.reference


_Maker = Callable[[Subject], System]


def _best(name: str, solver: Solver) -> System:
    return System(name, solver, calibrated=True)


def _ultra(name: str, conductor: Conductor, rounds: int = 1) -> System:
    return System(name, Conducted(conductor, rounds=rounds))


def _prompted(name: str, subject: Subject) -> System:
    if subject.simulated:
        return _ultra(name, Learned("rehearsal/hand-written", HandWritten(0)))
    return _best(name, Conducted(Prompted(subject.clients)))


_FIXED: Mapping[str, _Maker] = {
    BEST_SINGLE: lambda _: _best(BEST_SINGLE, Single()),
    "self-reflection": lambda _: _best("self-reflection", SelfReflection()),
    "moa": lambda _: _best("moa", _mixture(MixtureOfAgents())),
    "moa-8": lambda _: _best("moa-8", _mixture(MixtureOfAgents(layers=2, proposers=7))),
    "pipeline": lambda _: _best("pipeline", Conducted(fixed_pipeline(), calls=5)),
    "random": lambda _: System("random", Conducted(RandomWorkflows())),
    "prompted": lambda subject: _prompted("prompted", subject),
    "hand-written": lambda subject: _prompted("hand-written", subject),
    ULTRA: lambda subject: _ultra(ULTRA, subject.conductor),
    RECURSIVE: lambda subject: _ultra(RECURSIVE, subject.conductor, ROUNDS),
    "ultra-solve-only": lambda subject: _ultra("ultra-solve-only", solve_only(subject.conductor)),
    "ultra-shuffled-access": lambda subject: _ultra(
        "ultra-shuffled-access", shuffled_access(subject.conductor)
    ),
    "ultra-best-worker": lambda subject: _best(
        "ultra-best-worker", Conducted(best_worker(subject.conductor))
    ),
    "oracle": lambda _: System("oracle", Everyone(), reference=True),
}
_COUNTED: Mapping[str, Callable[[str, int], System]] = {
    "self-consistency@": lambda name, k: _best(name, SelfConsistency(k)),
    "best-of-": lambda name, k: _best(name, BestOfN(k)),
    "pass@": lambda name, k: System(name, Samples(k), calibrated=True, reference=True),
}
_COUNT = re.compile(r"(.*?[@-])([1-9]\d{0,2})")


def _mixture(agents: MixtureOfAgents) -> Conducted:
    return Conducted(agents, calls=agents.calls)


def names(subject: Subject) -> tuple[str, ...]:
    """Every name that `system` knows; of those with a number, the form with 5."""
    fixed = (name for name in _FIXED if subject.simulated or name != "hand-written")
    workers = (str(worker.id) for worker in subject.pool)
    return (*workers, *fixed, *(f"{name}5" for name in _COUNTED))


def system(name: str, subject: Subject) -> System:
    """The system of that name: a worker's id, or a method.

    Raises:
        ConfigError: there is none.
    """
    counted = _COUNT.fullmatch(name)
    if name in _FIXED and name in names(subject):
        return _FIXED[name](subject)
    if counted and counted[1] in _COUNTED:
        return _COUNTED[counted[1]](name, int(counted[2]))
    if name in subject.pool:
        worker = subject.pool[name].id
        return System(name, Single(worker), worker=worker)
    raise ConfigError(f"there is no system {name!r}; choose among: {', '.join(names(subject))}")
