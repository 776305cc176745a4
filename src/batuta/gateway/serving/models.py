"""The served models, and the workers that answer for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol, final

import anyio.to_thread

from batuta.clients import WorkerHealth
from batuta.clients.openai.moderation import ModerationClient
from batuta.clients.webhook import Webhook
from batuta.conductors import single_worker
from batuta.conductors.sessions.state import DEFAULT_RULES, SessionRules
from batuta.config.aliases import Aliases
from batuta.config.served_systems import ServedSystem, mini_system, ultra_system
from batuta.core import Client, Conductor, Limits, Pool, Price, Worker, WorkerId
from batuta.core.conductor import ModelConductor, describe_prompt
from batuta.core.server_tools import ServerTools
from batuta.core.suggestions import suggest_names
from batuta.engine import TimeoutPolicy
from batuta.engine.confidence import ConfidenceModel
from batuta.engine.solver import ConductorSolver, Solver
from batuta.errors import ConfigError
from batuta.guardrails import NO_GUARDRAILS, Guardrails
from batuta.language.approval_rules import ApprovalRule
from batuta.language.plan_rules import NO_RULES, PlanRules
from batuta.store.key_permissions import KnownNames

WORKER_PREFIX = "worker/"
"""The beginning of the name of a worker that is served as it is."""
MINI_LIMITS = Limits(steps=1, seconds=60)
ULTRA_LIMITS = Limits(seconds=15 * 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreOptions:
    """The share of requests and the money by which a system may learn what is better."""

    share: float
    """Share of its requests, in (0, 1]."""
    usd_per_day: Decimal
    """Dollars that explored runs of a day (UTC) may cost, over all replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A name that callers may ask for, and who answers under it."""

    name: str
    conductor: Conductor | None
    """The conductor that writes the workflow; None if `solver` answers."""
    pool: Pool
    limits: Limits = field(default_factory=Limits)
    """The most a run may spend; a caller can lower it."""
    direct: bool = False
    """One worker is passed through: its reasoning is shown as its own, its errors as errors of
    the request where they are, and no progress is streamed."""
    fallback: bool = True
    """Whether another worker may answer when the planned one cannot."""
    description: str = ""
    solver: Solver | None = None
    """A method that chooses among replies, in a conductor's place."""
    calls: int | None = None
    """Calls of workers that the method makes; a caller cannot have it with fewer."""
    max_rounds: int = 1
    """Rounds that a caller may ask for; `limits.rounds` are run unasked."""
    embeds: bool = False
    """True if it turns texts into vectors and answers no question."""
    effort: str | None = None
    """The effort of a request that names none; None: the workers' own."""
    explore: ExploreOptions | None = None
    """The alternatives that it may try beside what it believes best; None for none."""
    min_confidence: float | None = None
    """Below this probability of being right an answer is marked `unsure`."""
    load: Callable[[], Solver] | None = None
    """Imports the method that answers; None: there is nothing to import."""

    def __post_init__(self) -> None:
        if self.load is None and (self.conductor is None) == (self.solver is None):
            raise ValueError(f"{self.name} needs a conductor or a solver, and not both")

    @property
    def writes_workflows(self) -> bool:
        """Whether a conductor writes a workflow for each question."""
        return not self.direct and self.solver is None and self.calls is None

    @property
    def limits_ceiling(self) -> Limits:
        """The most that a caller may ask for: rounds that it must ask for are not run unasked."""
        if self.max_rounds <= self.limits.rounds:
            return self.limits
        return replace(self.limits, rounds=self.max_rounds)

    def with_method(self, solver: Solver) -> ServedModel:
        """Return the model with its method, which may take as many steps as it needs."""
        limits = replace(self.limits, steps=solver.calls or self.limits.steps)
        if isinstance(solver, ConductorSolver):
            by = {"conductor": solver.conductor}
        else:
            by = {"solver": solver}
        return replace(self, calls=solver.calls, limits=limits, load=None, **by)

    def model_object(self, created: int, alias: str | None = None) -> dict[str, Any]:
        """Return the model as GET /v1/models shows it, to clients of OpenAI and of Anthropic alike.

        Args:
            created: seconds since the epoch.
            alias: the name under which it is shown, if that is not its own.
        """
        name = alias or self.name
        known = {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": created,
            "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
            "owned_by": "batuta",
            "description": self.description,
        }
        return known if name == self.name else {**known, "alias_of": self.name}


