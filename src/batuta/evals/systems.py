"""Names to systems: what can be measured over a pool."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from batuta.baselines import (
    BestOfN,
    Conducted,
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
from batuta.baselines.routing import CHOOSERS
from batuta.baselines.routing.smoothie import LEAST
from batuta.core import Conductor, WorkerId
from batuta.errors import ConfigError
from batuta.evals.each import Each, Line, Vote, any_right, repeatable
from batuta.evals.fitted import CHECKED, FITTED, Fit, Untaught, cascade_at
from batuta.evals.subject import Subject
from batuta.rehearsal import HandWritten
from batuta.solvers import Learned
from batuta.solvers.random import RandomWorkflows

ULTRA = "ultra"
RECURSIVE = "ultra+recursion"
BEST_SINGLE = "best-single"
ALL = "all"
"""Stands for every system that can be measured on the subject without simulated replies."""
ROUNDS = 2
"""Rounds of `ultra+recursion` at most: as many as training rolls out."""


@dataclass(frozen=True, slots=True)
class System:
    """A way of answering, under the name that it has in the report."""

    name: str
    solver: Solver
    calibrated: bool = False
    """It needs to know which worker is the best."""
    line: Line | None = None
    """A line to compare with, no method: what it earns for all of its replies."""
    worker: WorkerId | None = None
    """It is this worker and is played only where the pool has it."""
    chorus: bool = False
    """It looks at what everybody says to the bare question."""
    plans: bool = False
    """A conductor decides how many steps there are."""

    @property
    def reference(self) -> bool:
        """Whether it is a line to compare with."""
        return self.line is not None

    @property
    def fitted(self) -> Fit | None:
        """How it learns from outcomes; None: it does not, or it has."""
        return self.solver.fit if isinstance(self.solver, Untaught) else None


_Maker = Callable[[Subject], System]


def _best(name: str, solver: Solver) -> System:
    return System(name, solver, calibrated=True)


def _conducted(name: str, conductor: Conductor, rounds: int = 1) -> System:
    return System(name, Conducted(conductor, rounds=rounds), plans=True)


def _prompted(name: str, subject: Subject) -> System:
    if subject.simulated:
        return _conducted(name, Learned("rehearsal/hand-written", HandWritten(0)))
    return System(name, Conducted(Prompted(subject.clients)), calibrated=True, plans=True)


def _ultra(subject: Subject) -> Conductor:
    if subject.conductor is None:
        raise ConfigError("a record has no conductor; name one with --conductor FOLDER")
    return subject.conductor


def _by_the_best(subject: Subject) -> System:
    altered = Conducted(best_worker(_ultra(subject)))
    return System("ultra-best-worker", altered, calibrated=True, plans=True)


_CONDUCTED: Mapping[str, _Maker] = {
    ULTRA: lambda subject: _conducted(ULTRA, _ultra(subject)),
    RECURSIVE: lambda subject: _conducted(RECURSIVE, _ultra(subject), ROUNDS),
    "ultra-solve-only": lambda s: _conducted("ultra-solve-only", solve_only(_ultra(s))),
    "ultra-shuffled-access": lambda s: _conducted(
        "ultra-shuffled-access", shuffled_access(_ultra(s))
    ),
    "ultra-best-worker": _by_the_best,
}
_WRITING: Mapping[str, _Maker] = {
    "self-reflection": lambda _: _best("self-reflection", SelfReflection()),
    "moa": lambda _: _best("moa", _mixture(MixtureOfAgents())),
    "moa-8": lambda _: _best("moa-8", _mixture(MixtureOfAgents(layers=2, proposers=7))),
    "pipeline": lambda _: _best("pipeline", Conducted(fixed_pipeline(), calls=5)),
    "random": lambda _: _conducted("random", RandomWorkflows()),
}
"""Their workers read other replies, which a record cannot know."""
_EMBEDDING = frozenset(name for name in CHOOSERS if name.endswith("embedded"))
_PROMPTED: Mapping[str, _Maker] = {
    "prompted": lambda subject: _prompted("prompted", subject),
    "hand-written": lambda subject: _prompted("hand-written", subject),
}
_PLAIN: Mapping[str, _Maker] = {
    BEST_SINGLE: lambda _: _best(BEST_SINGLE, Single()),
    "vote": lambda _: System("vote", Vote(), chorus=True),
    "oracle": lambda _: System("oracle", Each(), line=any_right, chorus=True),
}
_FIXED: Mapping[str, _Maker] = {**_PLAIN, **_WRITING, **_PROMPTED, **_CONDUCTED}
_COUNTED: Mapping[str, Callable[[str, int], System]] = {
    "self-consistency@": lambda name, k: _best(name, SelfConsistency(k)),
    "best-of-": lambda name, k: _best(name, BestOfN(k)),
    "pass@": lambda name, k: System(name, Samples(k), calibrated=True, line=any_right),
    "skill-oracle@": lambda name, k: System(name, Each(k), line=repeatable),
}
_PRICED = re.compile(r"cascade@(0?\.\d{1,6})")
_COUNT = re.compile(r"(.*?[@-])([1-9]\d{0,2})")


def _mixture(agents: MixtureOfAgents) -> Conducted:
    return Conducted(agents, calls=agents.calls)


def names(subject: Subject) -> tuple[str, ...]:
    """Every name that `system` knows; of those with a number one form, a cascade's its price."""
    workers = (str(worker.id) for worker in subject.pool)
    counted = (f"{name}5" for name in _COUNTED)
    return (*workers, *_methods(subject), *FITTED, "cascade@0.001", *counted)


