"""The table of baselines, which `batuta eval` measures and `batuta serve` serves.

A server loads this module only if it was started with outcomes, or when a `baseline/...` model is
called. A new baseline is one row here and a module that builds or fits the method. A served
baseline also has an entry point in `pyproject.toml`: `baseline.NAME` if it is built without
outcomes, `learned-baseline.NAME` if it is fitted. The cascade, SkillOrchestra and pass@k are not
rows: `served` adds the cascade to the table, and `batuta.lab.evals` adds all three.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Protocol, TypeVar

from batuta.conductors.features import Features
from batuta.core import Conductor
from batuta.distribution import install_hint
from batuta.engine.solver import ConductorSolver, Solver
from batuta.errors import ConfigError
from batuta.lab.baselines.best_of_n import BestOfN
from batuta.lab.baselines.moa import MixtureOfAgents, MixtureSolver
from batuta.lab.baselines.pipeline import CALLS, fixed_pipeline
from batuta.lab.baselines.routing import avengers, knn, random_routing, smoothie
from batuta.lab.baselines.self_consistency import SelfConsistency
from batuta.lab.baselines.self_reflection import SelfReflection
from batuta.lab.baselines.single import SingleWorker
from batuta.lab.learners.history import History
from batuta.lab.learners.random_workflows import RandomConductor

_Fitted_co = TypeVar("_Fitted_co", covariant=True)


class FitMethod(Protocol[_Fitted_co]):
    """Fits a method to outcomes."""

    def __call__(
        self, history: History, *, seed: int = 0, features: Features | None = None
    ) -> _Fitted_co:
        """Return the fitted method; `features` embed the questions, None for the default features.

        Raises:
            ConfigError: the method cannot be fitted to this history, or torch is missing.
            SourceError: the history has no scores.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A row of the table: a published method, and how it is made."""

    name: str
    build: Callable[[int], Solver] | None = None
    """Builds the solver without outcomes, from the number at the end of the name (0 if there is
    none); None if the method must be fitted."""
    fit_router: FitMethod[Conductor] | None = None
    """Fits the conductor of a method that chooses a worker or a workflow before any answer."""
    fit_chooser: FitMethod[Solver] | None = None
    """Fits the solver of a method that chooses among answers."""
    number: int = 0
    """The default number at the end of the name; 0 if the name takes no number."""
    reads_replies: bool = False
    """True if workers read other workers' replies, which a record of answers does not have."""
    embeds_replies: bool = False
    """True if the method compares answers by embeddings, and not for equality."""

    @property
    def default_name(self) -> str:
        """The name, with the default number if the name takes one."""
        return f"{self.name}{self.number}" if self.number else self.name


def _fit_routellm(
    history: History, *, seed: int = 0, features: Features | None = None
) -> Conductor:
    _require_torch("routellm-mf")
    from batuta.lab.baselines.routing.routellm_mf import fit_routellm  # noqa: PLC0415 - torch

    return fit_routellm(history, seed=seed, features=features)


def _fit_routerdc(
    history: History, *, seed: int = 0, features: Features | None = None
) -> Conductor:
    _require_torch("routerdc")
    from batuta.lab.baselines.routing.routerdc import fit_routerdc  # noqa: PLC0415 - torch

    return fit_routerdc(history, seed=seed, features=features)


def _fit_masrouter(
    history: History, *, seed: int = 0, features: Features | None = None
) -> Conductor:
    _require_torch("masrouter")
    from batuta.lab.baselines.routing.masrouter import fit_masrouter  # noqa: PLC0415 - torch

    return fit_masrouter(history, seed=seed, features=features)


_NEED_TORCH = frozenset({"routellm-mf", "routerdc", "masrouter"})


def why_not_installed(name: str) -> str | None:
    """Return what the method of that name lacks, with the command that installs it, or None."""
    if name in _NEED_TORCH and find_spec("torch") is None:
        return f"{name} is fitted with torch: install it ({install_hint('train')})"
    return None


def _require_torch(name: str) -> None:
    """Raise ConfigError if torch is missing."""
    if (why := why_not_installed(name)) is not None:
        raise ConfigError(why)


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
    Baseline(name="routellm-mf", fit_router=_fit_routellm),
    Baseline(name="routerdc", fit_router=_fit_routerdc),
    Baseline(name="masrouter", fit_router=_fit_masrouter),
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
"""The baselines, in the order in which lists show them."""
