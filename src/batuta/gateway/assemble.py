"""Builds the parts of `batuta serve` from the settings.

On SIGHUP, and when the page changes the pool, the catalogue is built again: workers, served models,
limits, policies. The other parts, such as the sign-in, the answer cache, the audit trail, and the
limits on connections and files, stay until the process is restarted.
"""

from __future__ import annotations

import os
import signal
import sys
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import final

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from batuta.clients import HttpTransport, RedisConnections
from batuta.clients.http_target import NO_KEY, Secret
from batuta.config.load import jobs_target, load_config, redis_target, store_target
from batuta.config.loaded import LoadedConfig
from batuta.config.pool_file import PoolFile
from batuta.config.settings import AnswerCacheSetting, ExploreSetting, OidcSetting, ServerSetting
from batuta.core import Limits, Pool
from batuta.core.formatting import join_words
from batuta.distribution import install_hint, package_version
from batuta.encoder import open_encoder
from batuta.environment import data_folder, read_variable
from batuta.errors import BatutaError, ConfigError
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.access.failed_sign_ins import AuditKeeper
from batuta.gateway.access.oidc import OidcClient, OidcOptions
from batuta.gateway.access.rate_limit import LocalRateLimiter, RedisRateLimiter
from batuta.gateway.app import ServerState
from batuta.gateway.errors import log_exception
from batuta.gateway.http.request_slots import ConcurrencyLimiter
from batuta.gateway.http.server_limits import ConcurrencyLimits, ConnectionLimits
from batuta.gateway.mcp.endpoint import MCP_PATH, McpOptions
from batuta.gateway.serve import run_server
from batuta.gateway.serving.answer_cache import (
    AnswerCacheOptions,
    AnswerIndex,
    RedisAnswerIndex,
    RepeatedAnswers,
    StoreAnswerIndex,
)
from batuta.gateway.serving.baselines import (
    baseline_models,
    open_learned_methods,
    preset_models,
    unavailable_baselines,
)
from batuta.gateway.serving.models import (
    MINI_LIMITS,
    Catalogue,
    ExploreOptions,
    PageContext,
    embedding_models,
    served_models,
)
from batuta.gateway.serving.pool_editor import PoolEditor
from batuta.gateway.serving.shared_sessions import RedisSessions
from batuta.gateway.serving.similar_questions import SimilarQuestions
from batuta.gateway.serving.tenant_memory import LocalSessions
from batuta.gateway.serving.uploaded_files import FileLimits
from batuta.gateway.serving.waiting_runs import RedisWaitingRuns, SharedWaitingRuns
from batuta.gateway.telemetry.spans import open_span_exporter
from batuta.jobs import KEEP_DAYS, Jobs, open_jobs
from batuta.rendering.terminal import write_error
from batuta.store import Store
from batuta.store.audit import AuditEntry
from batuta.store.key_hasher import KeyHasher, admin_token, open_key_hasher
from batuta.store.key_permissions import read_permissions
from batuta.store.keys import check_tenant_name
from batuta.store.retention import RetentionSweeper
from batuta.store.sealing import RunSealer

