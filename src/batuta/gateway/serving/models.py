"""The served models, and everything an app needs to answer with them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from batuta.baselines import Solver
from batuta.clients import WorkerHealth
from batuta.clients.openai.moderation import ModerationClient
from batuta.core import Client, Conductor, Limits, Pool, Run, WorkerId
from batuta.engine import TimeoutPolicy
from batuta.errors import ConfigError
from batuta.gateway.access.authenticate import Authenticator
from batuta.gateway.access.oidc import OidcClient
from batuta.gateway.access.rate_limit import LocalRateLimiter, RateLimiter
from batuta.gateway.http.disconnect import RequestScopes
from batuta.gateway.http.overload import ConcurrencyLimiter, ConcurrencyLimits
from batuta.gateway.serving.answer_cache import RepeatedAnswers
from batuta.gateway.serving.pending_tool_runs import PendingToolRuns
from batuta.gateway.telemetry.metrics import Metrics
from batuta.gateway.telemetry.otlp import RunSpanExporter
from batuta.guardrails import Guardrails
from batuta.jobs import Jobs, MemoryJobs
from batuta.solvers import LLMConductor, best_single_worker, single_worker
from batuta.solvers.history import History
from batuta.store import Store

MINI_MODEL = "batuta-mini"
ULTRA_MODEL = "batuta-ultra"
WORKER_PREFIX = "worker/"
"""What the name of a worker that is served as it is begins with."""
MINI_LIMITS = Limits(steps=1, seconds=60)
ULTRA_LIMITS = Limits(seconds=15 * 60)
MAX_ROUNDS = 3
"""Rounds that a caller of a conducted model may ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A name that callers may ask for, and who answers under it."""

    name: str
    conductor: Conductor | None
    """Who writes the workflow; None: `solver` answers."""
    pool: Pool
    limits: Limits = field(default_factory=Limits)
    """The most a run may spend; a caller can lower it."""
    direct: bool = False
    """One worker is passed through: its reasoning is shown as its own, its errors as errors of
    the request where they are, and no progress is told."""
    fallback: bool = True
    """Whether another worker may answer when the planned one cannot."""
    description: str = ""
    solver: Solver | None = None
    """A method that chooses among replies, in a conductor's place."""
    calls: int | None = None
    """Calls of workers that the method makes; a caller cannot have it with fewer."""
    max_rounds: int = 1
    """Rounds that a caller may ask for; `limits.rounds` are played unasked."""

    def __post_init__(self) -> None:
        if (self.conductor is None) == (self.solver is None):
            raise ValueError(f"{self.name} needs a conductor or a solver, and not both")

    def model_object(self, created: int) -> dict[str, Any]:
        """The model as GET /v1/models shows it, to clients of OpenAI and of Anthropic alike."""
        return {
            "id": self.name,
            "object": "model",
            "type": "model",
            "display_name": self.name,
            "created": created,
            "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
            "owned_by": "batuta",
            "description": self.description,
        }


def served_models(
    pool: Pool,
    conductor: Conductor | None = None,
    *,
    mini_conductor: Conductor | None = None,
    mini: Limits = MINI_LIMITS,
    ultra: Limits = ULTRA_LIMITS,
    max_rounds: int = MAX_ROUNDS,
) -> tuple[ServedModel, ...]:
    """`batuta-mini`, `batuta-ultra` if there is a conductor, and every worker as `worker/<id>`."""
    models = [_mini_model(pool, mini_conductor, mini, ultra)]
    if conductor is not None:
        text = _describe_conductor(conductor, pool)
        models.append(
            ServedModel(
                name=ULTRA_MODEL,
                conductor=conductor,
                pool=pool,
                limits=ultra,
                description=text,
                max_rounds=max_rounds,
            )
        )
    models += [
        ServedModel(
            name=f"{WORKER_PREFIX}{worker.id}",
            conductor=single_worker(worker.id),
            pool=pool.subset((worker.id,)),
            limits=Limits(steps=1, seconds=ultra.seconds, unknown=ultra.unknown),
            direct=True,
            fallback=False,
            description=worker.description,
        )
        for worker in pool
    ]
    return tuple(models)


