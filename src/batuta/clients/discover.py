"""What can be called from here: keys in the environment and servers on this machine."""

from __future__ import annotations

from collections.abc import Mapping
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
from batuta.clients.session import Http, Target
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
    async with anyio.create_task_group() as group:
        for provider in PROVIDERS.values():
            key = key_of(provider, environ)
            own = overridden(provider, environ)
            if key and not own and not provider.local:
                found[provider.name] = _hosted(provider, key)
            elif probe and provider.api == "chat" and (provider.local or own):
                group.start_soon(_probe, provider, environ, http, found)
            elif key and own and provider.api != "chat":
                found[provider.name] = _hosted(provider, key, url_of(provider, environ))
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


def _hosted(provider: Provider, key: Secret, base_url: str = "") -> tuple[WorkerSpec, ...]:
    workers = (worker_of(provider.name, model) for model in provider.models)
    return tuple(WorkerSpec(worker, provider.name, base_url, key) for worker in workers)


async def _probe(
    provider: Provider,
    environ: Mapping[str, str],
    http: Http,
    found: dict[str, tuple[WorkerSpec, ...]],
) -> None:
    """Puts what the server says into `found`; a server that does not answer has no models."""
    base, key = url_of(provider, environ), key_of(provider, environ)
    list_models = _ollama if provider.name == "ollama" else _served
    rows: tuple[tuple[str, int | None], ...] = ()
    with anyio.move_on_after(PROBE_SECONDS):
        try:
            rows = await list_models(http, base, key, named=overridden(provider, environ))
        except (ClientError, ConfigError):
            return
    # A server behind OPENAI_BASE_URL is most often not OpenAI: plain chat suits it best.
    name = provider.name if provider.local else "compatible"
    found[provider.name] = tuple(
        WorkerSpec(worker_of(name, model, window), name, base, key)
        for model, window in rows[:MODELS_AT_MOST]
        if not any(word in model.lower() for word in _NO_CHAT)
    )


async def _ollama(
    http: Http,
    base: str,
    key: Secret,
    *,
    named: bool,  # noqa: ARG001 - any answer to this path is Ollama's
) -> tuple[tuple[str, int | None], ...]:
    data = await http.get(_target(base.removesuffix("/v1") + "/api/tags", key))
    names = (string(obj(row).get("name")) for row in seq(obj(data).get("models")))
    return tuple((name, None) for name in names if name)


async def _served(
    http: Http, base: str, key: Secret, *, named: bool
) -> tuple[tuple[str, int | None], ...]:
    data = await http.get(_target(base + "/models", key))
    rows = [obj(row) for row in seq(obj(data).get("data"))]
    if not named:
        # On a common port anything may listen, our own gateway among others.
        rows = [row for row in rows if row.get("owned_by") in _SERVERS]
    known = ((string(row.get("id")), count(row.get("max_model_len")) or None) for row in rows)
    return tuple(row for row in known if row[0])


def _target(url: str, key: Secret) -> Target:
    return Target(url, {"Authorization": f"Bearer {key.reveal()}"} if key else {}, key)
