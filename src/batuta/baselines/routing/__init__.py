"""Published routers: fitted on a history, one file and one paper each."""

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from batuta.baselines.routing import (
    avengers,
    knn,
    masrouter,
    random,
    routellm_mf,
    routerdc,
    smoothie,
)
from batuta.baselines.routing.random import RandomRouting
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


class FitChooser(Protocol):
    """Fits a method that chooses among answers."""

    def __call__(
        self, history: History, *, seed: int = 0, features: Features | None = None
    ) -> Solver:
        """The solver; raises ConfigError if the history cannot be used."""
        ...


ROUTERS: Mapping[str, FitRouter] = {
    "random-routing": random.fit,
    "knn": knn.fit,
    "avengers-pro": avengers.fit,
    "routellm-mf": routellm_mf.fit,
    "routerdc": routerdc.fit,
    "masrouter": masrouter.fit,
}
CHOOSERS: Mapping[str, FitChooser] = {
    "smoothie": smoothie.fit,
    "smoothie-local": partial(smoothie.fit, k=smoothie.K),
    "smoothie-embedded": partial(smoothie.fit, form="embeddings"),
    "smoothie-local-embedded": partial(smoothie.fit, k=smoothie.K, form="embeddings"),
}

__all__ = [
    "CHOOSERS",
    "ROUTERS",
    "FitChooser",
    "FitRouter",
    "RandomRouting",
    "Router",
    "Smoothie",
]