def _mini_model(
    pool: Pool, conductor: Conductor | None, limits: Limits, ultra: Limits
) -> ServedModel:
    """The best worker, or the system that the settings name."""
    if conductor is None:
        text = f"The best worker of the pool, {pool.ranked()[0].id}, without a workflow."
        return ServedModel(
            name=MINI_MODEL,
            conductor=best_single_worker(),
            pool=pool,
            limits=limits,
            direct=True,
            description=text,
        )
    if isinstance(conductor, LLMConductor):
        return ServedModel(
            name=MINI_MODEL,
            conductor=conductor,
            pool=pool,
            limits=ultra,
            description=_describe_conductor(conductor, pool),
        )
    return ServedModel(
        name=MINI_MODEL,
        conductor=conductor,
        pool=pool,
        limits=limits,
        direct=True,
        description=_describe_conductor(conductor, pool),
    )


def _describe_conductor(conductor: Conductor, pool: Pool) -> str:
    """Who writes the workflow and what it is told of the workers."""
    told = ""
    if isinstance(conductor, LLMConductor) and not conductor.rendering.compact:
        shown = conductor.rendering
        told = ", shown their cards" if shown.descriptions else ", shown their numbers only"
        told += " and prices" if shown.prices else ""
    many = f"{len(pool)} worker{'' if len(pool) == 1 else 's'}"
    return f"A workflow for each question, by {conductor.name} over {many}{told}."


