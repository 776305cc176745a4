"""The served models, and everything an app needs to answer with them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from batuta.baselines import Solver
from batuta.clients import Health
from batuta.core import Client, Conductor, Limits, Pool, Run, WorkerId
from batuta.engine import Patience
from batuta.errors import ConfigError
from batuta.gateway.crowd import Crowd, Traffic
from batuta.gateway.flight import Flights
from batuta.gateway.gate import Gate
from batuta.gateway.metrics import Metrics
from batuta.gateway.rate import LocalRates, Rates
from batuta.gateway.traces import Traces
from batuta.gateway.waiting import WaitingRoom
from batuta.jobs import Jobs, MemoryJobs
from batuta.policies import Policies
from batuta.solvers import best, single
from batuta.solvers.history import History
from batuta.store import Store

MINI = "batuta-mini"
ULTRA = "batuta-ultra"
WORKER = "worker/"
"""What the name of a worker that is served as it is begins with."""
MINI_LIMITS = Limits(steps=1, seconds=60)
ULTRA_LIMITS = Limits(seconds=15 * 60)
MOST_ROUNDS = 3
"""Rounds that a caller of a conducted model may ask for."""


@dataclass(frozen=True, slots=True)
class Served:
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
    most_rounds: int = 1
    """Rounds that a caller may ask for; `limits.rounds` are played unasked."""

    def __post_init__(self) -> None:
        if (self.conductor is None) == (self.solver is None):
            raise ValueError(f"{self.name} needs a conductor or a solver, and not both")

    def entry(self, created: int) -> dict[str, Any]:
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
    mini: Limits = MINI_LIMITS,
    ultra: Limits = ULTRA_LIMITS,
    most_rounds: int = MOST_ROUNDS,
) -> tuple[Served, ...]:
    """`batuta-mini`, `batuta-ultra` if there is a conductor, and every worker as `worker/<id>`."""
    models = [
        Served(MINI, best(), pool, mini, direct=True, description="The best worker of the pool.")
    ]
    if conductor is not None:
        text = "A workflow over the pool, written for each question."
        models.append(
            Served(ULTRA, conductor, pool, ultra, description=text, most_rounds=most_rounds)
        )
    models += [
        Served(
            f"{WORKER}{worker.id}",
            single(worker.id),
            pool.subset((worker.id,)),
            Limits(steps=1, seconds=ultra.seconds, unknown=ultra.unknown),
            direct=True,
            fallback=False,
            description=worker.description,
        )
        for worker in pool
    ]
    return tuple(models)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that a stream waits for things."""

    keep_alive: float = 10.0
    """Silence after which a comment is sent."""
    write: float = 60.0
    """How long a reader may leave what was written unread before it is cut off."""


@dataclass(frozen=True, slots=True)
class Showcase:
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
class Orchestra:
    """What an app serves: workers, models, and where their runs are kept.

    It owns none of them: clients and store are opened and closed by whoever gives them.
    """

    def __init__(
        self,
        pool: Pool,
        clients: Mapping[WorkerId, Client],
        served: Iterable[Served],
        *,
        store: Store | None = None,
        jobs: Jobs | None = None,
        timing: Timing | None = None,
        traffic: Traffic | None = None,
        traces: Traces | None = None,
        hosts: Iterable[str] = (),
        absent: Mapping[str, str] | None = None,
        showcase: Showcase | None = None,
        gate: Gate | None = None,
        rates: Rates | None = None,
        health: Mapping[WorkerId, Health] | None = None,
        patience: Patience | None = None,
        policies: Policies | None = None,
    ) -> None:
        """Learns who plays.

        Args:
            pool: every worker.
            clients: how each of them is called.
            served: the models; see `served_models`.
            store: keeps the runs; None: nothing is kept.
            jobs: plays what runs in the background; None: as long as the process lives.
            timing: of streams.
            traffic: how much is taken on at the same time.
            traces: where the spans of runs go; None: nowhere.
            hosts: names under which the server is reached, besides those of the loopback.
            absent: models that could be served, and what to do for it.
            showcase: what the web page shows beside the runs.
            gate: tells who asks; None: everybody is the local tenant.
            rates: counts what keys use; None: in memory.
            health: how workers do, for those that are watched.
            patience: how long a step may take before another worker is asked.
            policies: what questions, replies between agents and answers must pass.

        Raises:
            ConfigError: two models have one name, there is none, or a worker has no client.
        """
        self.pool = pool
        self.clients = clients
        self.store = store
        self.jobs = jobs or MemoryJobs()
        self.timing = timing or Timing()
        self.hosts = frozenset(hosts)
        self.absent = absent or {}
        self.showcase = showcase or Showcase()
        self.gate = gate or Gate()
        self.rates = rates or LocalRates()
        self.health = health or {}
        self.patience = patience or Patience()
        self.policies = policies or Policies()
        self.crowd = Crowd(traffic or Traffic())
        """Who is served, and who waits."""
        self.metrics = Metrics(self._standing, lambda: self.health)
        self._traces = traces
        self.waiting = WaitingRoom(store)
        """The runs that wait for their callers' tools."""
        self.flights = Flights()
        """The runs that are going on."""
        self.created = int(time.time())
        models = tuple(served)
        self._models = {model.name: model for model in models}
        _check(pool, clients, models)

    @property
    def models(self) -> tuple[Served, ...]:
        """The served models, in the order in which they are listed."""
        return tuple(self._models.values())

    def recast(self, other: Orchestra) -> None:
        """Plays from now on with the cast of `other`; what has begun ends with the old one."""
        self.pool, self.clients, self._models = other.pool, other.clients, other._models
        self.absent, self.showcase, self.created = other.absent, other.showcase, other.created
        self.health, self.patience, self.policies = other.health, other.patience, other.policies

    def ran(self, run: Run, tenant: str) -> None:
        """Counts and traces a run that has ended."""
        self.metrics.ran(run, tenant)
        if self._traces is not None:
            self._traces.ran(run, tenant)

    def _standing(self) -> dict[str, tuple[str, float]]:
        """What the metrics say of this moment."""
        crowd, store = self.crowd, self.store
        now: dict[str, tuple[str, float]] = {
            "running": ("Requests being answered.", crowd.running),
            "waiting": ("Requests in the queue.", crowd.waiting),
            "turned_away_total": ("Requests for which there was no place.", crowd.turned_away),
        }
        if store is not None:
            now["unwritten_runs"] = ("Runs that wait to be written.", store.waiting)
            now["lost_runs_total"] = ("Runs that the database refused.", store.lost)
        return now

    def find(self, name: str) -> Served | None:
        """The model served under that name."""
        return self._models.get(name)


def _check(pool: Pool, clients: Mapping[WorkerId, Client], models: tuple[Served, ...]) -> None:
    if not models:
        raise ConfigError("no model is served: give the server at least one")
    if len({model.name for model in models}) != len(models):
        raise ConfigError("two served models have the same name")
    for worker in (worker for members in (pool, *(m.pool for m in models)) for worker in members):
        if worker.id not in clients:
            raise ConfigError(f"worker {worker.id} has no client")