def served_models(
    pool: Pool,
    conductor: Conductor | None = None,
    *,
    mini_conductor: Conductor | None = None,
    explore: ExploreOptions | None = None,
    mini: Limits = MINI_LIMITS,
    ultra: Limits = ULTRA_LIMITS,
    max_rounds: int | None = None,
) -> tuple[ServedModel, ...]:
    """Return `batuta-mini`, with a conductor `batuta-ultra`, and each worker as `worker/<id>`.

    Args:
        pool: the workers.
        conductor: who answers as `batuta-ultra`; None: nobody does.
        mini_conductor: who answers as `batuta-mini`; None: the best worker.
        explore: what `batuta-mini` may try.
        mini: its limits where it is one step.
        ultra: the limits of whatever else is served.
        max_rounds: as the settings say; None: as the conductor needs.
    """
    limits = ultra if isinstance(mini_conductor, ModelConductor) else mini
    small = model_of_system(mini_system(pool, mini_conductor, limits))
    if mini_conductor is None:
        text = f"The best worker of the pool, {pool.ranked()[0].id}, without a workflow."
        small = replace(small, description=text)
    models = [replace(small, explore=explore)]
    if conductor is not None:
        models.append(model_of_system(ultra_system(pool, conductor, ultra, max_rounds)))
    models += [
        ServedModel(
            name=f"{WORKER_PREFIX}{worker.id}",
            conductor=single_worker(worker.id),
            pool=pool.subset((worker.id,)),
            limits=replace(ultra, steps=1, rounds=1),
            direct=True,
            fallback=False,
            description=worker.description,
        )
        for worker in pool
    ]
    return tuple(models)


def embedding_models(workers: Iterable[Worker], unknown: Price) -> tuple[ServedModel, ...]:
    """Return every worker that embeds, as `worker/<id>`.

    Args:
        workers: those that embed.
        unknown: what a call without a price counts as.
    """
    return tuple(
        ServedModel(
            name=f"{WORKER_PREFIX}{worker.id}",
            conductor=single_worker(worker.id),
            pool=Pool((replace(worker, context_window=None),)),  # it is of each text, not of all
            limits=Limits(steps=1, seconds=MINI_LIMITS.seconds, unknown=unknown),
            direct=True,
            fallback=False,
            description=worker.description or f"Embeddings by {worker.model}.",
            embeds=True,
        )
        for worker in workers
    )


def model_of_system(system: ServedSystem) -> ServedModel:
    """Return the system as it is served under its name."""
    return ServedModel(
        name=system.name,
        conductor=system.conductor,
        pool=system.pool,
        limits=system.limits,
        direct=system.direct,
        fallback=system.settings.fallback,
        min_confidence=system.settings.min_confidence,
        description=_describe_conductor(system.conductor, system.pool),
        max_rounds=system.max_rounds,
        effort=system.effort,
    )


def _describe_conductor(conductor: Conductor, pool: Pool) -> str:
    """Return a sentence: who writes the workflow, and what it is told of the workers."""
    prompt = describe_prompt(conductor, pool)
    shown = prompt.shown if prompt else ""
    many = f"{len(pool)} worker{'' if len(pool) == 1 else 's'}"
    return f"A workflow for each question, by {conductor.name} over {many}{shown}."


