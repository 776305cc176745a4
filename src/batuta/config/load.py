"""Builds the pool and its conductors from the settings and the environment."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from batuta.clients import (
    BreakerPolicy,
    HttpTransport,
    RedisConnections,
    WorkerHealth,
    WorkerSpec,
)
from batuta.clients.discovery import Discovery, discover_pool
from batuta.clients.http_target import Secret
from batuta.clients.providers import LOCAL, PYTHON, find_provider
from batuta.clients.webhook import Webhook
from batuta.config.aliases import Aliases
from batuta.config.conductors import (
    CONDUCTOR,
    ConductorOpener,
    Preset,
    open_patterns,
    open_presets,
)
from batuta.config.loaded import LoadedConfig, PoolPlugin
from batuta.config.settings import (
    ConductorSetting,
    LimitsSetting,
    PresetLimits,
    ResilienceSetting,
    ServerSetting,
    Settings,
)
from batuta.config.settings_file import read_settings, read_top_level_names
from batuta.config.trust_settings import ConfidenceSetting
from batuta.config.worker_settings import WorkerSetting
from batuta.config.workers import (
    divide_limits,
    open_moderation,
    open_worker_clients,
    program_spec,
    worker_spec,
)
from batuta.core import Conductor, Limits, Pool, Price, Worker, WorkerId
from batuta.core.conductor import conductor_worker, needed_rounds
from batuta.core.formatting import join_words
from batuta.core.server_tools import ServerTools
from batuta.core.suggestions import find_similar
from batuta.core.worker import EMBEDDINGS, IMAGE
from batuta.engine import TimeoutPolicy
from batuta.engine.confidence import ConfidenceModel
from batuta.environment import data_folder, read_variable
from batuta.errors import ConfigError
from batuta.guardrails import NO_GUARDRAILS, Guardrails
from batuta.guardrails.settings import build_guardrails
from batuta.language.approval_rules import ApprovalRule
from batuta.language.plan_rules import NO_RULES, PlanRules
from batuta.local.pool import add_pulled, pulled_specs
from batuta.plugins import open_plugin, plugin_names

DEFAULT_FILE = "batuta.toml"
DISCOVER_POOL = "discover"
RULES = ("policies", "plan_rules", "approvals", "limits", "oidc")
"""The tables of a settings file that are named in a note if a pool ignores the file."""
DEMO_POOL = "rehearsal"
"""The plugin's pool of simulated workers that a server uses if no model is found."""
NO_MODELS = (
    "no model was found: set OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, OPENROUTER_API_KEY "
    "or DEEPSEEK_API_KEY, or start Ollama, vLLM, SGLang, llama.cpp or LM Studio; small models that "
    "run here without a key: --pool local; the simulated orchestra without a model: --pool "
    "rehearsal"
)


def store_target(environ: Mapping[str, str] = os.environ) -> str:
    """Return the database of runs: BATUTA_STORE (a path or a URL), or a file in the data folder.

    Raises:
        ConfigError: BATUTA_STORE_FILE names a file that cannot be read or is empty.
    """
    return read_variable(environ, "BATUTA_STORE") or str(data_folder(environ) / "runs.db")


def redis_target(server: ServerSetting, environ: Mapping[str, str] = os.environ) -> str:
    """Return the address of the Redis where processes share limits; empty: there is none.

    It is the value of BATUTA_REDIS, else the setting.

    Raises:
        ConfigError: BATUTA_REDIS_FILE names a file that cannot be read or is empty.
    """
    return read_variable(environ, "BATUTA_REDIS") or server.redis


