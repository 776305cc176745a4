"""Settings and the environment become a pool and its conductor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batuta.clients import (
    BreakerPolicy,
    HttpTransport,
    RedisConnections,
    WorkerHealth,
    WorkerSpec,
    discover_workers,
    open_client,
)
from batuta.clients.discovery import Discovery, discover_pool
from batuta.clients.openai.moderation import ModerationClient
from batuta.config.settings import (
    AnswerCacheSetting,
    ConductorSetting,
    OidcSetting,
    ServerSetting,
    Settings,
    WorkerSetting,
)
from batuta.config.settings_file import read_settings
from batuta.config.workers import open_moderation, open_worker_clients, worker_spec
from batuta.core import (
    Client,
    Conductor,
    Limits,
    Pool,
    Price,
    Sampling,
    Worker,
    WorkerId,
)
from batuta.core.worker import EMBEDDINGS, PROGRAM
from batuta.embedded.policy import ConductorCard
from batuta.engine import TimeoutPolicy
from batuta.environment import data_folder, read_variable
from batuta.errors import ConfigError
from batuta.guardrails import Guardrails
from batuta.guardrails.settings import build_guardrails
from batuta.language import PromptOptions
from batuta.solvers import LLMConductor
from batuta.solvers.draft_breaker import DRAFT_BREAKER
from batuta.solvers.open_conductor import PROMPTED, open_conductor, open_trained
from batuta.solvers.prompted import ConductorOptions, prompted_conductor

DEFAULT_FILE = "batuta.toml"
REHEARSAL_POOL = "rehearsal"
WORLD2_POOL = "world2"
DISCOVER_POOL = "discover"
HAND_WRITTEN_CONDUCTOR = "hand-written"
CONDUCTOR = WorkerId("conductor")
"""The id of a conductor that is no worker, and of how its drafts do in `LoadedConfig.health`."""
NO_MODELS = (
    "no model was found: set OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, OPENROUTER_API_KEY "
    "or DEEPSEEK_API_KEY, or start Ollama, vLLM, SGLang, llama.cpp or LM Studio; to try the "
    "simulated orchestra without a model: --pool rehearsal"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A pool that can be played and who conducts it."""

    source: str
    """Where it comes from, for people to read."""
    pool: Pool
    clients: Mapping[WorkerId, Client]
    conductor: Conductor
    limits: Limits
    mini: Conductor | None = None
    """Who answers as batuta-mini; None: the best worker."""
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
    guardrails: Guardrails = field(default_factory=Guardrails)
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


def store_target(environ: Mapping[str, str] = os.environ) -> str:
    """The database of runs: BATUTA_STORE (a path or a URL), or a file in the data folder.

    Raises:
        ConfigError: BATUTA_STORE_FILE names a file that cannot be read.
    """
    return read_variable(environ, "BATUTA_STORE") or str(data_folder(environ) / "runs.db")


def redis_target(server: ServerSetting, environ: Mapping[str, str] = os.environ) -> str:
    """Where the limits of several processes are counted: BATUTA_REDIS, else the setting.

    Raises:
        ConfigError: BATUTA_REDIS_FILE names a file that cannot be read.
    """
    return read_variable(environ, "BATUTA_REDIS") or server.redis


def jobs_target(environ: Mapping[str, str] = os.environ) -> str:
    """The database of background jobs: that of the runs, or beside their file one of its own."""
    store = store_target(environ)
    return store if "://" in store else str(Path(store).with_name("jobs.db"))


