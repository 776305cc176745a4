"""From a worker's spec to a client that can be called."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from batuta.clients.anthropic import Anthropic
from batuta.clients.breaker import Breaker, Health
from batuta.clients.gemini import Gemini
from batuta.clients.limit import Limit, Limiter
from batuta.clients.openai_chat import OpenAIChat
from batuta.clients.providers import WorkerSpec, provider_of
from batuta.clients.retry import Retry, RetryPolicy
from batuta.clients.session import Http
from batuta.core import Client, Request, Sampling, WorkerId, user
from batuta.errors import ClientError, ConfigError

CHECK_TOKENS = 64
"""Room for a model that thinks a little before it says "ok"."""


def open_client(
    spec: WorkerSpec,
    http: Http,
    *,
    policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    limiter: Limiter | None = None,
    health: Health | None = None,
) -> Client:
    """The client of a worker: its dialect, within limits, tried again.

    A call that waits to be tried again holds no place in the limiter.

    Args:
        spec: the worker and how it is reached.
        http: the shared session.
        policy: how failed calls are tried again.
        limiter: shared with other clients, such as those of the same key; None: one of its own
            with the spec's limits.
        health: told how the worker does, and asked whether it may be called; None: nobody is.

    Raises:
        ConfigError: the provider is not known, needs a base URL, or needs a key.
    """
    if limiter is None:
        limiter = Limiter(spec.concurrency, spec.rpm, spec.tpm)
    client: Client = Limit(bare_client(spec, http), limiter)
    if health is not None:
        client = Breaker(client, health, spec.worker.id)
    return Retry(client, policy)


def open_clients(
    specs: Iterable[WorkerSpec], http: Http, health: Mapping[WorkerId, Health] | None = None
) -> dict[WorkerId, Client]:
    """The clients of many workers, by worker; `health` is kept for those that it names.

    Raises:
        ConfigError: as `open_client`.
    """
    known = health or {}
    return {
        spec.worker.id: open_client(spec, http, health=known.get(spec.worker.id)) for spec in specs
    }


def bare_client(spec: WorkerSpec, http: Http) -> Client:
    """The client of the spec's dialect alone, without limits and retries.

    Raises:
        ConfigError: the provider is not known, needs a base URL, or needs a key.
    """
    provider = provider_of(spec.provider)
    base_url = spec.base_url or provider.base_url
    if not base_url:
        raise ConfigError(f"worker {spec.worker.id} needs a base_url")
    if provider.key_vars and not provider.local and not spec.key and not spec.base_url:
        names = " or ".join(provider.key_vars)
        raise ConfigError(f"worker {spec.worker.id} needs a key: set {names}")
    if provider.api == "anthropic":
        return Anthropic(spec.worker, http, base_url=base_url, key=spec.key)
    if provider.api == "gemini":
        return Gemini(spec.worker, http, base_url=base_url, key=spec.key)
    return OpenAIChat(spec.worker, http, base_url=base_url, key=spec.key, dialect=provider.dialect)


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a worker answers."""

    seconds: float
    """How long the answer, or the error, took."""
    error: ClientError | None = None
    """None: it answered."""


async def check(client: Client) -> Check:
    """Asks for one word; costs a few tokens."""
    request = Request((user("Reply with the word ok."),), Sampling(max_tokens=CHECK_TOKENS))
    began = time.perf_counter()
    try:
        await client.complete(request)
    except ClientError as error:
        return Check(time.perf_counter() - began, error)
    return Check(time.perf_counter() - began)