class Outcomes(Protocol):
    """Recorded scores of workers on questions (`lab.learners.history.History`)."""

    @property
    def workers(self) -> Sequence[str]:
        """Their names."""
        ...

    @property
    def families(self) -> Sequence[str]:
        """The kind of each question; empty where it is not known."""
        ...

    @property
    def scores_qm(self) -> Any:
        """Scores in [0, 1] by question and worker, an array; NaN where a worker was not asked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """Facts that the web page shows beside the runs."""

    source: str = ""
    """The source of the pool, in words."""
    simulated: bool = False
    """Whether its workers are programs and not language models."""
    examples: tuple[str, ...] = ()
    """Questions to begin with."""
    folders: tuple[Path, ...] = ()
    """Folders in which training runs and evaluation reports are looked for, with those below."""
    history: Outcomes | None = None
    """Outcomes of the workers, by task family."""


@final
@dataclass(slots=True, kw_only=True)
class Catalogue:
    """The workers and the models that are served; all of it is replaced when the settings are.

    It owns no client: they are opened and closed by whoever gives them.

    Raises:
        ConfigError: two models have one name, there is none, a worker has no client, or an alias
            can stand for nothing.
    """

    pool: Pool
    """Every worker."""
    clients: Mapping[WorkerId, Client]
    """How each of them is called."""
    models: tuple[ServedModel, ...]
    """The served models, in the order in which they are listed; see `served_models`."""
    unavailable_models: Mapping[str, str] = field(default_factory=dict[str, str])
    """Models that could be served, and what to do for it."""
    aliases: Aliases = Aliases()
    """The names that stand for served models."""
    conducts_auxiliary: bool = False
    """Whether also what coding agents ask for themselves, such as titles, is conducted."""
    session_rules: SessionRules = DEFAULT_RULES
    """The constants by which sessions are conducted."""
    page_context: PageContext = field(default_factory=PageContext)
    health: Mapping[WorkerId, WorkerHealth] = field(default_factory=dict[WorkerId, WorkerHealth])
    """How workers do, for those that are watched."""
    timeout_policy: TimeoutPolicy = field(default_factory=TimeoutPolicy)
    """How long a step may take before another worker is asked."""
    guardrails: Guardrails = NO_GUARDRAILS
    """The guardrails on questions, replies between agents and answers."""
    plan_rules: PlanRules = NO_RULES
    """The rules say what no workflow may be, for any tenant and tag."""
    approvals: tuple[ApprovalRule, ...] = ()
    """The plans that somebody must approve before they are run, of any tenant."""
    approval_webhook: Webhook | None = None
    """It is told of plans that wait, and may decide; None: nobody is told."""
    confidence: ConfidenceModel | None = None
    """What states how sure answers are; None: nothing does."""
    refuses_unsure: bool = False
    """Whether an answer that is less sure than was asked for is refused, not marked."""
    private_pictures: bool = False
    """Whether addresses of pictures may be of private networks."""
    server_tools: ServerTools | None = None
    """The tools that clients may ask for; None: there are none here."""
    moderation: ModerationClient | None = None
    """Judges texts; None: there is no moderation here."""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("no model is served: give the server at least one")
        if len({model.name for model in self.models}) != len(self.models):
            raise ConfigError("two served models have the same name")
        for members in (self.pool, *(model.pool for model in self.models)):
            for worker in members:
                if worker.id not in self.clients:
                    raise ConfigError(f"worker {worker.id} has no client")
        for alias, name in self.aliases.configured.items():
            self._check_alias(alias, name)

    def find_model(self, name: str) -> ServedModel | None:
        """Return the model served under that name."""
        for model in self.models:
            if model.name == name:
                return model
        return None

    def resolve_model(self, name: str) -> ServedModel | None:
        """Return the model that answers a request for that name.

        It is the one of that name, else the worker of that id, else what an alias stands for.
        """
        found = self._find_named(name)
        if found is None and (target := self.aliases.find(name)):
            found = self._find_named(target)
        return found

    def _find_named(self, name: str) -> ServedModel | None:
        """Return the model of that name, or the worker of that id."""
        return self.find_model(name) or self.find_model(WORKER_PREFIX + name)

    def _check_alias(self, alias: str, name: str) -> None:
        """Return if the alias can stand for that model, else raise."""
        named, target = self._find_named(alias), self._find_named(name)
        if named is not None:
            reason = f"it is the name of {named.name}, which goes before an alias"
        elif name in self.unavailable_models:
            reason = f"{name} is not served: {self.unavailable_models[name]}"
        elif target is None:
            known = suggest_names(name, (model.name for model in self.models))
            reason = f"there is no model {name!r}; {known}"
        elif target.embeds:
            reason = f"{target.name} gives embeddings and no answers"
        else:
            return
        raise ConfigError(f"aliases.{alias}: {reason}")

    async def load_model(self, name: str) -> None:
        """Load the model of that name if it is one of a plugin that nobody has asked for yet.

        Raises:
            ConfigError: it cannot be loaded.
        """
        model = self.resolve_model(name)
        if model is not None and model.load is not None:
            whole = model.with_method(await anyio.to_thread.run_sync(model.load))
            self.models = tuple(whole if one is model else one for one in self.models)

    @property
    def known_names(self) -> KnownNames:
        """Return what the limits of keys can name: also what could be served, and is not now."""
        workers = dict.fromkeys(w.id for m in (self, *self.models) for w in m.pool)
        names = (*(model.name for model in self.models), *self.unavailable_models)
        return KnownNames(models=names, workers=tuple(workers))

    def replace_by(self, other: Catalogue) -> None:
        """Serve from now on what `other` serves; what has begun ends with the old workers."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))
