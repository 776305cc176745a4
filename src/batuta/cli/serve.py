"""`batuta serve`: the chat API over the pool."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from batuta.cli.ask import ConductorOption, PoolOption
from batuta.clients import HttpTransport
from batuta.clients.secret import NO_KEY, Secret
from batuta.config.load import data_folder, jobs_target, redis_target, store_target
from batuta.config.settings import AnswerCacheSetting, LogFormat, OidcSetting, ServerSetting
from batuta.errors import ConfigError

if TYPE_CHECKING:
    from batuta.cli.reload import ServeOptions
    from batuta.gateway.access.oidc import OidcClient
    from batuta.gateway.http.connections import ConnectionLimits
    from batuta.gateway.serving.answer_cache import RepeatedAnswers
    from batuta.gateway.serving.models import ServerState
    from batuta.store import Store
    from batuta.store.key_hasher import KeyHasher


def serve_command(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8765,
    pool: PoolOption = None,
    conductor: ConductorOption = None,
    *,
    history: Annotated[
        Path | None,
        typer.Option(help="Outcomes of the workers (JSONL), for the baselines that learn."),
    ] = None,
    cascade: Annotated[
        Path | None,
        typer.Option(help="A folder of `batuta train selector`, whose cascade is served."),
    ] = None,
    checker: Annotated[
        str | None, typer.Option(help="The worker that checks the cascade's answers.")
    ] = None,
    runs_dir: Annotated[
        list[Path] | None,
        typer.Option(help="Training runs and reports that the web page shows; may be repeated."),
    ] = None,
    log: Annotated[
        LogFormat, typer.Option(help="What is logged: only what goes wrong, or requests as JSON.")
    ] = LogFormat.QUIET,
) -> None:
    """Serve batuta-mini, batuta-ultra, workers and baselines: an OpenAI-compatible API, a page."""
    # A server is loaded only when one is wanted: it is most of the start-up time.
    from batuta.cli.reload import ServeOptions  # noqa: PLC0415
    from batuta.gateway import LOOP_OPTIONS  # noqa: PLC0415
    from batuta.gateway.telemetry.logs import start_logs  # noqa: PLC0415

    start_logs(log)
    casting = ServeOptions(
        pool=pool,
        conductor=conductor,
        history=history,
        cascade=cascade,
        checker=checker,
        folders=tuple(runs_dir or ()),
    )
    anyio.run(_run_server, host, port, casting, backend_options=LOOP_OPTIONS)


async def _run_server(host: str, port: int, serve_options: ServeOptions) -> None:
    from batuta.cli.reload import reload_on_hangup, startup_message  # noqa: PLC0415 - see `command`
    from batuta.gateway.access.authenticate import Authenticator  # noqa: PLC0415
    from batuta.gateway.access.rate_limit import open_rate_limiter  # noqa: PLC0415
    from batuta.gateway.http.overload import ConcurrencyLimits  # noqa: PLC0415
    from batuta.gateway.serve import run_server  # noqa: PLC0415
    from batuta.gateway.telemetry.otlp import open_span_exporter  # noqa: PLC0415
    from batuta.jobs import open_jobs  # noqa: PLC0415
    from batuta.store import Store  # noqa: PLC0415
    from batuta.store.key_hasher import admin_token, open_key_hasher  # noqa: PLC0415
    from batuta.store.retention import RetentionSweeper  # noqa: PLC0415

    async with HttpTransport() as http:
        ensemble = await serve_options.load_config(http)
        taken = ensemble.server
        async with (
            Store.open(store_target()) as store,
            open_jobs(jobs_target(), taken.keep_days) as jobs,
            open_span_exporter(os.environ) as traces,
            anyio.create_task_group() as tasks,
        ):
            hasher, redis = open_key_hasher(data_folder()), redis_target(taken)
            oidc = _open_oidc(ensemble.oidc, http, hasher)
            gate = Authenticator(store, hasher, admin_token(), has_sign_in=oidc is not None)
            await gate.needs_key()
            rates = open_rate_limiter(redis, taken.replicas)
            cache = _open_answer_cache(ensemble.answer_cache, store, redis)
            orchestra = serve_options.build_state(
                ensemble,
                store=store,
                jobs=jobs,
                span_exporter=traces,
                concurrency=ConcurrencyLimits(taken.running, taken.waiting, taken.patience_s),
                authenticator=gate,
                rate_limiter=rates,
                private_pictures=taken.private_pictures,
                answer_cache=cache,
                oidc=oidc,
            )

            def ready(url: str) -> None:
                sys.stderr.write(startup_message(ensemble, orchestra, url))

            tasks.start_soon(
                reload_on_hangup, orchestra, partial(_build_again, serve_options, http)
            )
            if taken.keep_days is not None:
                tasks.start_soon(RetentionSweeper(store.database, taken.keep_days).work)
            limits = _connection_limits(taken)
            options: dict[str, Any] = {"grace_seconds": taken.grace_s, "connections": limits}
            try:
                await run_server(orchestra, host, port, on_ready=ready, **options)
            finally:
                for one in filter(None, (rates, cache)):
                    await one.close()
            tasks.cancel_scope.cancel()


async def _build_again(serve_options: ServeOptions, http: HttpTransport) -> ServerState:
    """What is served by the settings as they are now."""
    return serve_options.build_state(await serve_options.load_config(http))


def _open_oidc(
    wanted: OidcSetting | None, http: HttpTransport, hasher: KeyHasher
) -> OidcClient | None:
    """The identity provider of the settings, if there is one.

    Raises:
        ConfigError: a setting cannot be used, or the extra is not installed.
    """
    if wanted is None:
        return None
    from batuta.gateway.access import oidc  # noqa: PLC0415 - see `command`
    from batuta.store.key_permissions import read_permissions  # noqa: PLC0415
    from batuta.store.keys import check_name  # noqa: PLC0415

    variable = wanted.client_secret_env
    if variable and not os.environ.get(variable):
        raise ConfigError(f"oidc needs the variable {variable}")
    try:
        check_name(wanted.tenant)
        limits = read_permissions(wanted.limits)
    except ValueError as error:
        raise ConfigError(f"oidc: {error}") from None
    options = oidc.OidcOptions(
        issuer=wanted.issuer,
        client_id=wanted.client_id,
        client_secret=Secret(os.environ[variable]) if variable else NO_KEY,
        scopes=wanted.scopes,
        label=wanted.label,
        redirect_uri=wanted.redirect_uri,
        role_claim=wanted.role_claim,
        admins=frozenset(wanted.admins),
        users=frozenset(wanted.users),
        tenant=wanted.tenant,
        limits=limits,
    )
    return oidc.OidcClient(options, http, hasher)


def _open_answer_cache(
    wanted: AnswerCacheSetting, store: Store, redis: str
) -> RepeatedAnswers | None:
    """What finds answers that are given again; None if none is to be.

    Raises:
        ConfigError: it is to be in Redis, and there is none.
    """
    if not wanted.enabled:
        return None
    from batuta.gateway.serving import answer_cache as answers  # noqa: PLC0415 - see `command`

    if wanted.redis and not redis:
        raise ConfigError("answer_cache.redis needs a Redis: set server.redis or BATUTA_REDIS")
    index = answers.RedisAnswerIndex(redis) if wanted.redis else answers.StoreAnswerIndex(store)
    options = answers.AnswerCacheOptions(seconds=wanted.ttl_s, sampled=wanted.sampled)
    return answers.RepeatedAnswers(store, index, options)


def _connection_limits(taken: ServerSetting) -> ConnectionLimits:
    from batuta.gateway.http.connections import ConnectionLimits  # noqa: PLC0415 - see `command`

    return ConnectionLimits(total=taken.connections, per_address=taken.connections_per_address)
