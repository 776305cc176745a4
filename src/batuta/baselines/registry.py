"""The table of baselines: `batuta eval` measures its rows, `batuta serve` serves each.

A new baseline is one row here and a module that builds it or fits it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from batuta.baselines.best_of_n import BestOfN
from batuta.baselines.moa import MixtureOfAgents, MixtureSolver
from batuta.baselines.pipeline import CALLS, fixed_pipeline
from batuta.baselines.routing import (
    avengers,
    knn,
    masrouter,
    random_routing,
    routellm_mf,
    routerdc,
    smoothie,
)
from batuta.baselines.self_consistency import SelfConsistency
from batuta.baselines.self_reflection import SelfReflection
from batuta.baselines.single import SingleWorker
from batuta.baselines.solver import ConductorSolver, Solver
from batuta.core import Conductor
from batuta.solvers.features import Features
from batuta.solvers.history import History
from batuta.solvers.random_workflows import RandomConductor


class FitRouter(Protocol):
    """Learns from outcomes whom to ask, before anything is answered."""

    def __call__(
        self, history: History, *, seed: int = 0, features: Features | None = None
    ) -> Conductor:
        """The conductor; raises ConfigError or SourceError if the history cannot be used."""
        ...


class FitAnswerChooser(Protocol):
    """Learns from outcomes which of several answers to choose."""

    def __call__(
        self, history: History, *, seed: int = 0, features: Features | None = None
    ) -> Solver:
        """The solver; raises ConfigError if the history cannot be used."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A row: a published method, and how it comes to be."""

    name: str
    build: Callable[[int], Solver] | None = None
    """Makes it without outcomes, of the number in its name."""
    fit_router: FitRouter | None = None
    """Fits it, if it chooses a worker or a workflow for the question."""
    fit_chooser: FitAnswerChooser | None = None
    """Fits it, if it chooses among answers."""
    number: int = 0
    """What its name ends with unless something else is asked for; 0: it takes no number."""
    reads_replies: bool = False
    """Whether its workers read other workers' replies, which a record of answers cannot know."""
    embeds_replies: bool = False
    """Whether it compares whole replies, where a record has mere answers."""

    @property
    def default_name(self) -> str:
        """The name, with its usual number if it takes one."""
        return f"{self.name}{self.number}" if self.number else self.name


_fit_local = partial(smoothie.fit_smoothie, k=smoothie.NEIGHBOURS)

BASELINES: tuple[Baseline, ...] = (
    Baseline(name="best-single", build=lambda _: SingleWorker()),
    Baseline(name="self-consistency@", build=SelfConsistency, number=5),
    Baseline(name="best-of-", build=BestOfN, number=5),
    Baseline(name="self-reflection", build=lambda _: SelfReflection(), reads_replies=True),
    Baseline(name="moa", build=lambda _: MixtureSolver(), reads_replies=True),
    Baseline(
        name="moa-8",
        build=lambda _: MixtureSolver(MixtureOfAgents(layers=2, proposers=7)),
        reads_replies=True,
    ),
    Baseline(
        name="pipeline",
        build=lambda _: ConductorSolver(fixed_pipeline(), calls=CALLS),
        reads_replies=True,
    ),
    Baseline(name="random", build=lambda _: ConductorSolver(RandomConductor()), reads_replies=True),
    Baseline(
        name="random-routing",
        build=lambda _: ConductorSolver(random_routing.RandomRouting(), calls=1),
        fit_router=random_routing.fit_random_routing,
    ),
    Baseline(name="knn", fit_router=knn.fit_knn),
    Baseline(name="avengers-pro", fit_router=avengers.fit_avengers),
    Baseline(name="routellm-mf", fit_router=routellm_mf.fit_routellm),
    Baseline(name="routerdc", fit_router=routerdc.fit_routerdc),
    Baseline(name="masrouter", fit_router=masrouter.fit_masrouter),
    Baseline(name="smoothie", fit_chooser=smoothie.fit_smoothie),
    Baseline(name="smoothie-local", fit_chooser=_fit_local),
    Baseline(
        name="smoothie-embedded",
        fit_chooser=partial(smoothie.fit_smoothie, form="embeddings"),
        embeds_replies=True,
    ),
    Baseline(
        name="smoothie-local-embedded",
        fit_chooser=partial(_fit_local, form="embeddings"),
        embeds_replies=True,
    ),
)
"""In the order in which they are listed; the cascade, which may also be opened from a folder, is
served and measured beside them."""