FILE_PACKAGES = ("python_multipart", "pypdf", "trafilatura")
"""Packages of the extra `tools` that parse uploads and read files."""
_REDIS_PATIENCE_S = 1.0
"""Seconds that Redis may take to connect or to answer while a request waits."""
NEEDS_REDIS = "several replicas need a shared Redis: set server.redis or BATUTA_REDIS"
SIMULATED = (
    "*** SIMULATION: these workers are programs, not language models; they answer only questions "
    "of their small world. For your own models: docs/configuration.md ***\n"
)
"""Banner of a server whose workers are all simulated."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of the command line; None: the settings decide."""

    pool: str | None
    """The name of a pool, or the path of its settings file; None: the first source that
    `config.load.load_config` finds."""
    conductor: str | None
    """Overrides the conductor of the settings."""
    history: Path | None
    """A file of recorded outcomes, from which baselines learn."""
    cascade: Path | None
    """The folder of a fitted cascade."""
    checker: str | None
    """The id of the worker that checks the cascade's answers."""
    folders: tuple[Path, ...]
    """Folders whose evaluations and training runs the page shows."""
    opens_page: bool = False
    """Whether to open the page in a browser on this machine."""

    async def load_config(self, http: HttpTransport) -> LoadedConfig:
        """Read the current settings and open what they name: the pool, its clients, the conductor.

        Raises:
            ConfigError: the settings cannot be used.
        """
        return await load_config(http, pool=self.pool, conductor=self.conductor, rehearses=True)

    async def reread(self, http: HttpTransport, store: Store) -> Catalogue:
        """Return the catalogue of the current settings, after recording them in the audit trail.

        Raises:
            BatutaError: the settings cannot be used, or cannot be recorded.
        """
        config = await self.load_config(http)
        catalogue = self.build_catalogue(config)
        await record_settings(store, config)
        return catalogue

    def build_catalogue(self, config: LoadedConfig) -> Catalogue:
        """Return the catalogue, with all served models and the settings that can be read again.

        The models are the conducted and embedding models, workers, presets and baselines.

        Raises:
            BatutaError: the settings, the outcomes file or the cascade cannot be used.
        """
        limits, outcomes = _served_limits(config), self.history or config.history
        seconds = min(filter(None, (MINI_LIMITS.seconds, limits.seconds)))
        mini = replace(limits, steps=1, rounds=1, seconds=seconds)
        models = served_models(
            config.pool,
            config.conductor,
            mini_conductor=config.mini,
            explore=_explore_options(config.explore),
            mini=mini,
            ultra=limits,
            max_rounds=config.max_rounds,
        )
        folder, checker = self.cascade or config.cascade, self.checker or config.checker
        learned = open_learned_methods(config.pool, outcomes, folder, checker)
        methods = baseline_models(config.pool, limits, learned)
        presets = preset_models(config.presets, limits, config.max_rounds, learned)
        return Catalogue(
            pool=config.pool,
            clients=config.clients,
            models=(
                *models,
                *presets,
                *methods,
                *embedding_models(config.embedders, limits.unknown),
            ),
            unavailable_models=unavailable_baselines(learned),
            aliases=config.aliases,
            conducts_auxiliary=config.sessions.conduct_auxiliary,
            session_rules=config.sessions.rules,
            page_context=PageContext(
                source=config.source,
                simulated=config.simulated,
                examples=config.examples,
                folders=self.folders,
                history=learned.history if learned else None,
            ),
            health=config.health,
            timeout_policy=config.timeouts,
            guardrails=config.guardrails,
            plan_rules=config.plan_rules,
            confidence=config.confidence,
            refuses_unsure=config.refuses_unsure,
            approvals=config.approvals,
            approval_webhook=config.approval_webhook,
            private_pictures=config.server.private_pictures,
            server_tools=config.server_tools,
            moderation=config.moderation,
        )


async def run_configured_server(
    host: str, port: int, serve_options: ServeOptions, mcp: McpOptions | None = None
) -> None:
    """Serve the models of the settings until the process is asked to stop.

    Args:
        host: the address to listen on.
        port: 0 for any free port.
        serve_options: options of the command line.
        mcp: options of the Model Context Protocol endpoint; None: it is not served.

    Raises:
        BatutaError: the settings, a database, a secret or the address cannot be used.
    """
    async with HttpTransport() as http:
        config = await serve_options.load_config(http)
        server = config.server
        async with (
            Store.open(store_target()) as store,
            _open_jobs(server) as jobs,
            open_span_exporter(os.environ) as span_exporter,
            anyio.create_task_group() as tasks,
        ):
            hasher, redis = open_key_hasher(data_folder()), _find_redis(server)
            oidc = _open_oidc(config.oidc, http, hasher)
            authenticator = Authenticator(store, hasher, admin_token(), has_sign_in=bool(oidc))
            await authenticator.needs_key()  # a database that fails stops the start, not a request
            rate_limiter = RedisRateLimiter(redis) if redis else LocalRateLimiter()
            answer_cache = _open_answer_cache(config.answer_cache, store, redis)
            catalogue = serve_options.build_catalogue(config)
            reread = partial(serve_options.reread, http, store)
            state = ServerState(
                catalogue=catalogue,
                store=store,
                jobs=jobs,
                authenticator=authenticator,
                rate_limiter=rate_limiter,
                limiter=_open_limiter(server),
                origins=frozenset(server.cors_origins),
                span_exporter=span_exporter,
                answer_cache=answer_cache,
                sessions=RedisSessions(redis) if redis else LocalSessions(),
                waiting_runs=_open_waiting_runs(store, redis, hasher),
                pool_editor=_open_pool_editor(config.source, catalogue, store, reread),
                oidc=oidc,
                file_limits=_file_limits(config),
                mcp=mcp,
            )
            await record_settings(store, config)
            tasks.start_soon(reload_on_hangup, catalogue, reread)
            _start_upkeep(tasks, store, authenticator, config)
            page_tasks = tasks if serve_options.opens_page else None
            try:
                await run_server(
                    state,
                    host,
                    port,
                    on_ready=partial(_announce_ready, config, catalogue, mcp, page_tasks),
                    grace_seconds=server.grace_s,
                    connections=_connection_limits(server),
                    owns_process=True,
                )
            finally:
                for part in filter(None, (rate_limiter, answer_cache)):
                    await part.close()
            tasks.cancel_scope.cancel()