def jobs_target(environ: Mapping[str, str] = os.environ) -> str:
    """Return the database of background jobs: the runs' database if it is a URL, else a file.

    The file is in the folder of the runs' database.

    Raises:
        ConfigError: BATUTA_STORE_FILE names a file that cannot be read or is empty.
    """
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
    processes: int = 1,
) -> LoadedConfig:
    """Return the pool and conductors that `pool` names, or the first source that exists.

    Args:
        http: the transport of the workers' clients.
        pool: `rehearsal`, `rehearsal:shifted` (the same after a change of its workers),
            `rehearsal:SEED[:COUNT]` and `world2[:SEED[:COUNT]]` (simulated workers drawn by a
            seed), `local[:NAME,NAME]` (pulled models and a worker that runs Python), `discover`
            (keys, local servers, pulled models), or a TOML file. None: the value of BATUTA_CONFIG,
            else `batuta.toml` here, else the models found by the environment's keys and base URLs,
            else those of local servers and the pulled models.
        conductor: the name or path of a conductor, as `open_conductor` takes it; in the
            rehearsal also `hand-written`. None: that of the file or plugin, else the best worker,
            prompted.
        environ: the environment variables, with keys and overrides.
        time_scale: how slow simulated workers are; 1.0 is a natural pace, 0 answers at once, None
            is the plugin's default.
        rehearses: whether to use the rehearsal if no pool is named, no model is found, and each
            server that the environment names answers.
        processes: number of processes that call these workers, each with its own configuration;
            without Redis each process gets an equal part of the providers' limits.

    Raises:
        ConfigError: the pool, a setting or the conductor cannot be used, a key is missing, no model
            is found, or a limit cannot be divided among the processes.
    """
    loading = _Loading(http=http, conductor=conductor, environ=environ, processes=processes)
    if pool is None:
        pool = environ.get("BATUTA_CONFIG") or (
            DEFAULT_FILE if os.path.lexists(DEFAULT_FILE) else None
        )
        if not pool:
            found = await find_workers(environ, http)
            if not found.specs and not found.silent and rehearses:
                return _open_plugged(DEMO_POOL, conductor, time_scale)
            return loading.use_discovered(found)
    kind, _, names = pool.partition(":")
    if kind in plugin_names("pool"):
        return _note_unread(_open_plugged(pool, conductor, time_scale), pool, environ)
    if kind == LOCAL:
        specs = _local_pool(names, environ)
        loaded = loading.build("this machine's own models (llama.cpp)", specs)
        return _note_unread(loaded, pool, environ)
    if pool == DISCOVER_POOL:
        specs = (await find_workers(environ, http)).specs
        return _note_unread(loading.build("what was found here", specs), pool, environ)
    exists = os.path.exists(pool)  # noqa: PTH110 - False for a name that is too long
    if not exists and (near := find_similar(kind, (*plugin_names("pool"), LOCAL, DISCOVER_POOL))):
        raise ConfigError(f"there is no file {pool}; did you mean {near}?")
    return await loading.read_file(Path(pool))


def _note_unread(loaded: LoadedConfig, pool: str, environ: Mapping[str, str]) -> LoadedConfig:
    """Add a note if there is a settings file with rules or limits, which this pool ignores."""
    files = [name for name in (environ.get("BATUTA_CONFIG"), DEFAULT_FILE) if name]
    file = next((name for name in files if Path(name).is_file()), None)
    written = set[str]() if file is None else read_top_level_names(Path(file))
    unread = [name for name in RULES if name in written]
    if not unread:
        return loaded
    names = join_words([f"[{name}]" for name in unread])
    note = f"{pool} is a pool without settings: {names} of {file} do not hold here"
    return replace(loaded, notes=(note, *loaded.notes))


async def find_workers(environ: Mapping[str, str], http: HttpTransport) -> Discovery:
    """Find the models that can be called from here: by API keys, on local servers, and pulled.

    Raises:
        ConfigError: a variable holds a key or a URL that cannot be used.
    """
    return add_pulled(await discover_pool(environ, http), environ)


def _local_pool(names: str, environ: Mapping[str, str]) -> tuple[WorkerSpec, ...]:
    """Return all pulled models, or the named ones, and a worker that runs Python.

    Raises:
        ConfigError: a named model is unknown or was not pulled, or no model was pulled.
    """
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    program = program_spec(WorkerSetting(id=PYTHON, model=PYTHON, provider=PYTHON))
    return (*pulled_specs(chosen, environ), program)


def _open_plugged(pool: str, conductor: str | None, time_scale: float | None) -> LoadedConfig:
    def use(plugin: PoolPlugin) -> LoadedConfig:
        return plugin.open(pool, conductor, time_scale)

    loaded = open_plugin("pool", pool.partition(":")[0], use)
    return replace(loaded, presets=open_patterns(loaded.pool, loaded.clients))


