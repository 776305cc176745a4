"""The catalogue of served models, and the workers that answer for them."""

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
"""The prefix of the model names of single workers."""
MINI_LIMITS = Limits(steps=1, seconds=60)
ULTRA_LIMITS = Limits(seconds=15 * 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreOptions:
    """The requests and the money that a model may spend on exploration."""

    share: float
    """The share of its requests, in (0, 1]."""
    usd_per_day: Decimal
    """Dollars that explored runs may cost per day (UTC), over all replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model name of the API, with the conductor, method or worker that answers."""

    name: str
    conductor: Conductor | None
    """The conductor that writes the workflow; None if a method answers, or is not loaded
    yet."""
    pool: Pool
    limits: Limits = field(default_factory=Limits)
    """The limits of a run; a caller can lower them, and raise the rounds to `max_rounds`."""
    direct: bool = False
    """True if one worker is passed through: its reasoning is shown, its refusals become errors of
    the request, and no progress is streamed."""
    fallback: bool = True
    """Whether another worker may answer when the planned one cannot."""
    description: str = ""
    solver: Solver | None = None
    """A method that chooses among replies, instead of a conductor."""
    calls: int | None = None
    """Maximum number of worker calls of the loaded method; None: no fixed number, or no method."""
    max_rounds: int = 1
    """Maximum number of rounds that a caller may request; `limits.rounds` is the default."""
    embeds: bool = False
    """True for an embedding model."""
    effort: str | None = None
    """The default effort; None: the workers' own."""
    explore: ExploreOptions | None = None
    """The exploration options; None: the model does not explore."""
    min_confidence: float | None = None
    """The confidence (probability of a correct answer) below which an answer is `unsure`; None: no
    confidence is required."""
    load: Callable[[], Solver] | None = None
    """Imports the method at the first call; None: there is nothing to import."""

    def __post_init__(self) -> None:
        if self.load is None and (self.conductor is None) == (self.solver is None):
            raise ValueError(f"{self.name} needs either a conductor or a solver")

    @property
    def writes_workflows(self) -> bool:
        """Whether a conductor writes a workflow for each question.

        True also for a method that is not loaded yet.
        """
        return not self.direct and self.solver is None and self.calls is None

    @property
    def limits_ceiling(self) -> Limits:
        """The highest limits that a caller may request: `limits`, with `max_rounds` rounds."""
        if self.max_rounds <= self.limits.rounds:
            return self.limits
        return replace(self.limits, rounds=self.max_rounds)

    def with_method(self, solver: Solver) -> ServedModel:
        """Return the model with its loaded method; a fixed number of calls limits the steps."""
        limits = replace(self.limits, steps=solver.calls or self.limits.steps)
        if isinstance(solver, ConductorSolver):
            by = {"conductor": solver.conductor}
        else:
            by = {"solver": solver}
        return replace(self, calls=solver.calls, limits=limits, load=None, **by)

    def model_object(self, created: int, alias: str | None = None) -> dict[str, Any]:
        """Return the model for GET /v1/models, with the fields of OpenAI and of Anthropic.

        Args:
            created: seconds since the epoch.
            alias: the alias under which it is listed, if any.
        """
        name = alias or self.name
        entry = {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": created,
            "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
            "owned_by": "batuta",
            "description": self.description,
        }
        return entry if name == self.name else {**entry, "alias_of": self.name}


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
    """Return `batuta-mini`, `batuta-ultra` and each worker as `worker/<id>`.

    Args:
        pool: the workers.
        conductor: the conductor of `batuta-ultra`; None: that model is not served.
        mini_conductor: the conductor of `batuta-mini`; None: the best worker answers.
        explore: the exploration options of `batuta-mini`; None: it does not explore.
        mini: the limits of `batuta-mini`, unless its conductor is a model.
        ultra: the limits of the other models, and of `batuta-mini` if its conductor is a model.
        max_rounds: the settings' limit on rounds; None: as many as the conductor needs.
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
    """Return each embedding worker as a model `worker/<id>`.

    Args:
        workers: the embedding workers.
        unknown: the price assumed for workers without one.
    """
    return tuple(
        ServedModel(
            name=f"{WORKER_PREFIX}{worker.id}",
            conductor=single_worker(worker.id),
            # The window limits each text, not all texts together.
            pool=Pool((replace(worker, context_window=None),)),
            limits=Limits(steps=1, seconds=MINI_LIMITS.seconds, unknown=unknown),
            direct=True,
            fallback=False,
            description=worker.description or f"Embeddings by {worker.model}.",
            embeds=True,
        )
        for worker in workers
    )


def model_of_system(system: ServedSystem) -> ServedModel:
    """Return the system as a served model that is described by its conductor."""
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
    """Return a sentence that names the conductor and says what its prompt shows of the workers."""
    prompt = describe_prompt(conductor, pool)
    shown = prompt.shown if prompt else ""
    many = f"{len(pool)} worker{'' if len(pool) == 1 else 's'}"
    return f"A workflow for each question, by {conductor.name} over {many}{shown}."


class Outcomes(Protocol):
    """Recorded scores of workers on questions (`lab.learners.history.History`)."""

    @property
    def workers(self) -> Sequence[str]:
        """The workers' names, in the order of the columns of `scores_qm`."""
        ...

    @property
    def families(self) -> Sequence[str]:
        """The task family of each question; an empty string if unknown."""
        ...

    @property
    def scores_qm(self) -> Any:
        """Scores in [0, 1], an array (questions, workers); NaN if a worker was not asked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """Facts that the web page shows besides the runs."""

    source: str = ""
    """The path of the pool's settings file, or a description of the pool."""
    simulated: bool = False
    """Whether all workers are simulated."""
    examples: tuple[str, ...] = ()
    """Example questions."""
    folders: tuple[Path, ...] = ()
    """Folders that are searched recursively for training runs and evaluation reports."""
    history: Outcomes | None = None
    """Recorded outcomes of the workers, by task family; None: there are none."""


@final
@dataclass(slots=True, kw_only=True)
class Catalogue:
    """The served workers and models, all replaced when the settings are reloaded.

    The catalogue owns no clients: the caller opens and closes them.

    Raises:
        ConfigError: there is no model, two models have the same name, a worker has no client, or
            an alias is a model's name or has no model that answers.
    """

    pool: Pool
    """The workers, except those for embeddings."""
    clients: Mapping[WorkerId, Client]
    """The client of each worker."""
    models: tuple[ServedModel, ...]
    """The served models, in the order in which the API lists them; see `served_models`."""
    unavailable_models: Mapping[str, str] = field(default_factory=dict[str, str])
    """Models that are not served, each with what to do to serve it."""
    aliases: Aliases = Aliases()
    """Other names of served models."""
    conducts_auxiliary: bool = False
    """Whether coding agents' own requests, such as titles, are conducted too."""
    session_rules: SessionRules = DEFAULT_RULES
    """The settings of sessions."""
    page_context: PageContext = field(default_factory=PageContext)
    health: Mapping[WorkerId, WorkerHealth] = field(default_factory=dict[WorkerId, WorkerHealth])
    """The health of each worker with a circuit breaker; that of the conductor's drafts is under
    `config.conductors.CONDUCTOR`."""
    timeout_policy: TimeoutPolicy = field(default_factory=TimeoutPolicy)
    """How long a step may take before another worker takes over."""
    guardrails: Guardrails = NO_GUARDRAILS
    """The guardrails on questions, replies between workers and answers."""
    plan_rules: PlanRules = NO_RULES
    """The plan rules of all tenants and tags."""
    approvals: tuple[ApprovalRule, ...] = ()
    """The rules by which a person must approve a plan, of all tenants."""
    approval_webhook: Webhook | None = None
    """The webhook that gets waiting plans and may decide about them; None: not configured."""
    confidence: ConfidenceModel | None = None
    """Computes the confidence of answers; None: not configured."""
    refuses_unsure: bool = False
    """Whether an answer below the required confidence is refused instead of marked."""
    private_pictures: bool = False
    """Whether picture URLs may point to private networks."""
    server_tools: ServerTools | None = None
    """The server's tools that clients may use; None: not configured."""
    moderation: ModerationClient | None = None
    """The moderation provider's client; None: not configured."""
    created: int = field(default_factory=lambda: int(time.time()))
    """When the catalogue was made, in seconds since the epoch; shown as each model's `created`."""

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
        """Return the model of this exact name; None if there is none."""
        return next((model for model in self.models if model.name == name), None)

    def resolve_model(self, name: str) -> ServedModel | None:
        """Return the model of this name, else the worker of this id, else the model of this alias.

        Return None if there is none of the three.
        """
        found = self._find_named(name)
        if found is None and (target := self.aliases.find(name)):
            found = self._find_named(target)
        return found

    def _find_named(self, name: str) -> ServedModel | None:
        """Return the model of this name, else the worker of this id."""
        return self.find_model(name) or self.find_model(WORKER_PREFIX + name)

    def _check_alias(self, alias: str, name: str) -> None:
        """Raise ConfigError unless the alias is free and the model exists and answers."""
        named, target = self._find_named(alias), self._find_named(name)
        if named is not None:
            reason = f"it is the name of {named.name}; choose another alias"
        elif name in self.unavailable_models:
            reason = f"{name} is not served: {self.unavailable_models[name]}"
        elif target is None:
            known = suggest_names(name, (model.name for model in self.models))
            reason = f"there is no model {name!r}; {known}"
        elif target.embeds:
            reason = f"{target.name} is an embedding model, which gives no answers"
        else:
            return
        raise ConfigError(f"aliases.{alias}: {reason}")

    async def load_model(self, name: str) -> None:
        """Load the method of the model of this name or alias, if it has one that is not loaded yet.

        Raises:
            ConfigError: the method cannot be loaded.
        """
        # Again if the settings were reloaded meanwhile.
        while (model := self.resolve_model(name)) is not None and model.load is not None:
            loaded = model.with_method(await anyio.to_thread.run_sync(model.load))
            self.models = tuple(loaded if other is model else other for other in self.models)

    @property
    def known_names(self) -> KnownNames:
        """The models, also unavailable ones, and the workers that keys may name in their limits."""
        workers = dict.fromkeys(w.id for m in (self, *self.models) for w in m.pool)
        names = (*(model.name for model in self.models), *self.unavailable_models)
        return KnownNames(models=names, workers=tuple(workers))

    def replace_by(self, other: Catalogue) -> None:
        """Take over all fields of `other`; running requests finish with the old workers."""
        for attribute in fields(self):
            setattr(self, attribute.name, getattr(other, attribute.name))