def _open_pool_editor(
    source: str,
    catalogue: Catalogue,
    store: Store,
    reread: Callable[[], Awaitable[Catalogue]],
) -> PoolEditor | None:
    """Return the editor of the pool's settings file; None if the pool has no TOML file."""
    path = Path(source)
    if path.suffix != ".toml" or not path.is_file():
        return None
    return PoolEditor(PoolFile(path), catalogue, store, reread)


def _start_upkeep(
    tasks: TaskGroup, store: Store, authenticator: Authenticator, config: LoadedConfig
) -> None:
    """Start the audit trail's upkeep and, as configured, the deletion of old files and runs."""
    keeper = AuditKeeper(store, authenticator.failed_sign_ins, config.audit.kept_days)
    tasks.start_soon(keeper.work)
    if config.files is not None:
        tasks.start_soon(store.files.work)
    if config.server.keep_days is not None:
        tasks.start_soon(RetentionSweeper(store.database, config.server.keep_days).work)


async def record_settings(store: Store, config: LoadedConfig) -> None:
    """Record in the audit trail which settings the server uses from now on.

    Raises:
        StoreError: the entry cannot be written; then the settings must not be served.
    """
    details = {"sha256": config.digest, "workers": len(config.pool), "batuta": package_version()}
    await store.audit.append(
        AuditEntry(actor="server", action="settings.loaded", subject=config.source, details=details)
    )


def _open_limiter(server: ServerSetting) -> ConcurrencyLimiter:
    limits = ConcurrencyLimits(server.running, server.waiting, server.patience_s)
    return ConcurrencyLimiter(limits)


def _connection_limits(server: ServerSetting) -> ConnectionLimits:
    return ConnectionLimits(total=server.connections, per_address=server.connections_per_address)


def _find_redis(server: ServerSetting) -> RedisConnections | None:
    """Return the connections to the replicas' shared Redis; None if it is not configured.

    Raises:
        ConfigError: several replicas have no Redis, its extra is not installed, or its URL is
            wrong.
    """
    url = redis_target(server)
    if server.replicas > 1 and not url:
        raise ConfigError(NEEDS_REDIS)
    return RedisConnections(url, server.replicas, patience=_REDIS_PATIENCE_S) if url else None


def _open_jobs(server: ServerSetting) -> AbstractAsyncContextManager[Jobs]:
    kept_days = min(server.keep_days or KEEP_DAYS, KEEP_DAYS)
    most = server.waiting_jobs_per_tenant
    return open_jobs(jobs_target(), kept_days=kept_days, most_waiting=most)


def _open_oidc(
    setting: OidcSetting | None, http: HttpTransport, hasher: KeyHasher
) -> OidcClient | None:
    """Return the client of the configured identity provider; None: none is configured.

    Raises:
        ConfigError: the extra is not installed, the client's secret is not set or not valid, or
            the issuer, the redirect URI, the tenant's name or the limits of its users are wrong.
    """
    if setting is None:
        return None
    secret = _read_client_secret(setting.client_secret_env)
    try:
        check_tenant_name(setting.tenant)
        limits = read_permissions(setting.limits)
    except ValueError as error:
        raise ConfigError(f"oidc: {error}") from None
    options = OidcOptions(
        issuer=setting.issuer,
        client_id=setting.client_id,
        client_secret=secret,
        scopes=setting.scopes,
        label=setting.label,
        redirect_uri=setting.redirect_uri,
        role_claim=setting.role_claim,
        admins=frozenset(setting.admins),
        users=frozenset(setting.users),
        tenant=setting.tenant,
        limits=limits,
    )
    return OidcClient(options, http, hasher)


def _read_client_secret(variable: str) -> Secret:
    """Return the secret in `variable`, or in the file that `{variable}_FILE` names.

    If `variable` is empty the client has no secret, and `NO_KEY` is returned.

    Raises:
        ConfigError: neither variable is set, the file cannot be read or is empty, or the secret is
            not valid.
    """
    if not variable:
        return NO_KEY
    secret = read_variable(os.environ, variable)
    if not secret:
        raise ConfigError(f"oidc: set {variable}, or {variable}_FILE to a file with the secret")
    try:
        return Secret(secret)
    except ConfigError as error:
        raise ConfigError(f"oidc: {variable}: {error}") from None


def _open_answer_cache(
    setting: AnswerCacheSetting, store: Store, redis: RedisConnections | None
) -> RepeatedAnswers | None:
    """Return the answer cache; None if it is disabled.

    Raises:
        ConfigError: the cache needs Redis, which is not configured, or the sentence encoder, which
            cannot be used.
    """
    if not setting.enabled:
        return None
    index: AnswerIndex = StoreAnswerIndex(store)
    if setting.redis:
        if redis is None:
            raise ConfigError("answer_cache.redis needs a Redis: set server.redis or BATUTA_REDIS")
        index = RedisAnswerIndex(redis)
    options = AnswerCacheOptions(seconds=setting.ttl_s, sampled=setting.sampled)
    similar = None
    if setting.similarity is not None:
        similar = SimilarQuestions(open_encoder(), setting.similarity)
    return RepeatedAnswers(store, index, options, similar)


