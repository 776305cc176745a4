"""The result of reading settings and environment: a pool, its clients and its conductors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from batuta.clients import WorkerHealth, WorkerSpec
from batuta.clients.openai.moderation import ModerationClient
from batuta.clients.webhook import Webhook
from batuta.config.aliases import Aliases
from batuta.config.conductors import Preset
from batuta.config.settings import (
    AnswerCacheSetting,
    ExploreSetting,
    OidcSetting,
    ServerSetting,
    SessionsSetting,
)
from batuta.config.tool_settings import FilesSetting
from batuta.config.trust_settings import AuditSetting
from batuta.core import Client, Conductor, Limits, Pool, Worker, WorkerId
from batuta.core.server_tools import ServerTools
from batuta.engine import TimeoutPolicy
from batuta.engine.confidence import ConfidenceModel
from batuta.guardrails import NO_GUARDRAILS, Guardrails
from batuta.language.approval_rules import ApprovalRule
from batuta.language.plan_rules import NO_RULES, PlanRules


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A pool that is ready to use, and its conductors."""

    source: str
    """Where the workers come from, as people read it: a file, or what was found."""
    pool: Pool
    clients: Mapping[WorkerId, Client]
    specs: tuple[WorkerSpec, ...] = ()
    """The settings of the workers; empty for simulated workers."""
    conductor: Conductor
    """The conductor that answers as batuta-ultra."""
    limits: Limits
    mini: Conductor | None = None
    """The conductor that answers as batuta-mini; None: the best worker."""
    explore: ExploreSetting | None = None
    """How often batuta-mini explores alternatives, and its budget; None: never."""
    simulated: bool = False
    """True for a simulated pool: its workers are programs, not language models."""
    examples: tuple[str, ...] = ()
    """Questions that simulated workers can answer; empty: not known."""
    history: Path | None = None
    """File of workers' outcomes, for the baselines that learn from it; None: there is none."""
    cascade: Path | None = None
    """The folder of the served cascade; None: there is none."""
    checker: str | None = None
    """The worker that checks the cascade's answers; None: not set."""
    sessions: SessionsSetting = SessionsSetting()
    """How the sessions of coding agents are served."""
    presets: tuple[Preset, ...] = ()
    """The models that the settings define, and the built-in patterns."""
    aliases: Aliases = Aliases()
    """Other names of served models."""
    embedders: tuple[Worker, ...] = ()
    """Embedding models; they are not in `pool`, but their clients are in `clients`."""
    health: Mapping[WorkerId, WorkerHealth] = field(default_factory=dict[WorkerId, WorkerHealth])
    """The health of each worker, and the breaker for drafts under `CONDUCTOR`; empty for simulated
    workers."""
    timeouts: TimeoutPolicy = TimeoutPolicy()
    guardrails: Guardrails = NO_GUARDRAILS
    plan_rules: PlanRules = NO_RULES
    """Rules that workflows must keep, of all tenants and tags."""
    approvals: tuple[ApprovalRule, ...] = ()
    """Rules that select the plans that need a person's approval, of all tenants."""
    approval_webhook: Webhook | None = None
    """The webhook that is notified of plans that wait for approval; None: not set."""
    confidence: ConfidenceModel | None = None
    """The model that gives answers their probability, or collects samples for it; None: neither."""
    refuses_unsure: bool = False
    """Whether an answer below the requested confidence is refused; if not, it is marked."""
    audit: AuditSetting = AuditSetting()
    """How long the audit trail is kept."""
    digest: str = ""
    """The SHA-256 of the settings file in hexadecimal; empty: there is no file."""
    terms: str = ""
    """Timeouts, policies, plan rules and confidence samples as text, a part of the keys of measured
    results; empty: none is set."""
    max_rounds: int | None = None
    """Rounds that the settings set; None: those that the conductor needs or a request asks for."""
    server: ServerSetting = ServerSetting()
    """The settings of a server over this pool."""
    answer_cache: AnswerCacheSetting = AnswerCacheSetting()
    """Which answers are cached, and for how long."""
    moderation: ModerationClient | None = None
    """The client of the moderation provider; None: not set."""
    server_tools: ServerTools | None = None
    """The tools that models may call while they answer; None: there are none."""
    files: FilesSetting | None = None
    """Limits of uploaded files; None: files cannot be uploaded."""
    has_file_vectors: bool = False
    """Whether uploaded files are also searched by embeddings."""
    oidc: OidcSetting | None = None
    """The identity provider with which people sign in to the page; None: not set."""
    notes: tuple[str, ...] = ()
    """Sentences for people, about settings that have no effect, or less than may be expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlugin:
    """Pools of another package; the plugin's name is the first part of `--pool`."""

    open: Callable[[str, str | None, float | None], LoadedConfig]
    """Opens a pool from the value of `--pool`, the conductor's name (None: the pool's own) and the
    time scale (None: the pool's own); raises `ConfigError` if there is no such pool or conductor.
    """
    find: Callable[[Pool], str | None]
    """Returns the `--pool` value of a stored run's workers; None if they are of another pool."""
