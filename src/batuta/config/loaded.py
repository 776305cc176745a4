"""The result of reading settings and environment: a pool, its clients and its conductors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from batuta.clients import WorkerHealth
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
    """A pool that can be used, and who conducts it."""

    source: str
    """The source of the settings, for people to read."""
    pool: Pool
    clients: Mapping[WorkerId, Client]
    conductor: Conductor
    limits: Limits
    mini: Conductor | None = None
    """The conductor that answers as batuta-mini; None for the best worker."""
    explore: ExploreSetting | None = None
    """The alternatives that batuta-mini may try; None for none."""
    simulated: bool = False
    """True for the rehearsal: its workers are programs, not language models."""
    examples: tuple[str, ...] = ()
    """Questions that the workers can answer, where that is known."""
    history: Path | None = None
    """Outcomes of the workers, for the served baselines that learn."""
    cascade: Path | None = None
    """The folder of the cascade that is served."""
    checker: str | None = None
    """The worker that checks its answers."""
    sessions: SessionsSetting = SessionsSetting()
    """How the sessions of coding agents are served."""
    presets: tuple[Preset, ...] = ()
    """The models of the settings' own."""
    aliases: Aliases = Aliases()
    """The names that stand for served models."""
    embedders: tuple[Worker, ...] = ()
    """Workers that turn texts into vectors; they are in no pool, and `clients` has theirs too."""
    health: Mapping[WorkerId, WorkerHealth] = field(default_factory=dict[WorkerId, WorkerHealth])
    """How each worker does; nobody is watched in the rehearsal."""
    timeouts: TimeoutPolicy = TimeoutPolicy()
    guardrails: Guardrails = NO_GUARDRAILS
    plan_rules: PlanRules = NO_RULES
    """The rules say what no workflow may be, for any tenant and tag."""
    approvals: tuple[ApprovalRule, ...] = ()
    """The plans that somebody must approve before they are run, of any tenant."""
    approval_webhook: Webhook | None = None
    """It is told of plans that wait; None: nobody is."""
    confidence: ConfidenceModel | None = None
    """It states how sure answers are; None: nothing does."""
    refuses_unsure: bool = False
    """Whether an answer that is less sure than was asked for is refused, not marked."""
    audit: AuditSetting = AuditSetting()
    """How long the audit trail is kept."""
    digest: str = ""
    """The SHA-256 of the settings file in hexadecimal digits; empty: there is no file."""
    terms: str = ""
    """The settings of timeouts and policies as text, for the keys of measured results."""
    max_rounds: int | None = None
    """Rounds set in the settings; None: as many as the conductor needs, more if a request asks."""
    server: ServerSetting = ServerSetting()
    """The limits of a server over this pool."""
    answer_cache: AnswerCacheSetting = AnswerCacheSetting()
    """Which answers are given again."""
    moderation: ModerationClient | None = None
    """The client that judges texts, if there is one."""
    server_tools: ServerTools | None = None
    """The tools that models may call while they answer, if there are some."""
    files: FilesSetting | None = None
    """How much of uploaded files is kept; None: no files are."""
    has_file_vectors: bool = False
    """Whether uploaded files are also found by what their passages mean."""
    oidc: OidcSetting | None = None
    """The identity provider by which people sign in to the page."""
    notes: tuple[str, ...] = ()
    """A sentence for each setting that another one goes before, for people to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlugin:
    """Pools that another package brings, under the name that a `--pool` begins with."""

    open: Callable[[str, str | None, float | None], LoadedConfig]
    """Opens a pool from the text of `--pool`, the conductor's name and a pace; raises ConfigError.
    """
    find: Callable[[Pool], str | None]
    """Finds the `--pool` from which the workers of a stored run came; None if it is another one."""