def find_plugged_pool(workers: Pool) -> str | None:
    """Return the `--pool` value with which a plugin opens these workers; None: no plugin does.

    The workers of a plugin's pool have the plugin's name as a tag.

    Raises:
        BatutaError: the plugin cannot be loaded.
    """
    tags = {tag for worker in workers for tag in worker.tags}
    name = next((name for name in plugin_names("pool") if name in tags), None)
    if name is None:
        return None

    def use(plugin: PoolPlugin) -> str | None:
        return plugin.find(workers)

    return open_plugin("pool", name, use)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loading:
    """Builds a configuration from any source of workers; see `load_config`."""

    http: HttpTransport
    conductor: str | None
    environ: Mapping[str, str]
    processes: int

    def use_discovered(self, found: Discovery) -> LoadedConfig:
        """Load the workers that the environment names, else those found on this machine.

        Raises:
            ConfigError: no model was found, or the environment names only servers that are silent.
        """
        named = tuple(spec for spec in found.specs if spec not in found.unasked)
        if found.silent and not named:
            names = join_words(found.silent)
            raise ConfigError(f"no server answers at {names}: start it, or unset the variable")
        source = "the environment's keys and addresses" if named else "the servers of this machine"
        return self.build(source, named or found.specs)

    async def read_file(self, path: Path) -> LoadedConfig:
        """Load a settings file.

        Raises:
            ConfigError: the file or one of its settings cannot be used, or it names no workers and
                no model was found.
        """
        settings = read_settings(path, Settings)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if settings.workers:
            enabled = [worker for worker in settings.workers if worker.enabled]
            if not enabled:
                raise ConfigError(f"{path}: every worker is switched off: one needs enabled = true")
            specs = tuple(worker_spec(worker, self.environ, settings.tools) for worker in enabled)
        else:
            specs = (await find_workers(self.environ, self.http)).specs
        if not specs:
            raise ConfigError(f"{path} names no workers, and {NO_MODELS}")
        settings = settings.resolve_folders(path.parent)
        assembled = self.build(str(path), specs, settings)
        baselines = settings.baselines
        return replace(
            assembled,
            history=path.parent / baselines.history if baselines.history else None,
            cascade=path.parent / baselines.cascade if baselines.cascade else None,
            checker=baselines.checker,
            plan_rules=_plan_rules(settings, specs, assembled),
            approvals=_build_approvals(settings, specs),
            approval_webhook=_open_webhook(settings, self.http, self.environ),
            confidence=_open_confidence(settings.confidence, path.parent, assembled.pool),
            refuses_unsure=bool(settings.confidence and settings.confidence.unsure == "refuse"),
            audit=settings.audit,
            server_tools=_open_server_tools(settings, specs, self.http, self.environ),
            files=settings.files,
            has_file_vectors=bool(settings.tools.files and settings.tools.files.vectors),
            answer_cache=settings.answer_cache,
            oidc=settings.oidc,
            digest=digest,
        )

    def build(
        self, source: str, specs: tuple[WorkerSpec, ...], settings: Settings | None = None
    ) -> LoadedConfig:
        """Open the workers and their conductors; without settings, by the default settings.

        Raises:
            ConfigError: there is no worker, or one of the settings cannot be used.
        """
        if not specs:
            raise ConfigError(NO_MODELS)
        settings = settings or Settings()
        pool, embedders = _split_pool(source, specs)
        if seconds := settings.resilience.step_timeout_s:
            self.http.allow_silence(seconds)
        health = _watch_workers(specs, settings.resilience)
        shared = _shared_limits(settings.server, self.http, self.environ, self.processes)
        if shared is None and self.processes > 1:
            specs = divide_limits(specs, self.processes)
        clients = open_worker_clients(
            specs, self.http, health, shared=shared, environ=self.environ, tools=settings.tools
        )
        opener = ConductorOpener(
            pool=pool,
            clients=clients,
            setting=settings.conductor,
            http=self.http,
            specs={spec.worker.id: spec for spec in specs},
            environ=self.environ,
            health=_watch_drafts(settings.conductor),
        )
        health[CONDUCTOR] = opener.health
        ultra = opener.default_conductor(self.conductor or settings.ultra.name)
        mini = opener.named(settings.mini.name) if settings.mini.name else None
        presets = _open_presets(settings, opener)
        if self.conductor is None:  # with --conductor the file's options may be unused this time
            opened = (ultra, mini, *(preset.conductor for preset in presets))
            opener.check_options(filter(None, opened))
        return LoadedConfig(
            source=source,
            pool=pool,
            clients=clients,
            specs=specs,
            conductor=ultra,
            limits=_run_limits(settings.limits),
            mini=mini,
            explore=settings.mini.explore,
            notes=_setting_notes(settings, ultra, named=self.conductor is not None),
            sessions=settings.sessions,
            presets=(*presets, *open_patterns(pool, clients)),
            aliases=Aliases(settings.aliases),
            embedders=embedders,
            health=health,
            timeouts=TimeoutPolicy(settings.resilience.step_timeout_s, settings.resilience.hedge_s),
            guardrails=_open_guardrails(settings, pool, opener.specs),
            terms=_answering_terms(settings),
            max_rounds=settings.limits.max_rounds,
            server=settings.server,
            moderation=open_moderation(settings.moderation, self.http, self.environ),
        )