async def load_config(
    http: HttpTransport,
    *,
    pool: str | None = None,
    conductor: str | None = None,
    environ: Mapping[str, str] = os.environ,
    time_scale: float | None = None,
    rehearses: bool = False,
) -> LoadedConfig:
    """The pool and conductor that `pool` names, or the first there is.

    Args:
        http: the session of its clients.
        pool: `rehearsal`, `rehearsal:shifted` (the same after a change of its workers),
            `world2[:SEED[:COUNT]]` (simulated workers drawn by a seed), `discover` (keys and
            local servers), or a TOML file. None: the file BATUTA_CONFIG
            names, else `batuta.toml` here, else what the environment's keys and base URLs give,
            else the local servers.
        conductor: overrides the file's: a worker's id, `best`, `vote`, `plan-solve-verify`,
            `single/<id>`, `chain/<id>><id>` (workers in a row), or `hand-written` (rehearsal only).
        environ: where keys and overrides are looked up.
        time_scale: how slow the rehearsal's workers are, 1.0 being a natural pace.
        rehearses: whether the rehearsal plays where no pool is named and there is no model.

    Raises:
        ConfigError: no such pool, worker or conductor, a key is missing, or there is no model.
    """
    if pool is None:
        pool = environ.get("BATUTA_CONFIG") or (
            DEFAULT_FILE if Path(DEFAULT_FILE).is_file() else None
        )
        if not pool:
            found = await discover_pool(environ, http)
            if not found.specs and not found.silent and rehearses:
                return rehearsal_config(conductor, time_scale)
            return _load_discovered(found, conductor, http, environ)
    kind, _, world = pool.partition(":")
    if kind == REHEARSAL_POOL:
        return rehearsal_config(conductor, time_scale, world)
    if kind == WORLD2_POOL:
        return world2_config(pool, conductor)
    if pool == DISCOVER_POOL:
        found = await discover_workers(environ, http)
        if not found:
            raise ConfigError(NO_MODELS)
        source = "what was found here"
        return _build_config(
            source, found, settings=Settings(), conductor=conductor, http=http, environ=environ
        )
    return await _load_file(Path(pool), conductor, http, environ)


def _load_discovered(
    found: Discovery, conductor: str | None, http: HttpTransport, environ: Mapping[str, str]
) -> LoadedConfig:
    """What was set in the environment; where nothing was, the local servers.

    Raises:
        ConfigError: there is no model, or a server that the environment names does not answer.
    """
    asked = tuple(spec for spec in found.specs if spec not in found.unasked)
    if found.silent and not asked:
        names = " and ".join(found.silent)
        raise ConfigError(f"no server answers at {names}: start it, or unset the variable")
    if not found.specs:
        raise ConfigError(NO_MODELS)
    source = "the environment's keys and addresses" if asked else "the servers of this machine"
    return _build_config(
        source,
        asked or found.specs,
        settings=Settings(),
        conductor=conductor,
        http=http,
        environ=environ,
    )


async def _load_file(
    path: Path, conductor: str | None, http: HttpTransport, environ: Mapping[str, str]
) -> LoadedConfig:
    settings = read_settings(path, Settings)
    if settings.workers:
        specs = tuple(worker_spec(worker, environ) for worker in settings.workers)
    else:
        specs = await discover_workers(environ, http)
    if not specs:
        raise ConfigError(f"{path} names no workers, and {NO_MODELS}")
    settings = settings.resolve_folders(path.parent)
    assembled = _build_config(
        str(path), specs, settings=settings, conductor=conductor, http=http, environ=environ
    )
    known = settings.baselines
    return replace(
        assembled,
        history=path.parent / known.history if known.history else None,
        cascade=path.parent / known.cascade if known.cascade else None,
        checker=known.checker,
    )