def _methods(subject: Subject) -> tuple[str, ...]:
    without = set[str]() if subject.simulated else {"hand-written"}
    if subject.deck is not None:
        without |= {*_PROMPTED, *(_CONDUCTED if subject.conductor is None else ())}
    return tuple(name for name in _FIXED if name not in without)


def everything(subject: Subject) -> tuple[str, ...]:
    """What `all` stands for: every method and line that the subject can play as it is.

    On a record without samples nothing that needs samples, without answers no vote, nothing that
    embeds replies, which are mere answers there, and nothing whose workers read other replies
    unless its replies are simulated.
    """
    deck = subject.deck
    without = set[str]() if len(subject.pool) >= LEAST else set(CHOOSERS)
    if deck is None:
        found = (*_methods(subject), *FITTED, "self-consistency@5", "pass@5")
        return tuple(name for name in found if name not in without)
    without |= {*_EMBEDDING, CHECKED, *(() if deck.simulate else _WRITING)}
    if deck.record.answers_qms is None:
        without |= {"vote", "cascade", *CHOOSERS}
    depth = deck.record.scores_qms.shape[2]
    sampled = ("self-consistency@", "pass@", "skill-oracle@") if depth > 1 else ()
    found = (*_methods(subject), *FITTED, *(f"{name}{depth}" for name in sampled))
    return tuple(name for name in found if name not in without)


def system(name: str, subject: Subject) -> System:
    """The system of that name: a worker's id, or a method.

    Raises:
        ConfigError: there is none.
    """
    counted = _COUNT.fullmatch(name)
    if name in FITTED:
        untaught = Untaught(name, FITTED[name])
        return System(name, untaught, calibrated=True, chorus=name in CHOOSERS)
    if priced := _PRICED.fullmatch(name):
        return System(name, Untaught(name, cascade_at(float(priced[1]))), calibrated=True)
    if name in _methods(subject):
        return _FIXED[name](subject)
    if counted and counted[1] in _COUNTED:
        return _COUNTED[counted[1]](name, int(counted[2]))
    if name in subject.pool:
        worker = subject.pool[name].id
        return System(name, Single(worker), worker=worker)
    if name.startswith("cascade@"):
        raise ConfigError(f"{name}: the price of a call is credit below 1: cascade@0.001")
    raise ConfigError(f"there is no system {name!r}; choose among: {', '.join(names(subject))}")