def _open_waiting_runs(
    store: Store, redis: RedisConnections | None, hasher: KeyHasher
) -> SharedWaitingRuns | None:
    """Return the table in which replicas share runs paused on client tools.

    Return None if no Redis is configured and the database is not shared: then this process keeps
    such runs in its memory.
    """
    if redis is not None:
        sealer = RunSealer(hasher, "redis")
        return SharedWaitingRuns(RedisWaitingRuns(redis, sealer.name_tenant), sealer)
    if not store.is_shared:
        return None
    return SharedWaitingRuns(store.waiting, RunSealer(hasher, "postgres"))


def _announce_ready(
    config: LoadedConfig,
    catalogue: Catalogue,
    mcp: McpOptions | None,
    page_tasks: TaskGroup | None,
    url: str,
) -> None:
    """Print that the server is ready, and open its page in `page_tasks`; None: it is not opened."""
    if page_tasks is not None:
        page_tasks.start_soon(_open_page, url)
    write_error(startup_message(config, catalogue, url))
    if mcp is not None:
        write_error(f"MCP endpoint: {url}{MCP_PATH}\n")


async def _open_page(url: str) -> None:
    """Open the page in the browser; a browser that runs in the terminal must not block the stop."""
    await run_sync(webbrowser.open, f"{url}/", abandon_on_cancel=True)


def _count_workers(pool: Pool) -> str:
    return f"{len(pool)} worker{'' if len(pool) == 1 else 's'}"


def startup_message(config: LoadedConfig, catalogue: Catalogue, url: str) -> str:
    """Return the text that the server prints when it is ready, without the line about MCP."""
    names = [model.name for model in catalogue.models]
    served = ", ".join(name for name in names if "/" not in name)
    methods = sum(name.startswith("baseline/") for name in names)
    banner = SIMULATED if config.simulated else ""
    workers = _count_workers(config.pool)
    notes = "".join(f"{note}\n" for note in config.notes)
    return (
        f"{banner}{notes}{config.source} · conductor {config.conductor.name}\n"
        f"serving {served}, {workers} and {methods} baselines at {url}/v1\n"
        f"the web page: {url}/\n"
    )


async def reload_on_hangup(
    catalogue: Catalogue, reload: Callable[[], Awaitable[Catalogue]]
) -> None:
    """On each SIGHUP replace the catalogue by that of the current settings, until cancelled.

    Settings that cannot be used or recorded change nothing. Windows has no SIGHUP: there the
    function returns at once.

    Args:
        catalogue: the served catalogue, which is changed.
        reload: returns the catalogue of the current settings.
    """
    if sys.platform == "win32":
        return
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # `batuta serve` blocks it
        async for _ in signals:
            try:
                catalogue.replace_by(await reload())
            except BatutaError as error:
                write_error(f"batuta: the settings stay as they were: {error}\n")
            except Exception as error:  # noqa: BLE001 - must not stop a running server
                log_exception(error)
                write_error("batuta: the settings stay as they were: internal error, see the log\n")
            else:
                workers = _count_workers(catalogue.pool)
                write_error(f"the settings were read again: {workers}\n")


def _explore_options(setting: ExploreSetting | None) -> ExploreOptions | None:
    """Return the exploration options of batuta-mini; None if it does not explore."""
    if setting is None:
        return None
    return ExploreOptions(share=setting.share, usd_per_day=setting.usd_per_day)


def _served_limits(config: LoadedConfig) -> Limits:
    """Return the settings' limits, with a limit of 15 minutes if they have none on the time."""
    limits = config.limits
    return limits if limits.seconds else replace(limits, seconds=15 * 60)


def _file_limits(config: LoadedConfig) -> FileLimits | None:
    """Return the limits on uploaded files; None if files are not accepted.

    Raises:
        ConfigError: a package that reads files is missing, or the sentence encoder cannot be used.
    """
    setting = config.files
    if setting is None:
        return None
    missing = [name for name in FILE_PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"[files] needs {join_words(missing)}, which this installation lacks: "
            f"{install_hint('tools')}"
        )
    return FileLimits(
        max_bytes=int(setting.max_mb * 1_000_000),
        tenant_files=setting.tenant_files,
        tenant_bytes=int(setting.tenant_mb * 1_000_000),
        keep_seconds=None if setting.keep_days is None else setting.keep_days * 86_400,
        max_characters=setting.max_characters,
        encoder=open_encoder() if config.has_file_vectors else None,
    )