def _build_config(
    source: str,
    specs: tuple[WorkerSpec, ...],
    settings: Settings,
    conductor: str | None,
    http: HttpTransport,
    *,
    environ: Mapping[str, str] = os.environ,
) -> LoadedConfig:
    embedders = tuple(spec.worker for spec in specs if EMBEDDINGS in spec.worker.tags)
    if len(embedders) == len(specs):
        raise ConfigError(f"{source} has no worker that answers: those that embed answer nothing")
    try:
        Pool(tuple(spec.worker for spec in specs))  # all ids differ
        pool = Pool(tuple(spec.worker for spec in specs if spec.worker not in embedders))
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None
    resilience = settings.resilience
    breaking = BreakerPolicy(resilience.breaker_failures, resilience.breaker_pause_s)
    health = {spec.worker.id: WorkerHealth(breaking) for spec in specs}
    if all(PROGRAM in worker.tags for worker in pool):
        raise ConfigError(f"{source} has no language model: a worker that runs code needs one")
    shared = _shared_limits(settings.server, http, environ)
    clients = open_worker_clients(specs, http, health, shared)
    drafts = settings.conductor
    cast = _Conductors(
        pool=pool,
        clients=clients,
        setting=drafts,
        http=http,
        environ=environ,
        health=WorkerHealth(BreakerPolicy(drafts.breaker_questions, drafts.breaker_pause_s)),
    )
    limits, mini = settings.limits, settings.mini.name
    health[CONDUCTOR] = cast.health
    return LoadedConfig(
        source=source,
        pool=pool,
        clients=clients,
        conductor=cast.ultra(conductor or settings.ultra.name),
        limits=Limits(
            steps=limits.max_steps,
            rounds=limits.max_rounds or 1,
            tokens=limits.max_tokens,
            usd=limits.max_cost_usd,
            seconds=limits.deadline_s,
            unknown=Price(**limits.unknown_price.model_dump()),
        ),
        mini=cast.named(mini) if mini else None,
        embedders=embedders,
        health=health,
        timeouts=TimeoutPolicy(resilience.step_timeout_s, resilience.hedge_s),
        guardrails=build_guardrails(settings.policies),
        max_rounds=limits.max_rounds,
        server=settings.server,
        answer_cache=settings.answer_cache,
        moderation=open_moderation(settings.moderation, http, environ),
        oidc=settings.oidc,
    )


def _shared_limits(
    server: ServerSetting, http: HttpTransport, environ: Mapping[str, str]
) -> RedisConnections | None:
    """Where the providers' limits of all processes are counted; None: each has its own."""
    url, processes = redis_target(server, environ), server.replicas
    if not url:
        return None
    return http.companion(f"{processes} {url}", lambda: RedisConnections(url, processes))


def rehearsal_config(
    conductor: str | None = None, time_scale: float | None = None, world: str = ""
) -> LoadedConfig:
    """The embedded rehearsal: simulated workers, offline.

    Raises:
        ConfigError: no such conductor, or no such world.
    """
    from batuta.rehearsal import (  # noqa: PLC0415 - only when played
        CONDUCTOR_WORKER,
        HandWrittenClient,
        rehearsal_clients,
        rehearsal_pool,
        shipped_policy_folder,
    )
    from batuta.rehearsal.pools import WORLD_PROFILES  # noqa: PLC0415 - same

    if world not in WORLD_PROFILES:
        known = ", ".join(
            f"{REHEARSAL_POOL}:{name}" if name else REHEARSAL_POOL for name in WORLD_PROFILES
        )
        raise ConfigError(f"there is no pool {REHEARSAL_POOL}:{world}; choose one of: {known}")
    players = rehearsal_clients(time_scale=1.0 if time_scale is None else time_scale, world=world)
    workers = rehearsal_pool(world)
    if conductor is None:
        chosen: Conductor = load_trained_conductor(shipped_policy_folder())
    elif conductor == HAND_WRITTEN_CONDUCTOR:
        model = HandWrittenClient() if time_scale is None else HandWrittenClient(time_scale)
        chosen = LLMConductor(name="rehearsal/hand-written", client=model, worker=CONDUCTOR_WORKER)
    else:
        chosen = _Conductors(pool=workers, clients=players).named(str(conductor))
    after = " after the shift" if world else ""
    source = f"the rehearsal{after} (simulated workers)"
    return LoadedConfig(
        source=source,
        pool=workers,
        clients=players,
        conductor=chosen,
        limits=Limits(),
        simulated=True,
    )


