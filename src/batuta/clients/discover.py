"""What can be called from here: keys in the environment and servers on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

import anyio

from batuta.clients.catalog import facts_of
from batuta.clients.decode import count, obj, seq, string
from batuta.clients.providers import (
    PROVIDERS,
    Provider,
    WorkerSpec,
    key_of,
    overridden,
    url_of,
)
from batuta.clients.secret import Secret
from batuta.clients.session import Http, Target, host_of
from batuta.core import Price, Worker, WorkerId
from batuta.errors import ClientError, ConfigError

PROBE_SECONDS = 0.3
"""How long a server may take to list its models."""
MODELS_AT_MOST = 16
"""Of one server."""

_FREE = Price(Decimal(0), Decimal(0))
_SERVERS = {"vllm", "sglang", "llamacpp"}
_NO_CHAT = ("embed", "rerank", "whisper", "tts", "bge-")


async def discover(
    environ: Mapping[str, str], http: Http, *, probe: bool = True
) -> tuple[WorkerSpec, ...]:
    """The workers that the environment's keys and this machine's servers give.

    Args:
        environ: usually `os.environ`.
        http: the session to probe with.
        probe: whether to ask local servers, and servers named by an override such as
            OPENAI_BASE_URL, which models they have; without it they give no workers.

    Returns:
        Hosted providers first, each provider's models in its own order.

    Raises:
        ConfigError: a variable holds a key or a URL that cannot be used.
    """
    found: dict[str, tuple[WorkerSpec, ...]] = {}
    to_probe: list[_Server] = []
    for provider in PROVIDERS.values():
        server = _server(provider, environ)
        if provider.api == "chat" and (provider.local or server.named):
            to_probe.append(server)
        elif server.key:
            found[provider.name] = _hosted(server)
    # Nothing that may raise runs in the group: it would wrap the error in an ExceptionGroup.
    async with anyio.create_task_group() as group:
        for server in to_probe if probe else ():
            group.start_soon(_probe, server, http, found)
    return tuple(spec for name in PROVIDERS for spec in found.get(name, ()))


def worker_of(provider: str, model: str, context_window: int | None = None) -> Worker:
    """A worker named `provider/model`, with what the catalogue knows of it."""
    facts = facts_of(provider, model)
    local = provider in PROVIDERS and PROVIDERS[provider].local
    if facts is None:
        return Worker(
            WorkerId(f"{provider}/{model}"),
            model,
            tags=("local",) if local else (),
            context_window=context_window,
            price=_FREE if local else None,
        )
    return Worker(
        WorkerId(f"{provider}/{model}"),
        model,
        tags=facts.tags,
        context_window=context_window or facts.context_window,
        price=facts.price,
    )


@dataclass(frozen=True, slots=True)
class _Server:
    """A provider as this environment has it."""

    provider: Provider
    base_url: str
    key: Secret
    named: bool
    """Whether the environment names a base URL that is not the hosted provider's own."""


def _server(provider: Provider, environ: Mapping[str, str]) -> _Server:
    base_url = url_of(provider, environ)
    if base_url:
        try:
            host_of(base_url)
        except ConfigError as error:
            raise ConfigError(f"{' or '.join(provider.url_vars)}: {error}") from None
    named = overridden(provider, environ) and (provider.local or base_url != provider.base_url)
    return _Server(provider, base_url, key_of(provider, environ), named)


def _hosted(server: _Server) -> tuple[WorkerSpec, ...]:
    name, base_url = server.provider.name, server.base_url if server.named else ""
    workers = (worker_of(name, model) for model in server.provider.models)
    return tuple(WorkerSpec(worker, name, base_url, server.key) for worker in workers)


async def _probe(server: _Server, http: Http, found: dict[str, tuple[WorkerSpec, ...]]) -> None:
    """Puts what the server says into `found`; a server that does not answer has no models."""
    provider = server.provider
    list_models = _ollama if provider.name == "ollama" else _served
    rows: tuple[tuple[str, int | None], ...] = ()
    with anyio.move_on_after(PROBE_SECONDS):
        try:
            rows = await list_models(http, server)
        except ClientError:
            return
    # A server behind OPENAI_BASE_URL is most often not OpenAI: plain chat suits it best.
    name = provider.name if provider.local else "compatible"
    found[provider.name] = tuple(
        WorkerSpec(worker_of(name, model, window), name, server.base_url, server.key)
        for model, window in rows[:MODELS_AT_MOST]
        if not any(word in model.lower() for word in _NO_CHAT)
    )


async def _ollama(http: Http, server: _Server) -> tuple[tuple[str, int | None], ...]:
    data = await http.get(_target(server.base_url.removesuffix("/v1") + "/api/tags", server.key))
    names = (string(obj(row).get("name")) for row in seq(obj(data).get("models")))
    return tuple((name, None) for name in names if name)


async def _served(http: Http, server: _Server) -> tuple[tuple[str, int | None], ...]:
    data = await http.get(_target(server.base_url + "/models", server.key))
    rows = [obj(row) for row in seq(obj(data).get("data"))]
    if not server.named:
        # On a common port anything may listen, our own gateway among others.
        rows = [row for row in rows if row.get("owned_by") in _SERVERS]
    known = ((string(row.get("id")), count(row.get("max_model_len")) or None) for row in rows)
    return tuple(row for row in known if row[0])


def _target(url: str, key: Secret) -> Target:
    return Target(url, {"Authorization": f"Bearer {key.reveal()}"} if key else {}, key)