def _open_guardrails(
    settings: Settings, pool: Pool, specs: Mapping[WorkerId, WorkerSpec]
) -> Guardrails:
    if not settings.policies:
        return NO_GUARDRAILS
    return build_guardrails(
        settings.policies,
        pool,
        lambda worker: find_provider(specs[worker].provider).schema_bounds,
    )


def _open_server_tools(
    settings: Settings,
    specs: tuple[WorkerSpec, ...],
    http: HttpTransport,
    environ: Mapping[str, str],
) -> ServerTools | None:
    """Open the server tools that clients may request; None: there are none.

    Their code is loaded only if it is needed.

    Raises:
        ConfigError: the settings of a tool cannot be used.
    """
    native = any(spec.worker.native_tools for spec in specs)
    if not native and ("tools" not in settings.model_fields_set or not settings.tools.served):
        return None
    from batuta.config.tools import open_served_tools  # noqa: PLC0415 - see above

    return open_served_tools(settings.tools, http, environ, native=native)


def _watch_workers(
    specs: tuple[WorkerSpec, ...], resilience: ResilienceSetting
) -> dict[WorkerId, WorkerHealth]:
    breaking = BreakerPolicy(resilience.breaker_failures, resilience.breaker_pause_s)
    return {spec.worker.id: WorkerHealth(breaking) for spec in specs}


def _watch_drafts(setting: ConductorSetting) -> WorkerHealth:
    return WorkerHealth(BreakerPolicy(setting.breaker_questions, setting.breaker_pause_s))


def _plan_rules(
    settings: Settings, specs: tuple[WorkerSpec, ...], loaded: LoadedConfig
) -> PlanRules:
    """Return the rules for plans; their code is loaded only if there are any.

    Raises:
        ConfigError: a rule names a worker that does not exist, or a tag that no worker has.
    """
    if not settings.plan_rules:
        return NO_RULES
    from batuta.config.plan_rules import build_plan_rules  # noqa: PLC0415 - see above

    conductors = (loaded.conductor, loaded.mini, *(preset.conductor for preset in loaded.presets))
    others = [conductor_worker(conductor) for conductor in conductors]
    others += [loaded.moderation.worker] if loaded.moderation else []
    workers = (*(spec.worker for spec in specs), *filter(None, others))
    return build_plan_rules(settings.plan_rules, workers, specs)


def _build_approvals(settings: Settings, specs: tuple[WorkerSpec, ...]) -> tuple[ApprovalRule, ...]:
    if not settings.approvals:
        return ()
    from batuta.config.plan_rules import build_approvals  # noqa: PLC0415 - only where it is used

    return build_approvals(settings.approvals, (spec.worker for spec in specs))


def _open_webhook(
    settings: Settings, http: HttpTransport, environ: Mapping[str, str]
) -> Webhook | None:
    """Return the webhook that is notified of plans that wait for approval; None: none is set.

    Raises:
        ConfigError: the variable with the webhook's secret is not set, or its value is not valid.
    """
    setting = settings.approval_webhook
    if setting is None:
        return None
    secret = read_variable(environ, setting.secret_env)
    if not secret:
        raise ConfigError(
            f"approval_webhook needs the variable {setting.secret_env}: set it to the secret that "
            "both sides sign with"
        )
    try:
        return Webhook(http, setting.url, Secret(secret))
    except ConfigError as error:
        raise ConfigError(f"approval_webhook: {setting.secret_env}: {error}") from None