def world2_config(source: str, conductor: str | None = None) -> LoadedConfig:
    """Simulated workers of world 2, drawn by the seed that the source names.

    Raises:
        ConfigError: no such conductor, or the source says something else.
    """
    from batuta.rehearsal.world2 import (  # noqa: PLC0415 - only when played
        parse_world2_source,
        world2_clients,
        world2_pool,
    )

    drawn = parse_world2_source(source)
    if drawn is None:
        raise ConfigError(
            f"there is no pool {source}; write world2, world2:SEED or world2:SEED:COUNT, "
            "such as world2:12:7, with at most 2000 workers"
        )
    seed, count = drawn
    pool, players = world2_pool(seed, count), world2_clients(seed, count)
    cast = _Conductors(pool=pool, clients=players)
    return LoadedConfig(
        source=f"world 2, {count} simulated workers of seed {seed}",
        pool=pool,
        clients=players,
        conductor=cast.named(conductor or "best"),
        limits=Limits(),
        simulated=True,
    )


def load_trained_conductor(folder: Path) -> LLMConductor:
    """The conductor that was trained into that folder.

    Raises:
        ConfigError: the folder cannot be used.
    """
    return open_trained(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conductors:
    """Opens conductors by name, over one pool."""

    pool: Pool
    clients: Mapping[WorkerId, Client]
    setting: ConductorSetting = ConductorSetting()
    http: HttpTransport | None = None
    """None: only workers of the pool conduct."""
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    health: WorkerHealth = field(default_factory=lambda: WorkerHealth(DRAFT_BREAKER))

    def ultra(self, name: str | None) -> Conductor:
        """The conductor that was named, else the settings', else the best worker's model.

        Raises:
            ConfigError: it cannot be had.
        """
        if name is None and self.setting.model and self.http is not None:
            return self._apart(self.http)
        return self.named(name or self.setting.worker or self.pool.ranked()[0].id)

    def named(self, name: str) -> Conductor:
        """The conductor of that name, or of that folder.

        Raises:
            ConfigError: there is none, or its folder cannot be used.
        """
        return open_conductor(name, self.pool, self.clients, self._options())

    def _apart(self, http: HttpTransport) -> LLMConductor:
        """A model that is no worker, as it was trained if it has a card."""
        chosen = self.setting.model_dump(
            include={"model", "provider", "base_url", "key_env", "tags", "context_window",
                     "price", "concurrency", "rpm", "tpm", "extra_body"}
        )  # fmt: skip
        spec = worker_spec(WorkerSetting(id=CONDUCTOR, **chosen), self.environ)
        card = ConductorCard.read(Path(self.setting.card)) if self.setting.card else None
        if card is not None:
            card.check_prompt()
            card.check_pool(worker.id for worker in self.pool)
        client = open_client(spec, http, health=WorkerHealth())
        name = f"{PROMPTED}{card.name if card else spec.worker.model}"
        return prompted_conductor(name, spec.worker, client, self._options(card))

    def _options(self, card: ConductorCard | None = None) -> ConductorOptions:
        """What the settings and the card say; the settings' sampling goes before the card's."""
        said = self.setting
        sampling = Sampling(
            temperature=said.temperature, max_tokens=said.max_tokens, effort=said.effort
        )
        return ConductorOptions(
            rendering=card.rendering
            if card
            else PromptOptions(
                descriptions=said.descriptions, prices=said.prices, examples=said.examples
            ),
            sampling=sampling.with_defaults(card.sampling) if card else sampling,
            rounds=card.rounds if card else None,
            health=self.health,
        )


def describe_config(config: LoadedConfig) -> dict[str, Any]:
    """The orchestra in words, for people and for `--json`."""
    return {
        "source": config.source,
        "simulated": config.simulated,
        "conductor": config.conductor.name,
        "workers": [str(worker.id) for worker in config.pool],
    }
