"""Published routers: fitted on a history, one file and one paper each."""

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from batuta.baselines.routing import (
    avengers,
    knn,
    masrouter,
    random_routing,
    routellm_mf,
    routerdc,
    smoothie,
)
from batuta.baselines.routing.random_routing import RandomRouting
from batuta.baselines.routing.router import Router
from batuta.baselines.routing.smoothie import Smoothie
from batuta.baselines.solver import Solver
from batuta.core import Conductor
from batuta.solvers.features import Features
from batuta.solvers.history import History


class FitRouter(Protocol):
    """Fits a method that chooses before anything is answered."""

    def __call__(
        self, history: History, *, seed: int = 0, features: Features | None = None
    ) -> Conductor:
        """The conductor; raises ConfigError or SourceError if the history cannot be used."""
        ...


class FitAnswerChooser(Protocol):
    """Fits a method that chooses among answers."""

    def __call__(
        self, history: History, *, seed: int = 0, features: Features | None = None
    ) -> Solver:
        """The solver; raises ConfigError if the history cannot be used."""
        ...


ROUTERS: Mapping[str, FitRouter] = {
    "random-routing": random_routing.fit_random_routing,
    "knn": knn.fit_knn,
    "avengers-pro": avengers.fit_avengers,
    "routellm-mf": routellm_mf.fit_routellm,
    "routerdc": routerdc.fit_routerdc,
    "masrouter": masrouter.fit_masrouter,
}
ANSWER_CHOOSERS: Mapping[str, FitAnswerChooser] = {
    "smoothie": smoothie.fit_smoothie,
    "smoothie-local": partial(smoothie.fit_smoothie, k=smoothie.NEIGHBOURS),
    "smoothie-embedded": partial(smoothie.fit_smoothie, form="embeddings"),
    "smoothie-local-embedded": partial(
        smoothie.fit_smoothie, k=smoothie.NEIGHBOURS, form="embeddings"
    ),
}

__all__ = [
    "ANSWER_CHOOSERS",
    "ROUTERS",
    "FitAnswerChooser",
    "FitRouter",
    "RandomRouting",
    "Router",
    "Smoothie",
]