def _open_confidence(
    setting: ConfidenceSetting | None, folder: Path, pool: Pool
) -> ConfidenceModel | None:
    if setting is None:
        return None
    from batuta.config.confidence import open_confidence  # noqa: PLC0415 - only where it is used

    return open_confidence(setting, folder, pool)


def _split_pool(source: str, specs: tuple[WorkerSpec, ...]) -> tuple[Pool, tuple[Worker, ...]]:
    """Return the workers that answer questions, and the embedding models.

    Raises:
        ConfigError: two workers have the same id, or none can answer a question.
    """
    workers = tuple(spec.worker for spec in specs)
    embedders = tuple(worker for worker in workers if EMBEDDINGS in worker.tags)
    if len(embedders) == len(workers):
        raise ConfigError(f"{source} has no worker that can answer: embedding models cannot")
    try:
        Pool(workers)  # raises unless all ids differ
        pool = Pool(tuple(worker for worker in workers if worker not in embedders))
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None
    if not any(worker.is_model or IMAGE in worker.tags for worker in pool):
        need = "workers that run code, search or read need one"
        raise ConfigError(f"{source} has no language model: {need}")
    return pool, embedders


def _run_limits(setting: LimitsSetting) -> Limits:
    return Limits(
        steps=setting.max_steps,
        rounds=setting.max_rounds or 1,
        tokens=setting.max_tokens,
        usd=setting.max_cost_usd,
        seconds=setting.deadline_s,
        unknown=Price(**setting.unknown_price.model_dump()),
    )


def _open_presets(settings: Settings, opener: ConductorOpener) -> tuple[Preset, ...]:
    """Open the presets; their limits must be within those of the whole file."""
    if not settings.models:
        return ()
    limits = settings.limits.model_dump(include=set(PresetLimits.model_fields))
    return open_presets(settings.models, opener, PresetLimits(**limits))


def _answering_terms(settings: Settings) -> str:
    """Return timeouts, policies, plan rules and the samples of confidence as text.

    These affect an answer besides the pool and its limits. The text is empty if none is set.
    """
    resilience = settings.resilience
    waits = (resilience.step_timeout_s, resilience.hedge_s)
    rules = (*settings.policies, *settings.plan_rules)
    policies = [rule.model_dump_json() for rule in rules]
    terms = repr((waits, policies)) if policies or waits != (None, None) else ""
    sure = settings.confidence
    return terms + repr((sure.samples, sure.sampler)) if sure and sure.samples else terms


def _setting_notes(settings: Settings, ultra: Conductor, *, named: bool) -> tuple[str, ...]:
    """Return sentences about settings that have no effect, or less than may be expected.

    Args:
        settings: the settings of the file.
        ultra: the conductor of batuta-ultra.
        named: whether the command line names that conductor, overriding [ultra] and [conductor].
    """
    notes = rounds_notes(ultra, settings.limits.max_rounds, "[limits] max_rounds")
    if settings.confidence is not None and settings.confidence.file is None:
        effect = "questions are resampled, but answers get no probability"
        how = "until batuta eval --calibrate fits it"
        notes = (*notes, f"[confidence] has no file: {effect} {how}")
    unused, used = settings.conductor.model or settings.conductor.worker, settings.ultra.name
    if named or not unused or not used or unused == used:
        return notes
    note = f"[ultra] overrides [conductor]: {used} conducts batuta-ultra, not {unused}"
    return (note, *notes)


def _shared_limits(
    server: ServerSetting, http: HttpTransport, environ: Mapping[str, str], processes: int
) -> RedisConnections | None:
    """Return the connections to the Redis where all processes share limits; None without Redis."""
    url, processes = redis_target(server, environ), max(server.replicas, processes)
    if not url:
        return None
    return http.companion(f"{processes} {url}", lambda: RedisConnections(url, processes))


def rounds_notes(conductor: Conductor, rounds: int | None, setting: str) -> tuple[str, ...]:
    """Return a note if fewer rounds are set than the conductor's workflows need.

    Args:
        conductor: the conductor that writes the workflows.
        rounds: the rounds that are set; None: not set.
        setting: the name of the setting, for the note.
    """
    needed = needed_rounds(conductor)
    if rounds is None or rounds >= needed:
        return ()
    note = f"{setting} allows {rounds} of the {needed} rounds that {conductor.name} needs"
    return (f"{note}: a workflow that continues while its answers differ ends early",)
