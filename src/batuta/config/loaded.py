"""What settings and the environment become: a pool, its clients and who conducts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batuta.clients import WorkerHealth
from batuta.clients.openai.moderation import ModerationClient
from batuta.config.settings import AnswerCacheSetting, ExploreSetting, OidcSetting, ServerSetting
from batuta.core import Client, Conductor, Limits, Pool, Worker, WorkerId
from batuta.engine import TimeoutPolicy
from batuta.guardrails import NO_GUARDRAILS, Guardrails


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A pool that can be used, and who conducts it."""

    source: str
    """Where it comes from, for people to read."""
    pool: Pool
    clients: Mapping[WorkerId, Client]
    conductor: Conductor
    limits: Limits
    mini: Conductor | None = None
    """Who answers as batuta-mini; None: the best worker."""
    explore: ExploreSetting | None = None
    """What batuta-mini may try beside it; None: nothing."""
    simulated: bool = False
    """True for the rehearsal: its workers are programs, not language models."""
    history: Path | None = None
    """Outcomes of the workers, for the served baselines that learn."""
    cascade: Path | None = None
    """The folder of the cascade that is served."""
    checker: str | None = None
    """The worker that checks its answers."""
    embedders: tuple[Worker, ...] = ()
    """Workers that turn texts into vectors; they are in no pool, and `clients` has theirs too."""
    health: Mapping[WorkerId, WorkerHealth] = field(default_factory=dict[WorkerId, WorkerHealth])
    """How each worker does; nobody is watched in the rehearsal."""
    timeouts: TimeoutPolicy = TimeoutPolicy()
    guardrails: Guardrails = NO_GUARDRAILS
    max_rounds: int | None = None
    """Rounds that a caller may ask for; None: the API's own limit."""
    server: ServerSetting = ServerSetting()
    """What a server over it takes on."""
    answer_cache: AnswerCacheSetting = AnswerCacheSetting()
    """Which answers are given again."""
    moderation: ModerationClient | None = None
    """Who judges texts, if somebody does."""
    oidc: OidcSetting | None = None
    """By whom people sign in to the page."""
    notes: tuple[str, ...] = ()
    """A sentence for each setting that another one goes before, for people to read."""


def describe_config(config: LoadedConfig) -> dict[str, Any]:
    """The orchestra in words, for people and for `--json`."""
    return {
        "source": config.source,
        "simulated": config.simulated,
        "conductor": config.conductor.name,
        "workers": [str(worker.id) for worker in config.pool],
    }