@dataclass(frozen=True, slots=True)
class StreamTimeouts:
    """Seconds that a stream waits for things."""

    keep_alive: float = 10.0
    """Silence after which a comment is sent."""
    write: float = 60.0
    """How long a reader may leave what was written unread before it is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """What the web page shows beside the runs."""

    source: str = ""
    """Where the pool comes from, in words."""
    simulated: bool = False
    """Whether its workers are programs and not language models."""
    examples: tuple[str, ...] = ()
    """Questions to begin with."""
    folders: tuple[Path, ...] = ()
    """Where training runs and evaluation reports are looked for, with the folders below."""
    history: History | None = None
    """Outcomes of the workers, by task family."""


@final
class ServerState:
    """What an app serves: workers, models, and where their runs are kept.

    It owns none of them: clients and store are opened and closed by whoever gives them.
    """

    def __init__(
        self,
        pool: Pool,
        clients: Mapping[WorkerId, Client],
        served_models: Iterable[ServedModel],
        *,
        store: Store | None = None,
        jobs: Jobs | None = None,
        stream_timeouts: StreamTimeouts | None = None,
        concurrency: ConcurrencyLimits | None = None,
        span_exporter: RunSpanExporter | None = None,
        hosts: Iterable[str] = (),
        unavailable_models: Mapping[str, str] | None = None,
        page_context: PageContext | None = None,
        authenticator: Authenticator | None = None,
        rate_limiter: RateLimiter | None = None,
        health: Mapping[WorkerId, WorkerHealth] | None = None,
        timeout_policy: TimeoutPolicy | None = None,
        guardrails: Guardrails | None = None,
        private_pictures: bool = False,
        answer_cache: RepeatedAnswers | None = None,
        moderation: ModerationClient | None = None,
        oidc: OidcClient | None = None,
    ) -> None:
        """Learns who plays.

        Args:
            pool: every worker.
            clients: how each of them is called.
            served_models: the models; see `served_models`.
            store: keeps the runs; None: nothing is kept.
            jobs: plays what runs in the background; None: as long as the process lives.
            stream_timeouts: of streams.
            concurrency: how much is taken on at the same time.
            span_exporter: where the spans of runs go; None: nowhere.
            hosts: names under which the server is reached, besides those of the loopback.
            unavailable_models: models that could be served, and what to do for it.
            page_context: what the web page shows beside the runs.
            authenticator: tells who asks; None: everybody is the local tenant.
            rate_limiter: counts what keys use; None: in memory.
            health: how workers do, for those that are watched.
            timeout_policy: how long a step may take before another worker is asked.
            private_pictures: whether addresses of pictures may be of private networks.
            guardrails: what questions, replies between agents and answers must pass.
            answer_cache: finds answers that are given again; None: none is.
            moderation: judges texts; None: there is no moderation here.
            oidc: the identity provider by which people sign in to the page; None: by keys alone.

        Raises:
            ConfigError: two models have one name, there is none, or a worker has no client.
        """
        self.pool = pool
        self.clients = clients
        self.store = store
        self.jobs = jobs or MemoryJobs()
        self.stream_timeouts = stream_timeouts or StreamTimeouts()
        self.hosts = frozenset(hosts)
        self.unavailable_models = unavailable_models or {}
        self.page_context = page_context or PageContext()
        self.authenticator = authenticator or Authenticator()
        self.rate_limiter = rate_limiter or LocalRateLimiter()
        self.health = health or {}
        self.timeout_policy = timeout_policy or TimeoutPolicy()
        self.guardrails = guardrails or Guardrails()
        self.private_pictures = private_pictures
        self.answer_cache = answer_cache
        self.moderation = moderation
        self.oidc = oidc
        self.limiter = ConcurrencyLimiter(concurrency or ConcurrencyLimits())
        """Who is served, and who waits."""
        self.metrics = Metrics(self._gauges, lambda: self.health)
        self._span_exporter = span_exporter
        self.pending_tool_runs = PendingToolRuns(store)
        """The runs that wait for their callers' tools."""
        self.request_scopes = RequestScopes()
        """The runs that are going on."""
        self.created = int(time.time())
        models = tuple(served_models)
        self._models = {model.name: model for model in models}
        _check_models(pool, clients, models)

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The served models, in the order in which they are listed."""
        return tuple(self._models.values())

    def reload(self, other: ServerState) -> None:
        """Plays from now on with the cast of `other`; what has begun ends with the old one."""
        self.pool, self.clients, self._models = other.pool, other.clients, other._models
        self.unavailable_models, self.page_context, self.created = (
            other.unavailable_models,
            other.page_context,
            other.created,
        )
        self.health, self.timeout_policy, self.guardrails = (
            other.health,
            other.timeout_policy,
            other.guardrails,
        )
        self.moderation = other.moderation

    def record_run(self, run: Run, tenant: str) -> None:
        """Counts and traces a run that has ended."""
        self.metrics.count_run(run, tenant)
        if self._span_exporter is not None:
            self._span_exporter.export_run(run, tenant)

    def _gauges(self) -> dict[str, tuple[str, float]]:
        """What the metrics say of this moment."""
        crowd, store = self.limiter, self.store
        now: dict[str, tuple[str, float]] = {
            "running": ("Requests being answered.", crowd.running),
            "waiting": ("Requests in the queue.", crowd.waiting),
            "turned_away_total": ("Requests for which there was no place.", crowd.rejected),
        }
        cache = self.answer_cache
        if cache is not None:
            now["answers_repeated_total"] = ("Answers that were given again.", cache.hits)
            now["answers_not_found_total"] = ("Answers that might have been.", cache.misses)
        if store is not None:
            now["unwritten_runs"] = ("Runs that wait to be written.", store.pending_count)
            now["lost_runs_total"] = ("Runs that the database refused.", store.lost_count)
        return now

    def find_model(self, name: str) -> ServedModel | None:
        """The model served under that name."""
        return self._models.get(name)


def _check_models(
    pool: Pool, clients: Mapping[WorkerId, Client], models: tuple[ServedModel, ...]
) -> None:
    if not models:
        raise ConfigError("no model is served: give the server at least one")
    if len({model.name for model in models}) != len(models):
        raise ConfigError("two served models have the same name")
    for worker in (worker for members in (pool, *(m.pool for m in models)) for worker in members):
        if worker.id not in clients:
            raise ConfigError(f"worker {worker.id} has no client")
