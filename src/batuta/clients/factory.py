"""Creates a worker's client from its spec, also over several deployments of one model."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any, final

from batuta.clients.adaptations import Adaptations
from batuta.clients.anthropic.client import AnthropicClient
from batuta.clients.cloud_credentials import open_signer
from batuta.clients.gemini.client import GeminiClient
from batuta.clients.http_target import url_host
from batuta.clients.limits import CallLimiter, RateLimitedClient, Throttle
from batuta.clients.openai.client import OpenAIChatClient, TextCallClient
from batuta.clients.openai.embeddings import EmbeddingClient
from batuta.clients.openai.images import ImageClient
from batuta.clients.openai.responses import OpenAIResponsesClient, ResponsesOrChatClient
from batuta.clients.providers import (
    COMPATIBLE,
    Provider,
    WorkerSpec,
    asks_by_responses,
    find_provider,
    spec_identity,
)
from batuta.clients.redis_connections import ProviderCaps, RedisConnections, RedisSlots
from batuta.clients.resilience import (
    BreakerPolicy,
    CircuitBreakerClient,
    RetryClient,
    RetryPolicy,
    WorkerHealth,
)
from batuta.clients.think_tags import ThinkTagClient
from batuta.clients.transport import HttpTransport
from batuta.core import (
    CallListener,
    Client,
    Delta,
    Failure,
    Finish,
    Reply,
    Request,
    Role,
    Sampling,
    Worker,
    WorkerId,
    user_message,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.worker import EMBEDDINGS, IMAGE, PROGRAM, READER
from batuta.errors import (
    BadRequestError,
    CircuitOpenError,
    ClientError,
    ConfigError,
    ContextLengthError,
    NotRecordedError,
    ProviderOverloadedError,
)
from batuta.usage import ZERO_USAGE, Usage

_REQUEST_ERRORS = (BadRequestError, ContextLengthError, NotRecordedError)
"""Errors of the request itself, which is then sent to no other deployment."""
_IDENTIFYING_CHARACTERS = 2_000
"""Number of first characters of each message by which a conversation is identified."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model at one address."""

    client: Client
    weight: float = 1.0
    """Share of the calls, relative to the other weights; 0: called only if the others fail or are
    skipped."""
    throttle: Throttle | None = None
    """The pause of `client` after rate limits; None: it never pauses."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise ValueError("a weight must be a finite number that is not negative")


COOLDOWN = BreakerPolicy(failures=1, pause=15.0)
"""A deployment is skipped after one failure, other than a rate limit or an error of the request:
for 15 seconds, then each time twice as long, up to 5 minutes."""


@final
class Deployments:
    """Calls one of the deployments, and the others in turn as long as the call fails.

    A conversation stays at its deployment, where its prompt is cached. A deployment that has failed
    is skipped for a while (see `COOLDOWN`), unless all have: then all are called nevertheless. A
    deployment that pauses after a rate limit is called only if the others fail or pause too.
    """

    def __init__(self, members: Sequence[Deployment]) -> None:
        if not members:
            raise ValueError("a model needs at least one deployment")
        self._members = tuple(
            (
                CircuitBreakerClient(each.client, WorkerHealth(COOLDOWN), "a deployment"),
                each.weight,
                each.throttle,
            )
            for each in members
        )

    def __repr__(self) -> str:
        return f"Deployments({len(self._members)})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply of the first deployment that gives one.

        Raises:
            ClientError: the request is invalid, the last deployment failed too, or the listener
                forbids a further attempt.
            LimitReachedError: the budget does not allow a further attempt.
        """
        ordered = self._in_order(request)
        able = [each for each in ordered if not each.health.wait]
        *others, last = able or ordered
        for each in others:
            try:
                return await (each if able else each.inner).complete(request, listener)
            except _REQUEST_ERRORS:
                raise
            except CircuitOpenError:
                continue  # nothing was sent
            except ClientError as error:
                failure = Failure.of(error)
            await listener.on_failure(failure)
        if able:
            with suppress(CircuitOpenError):  # another call probes it at this moment
                return await last.complete(request, listener)
        return await last.inner.complete(request, listener)

    def _in_order(self, request: Request) -> list[CircuitBreakerClient]:
        """Return all deployments in a weighted random order, those that pause last.

        The order is the same for one conversation while none pauses.
        """
        rng = Random(_conversation_beginning(request))
        drawn = [
            (_is_paused(throttle), rng.expovariate(weight) if weight else math.inf, number)
            for number, (_, weight, throttle) in enumerate(self._members)
        ]
        return [self._members[number][0] for *_, number in sorted(drawn)]


def _is_paused(throttle: Throttle | None) -> bool:
    """Return True if a call would have to wait now, because the server asked to slow down."""
    return throttle is not None and throttle.remaining_wait() > 0


def _conversation_beginning(request: Request) -> str:
    """Return the part of a request that stays the same while a conversation grows."""
    if request.cache is not None and request.cache.key is not None:
        return request.cache.key
    texts: list[str] = []
    for message in request.messages:
        texts.append(message.text[:_IDENTIFYING_CHARACTERS])
        if message.role is Role.USER:
            break
    return "\0".join(texts)


CHECK_MAX_TOKENS = 64
"""Maximum number of output tokens of a check, with room for a little reasoning before "ok"."""


def open_client(
    spec: WorkerSpec,
    http: HttpTransport,
    *,
    policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    limiter: CallLimiter | None = None,
    health: WorkerHealth | None = None,
    shared: RedisConnections | None = None,
) -> Client:
    """Return a worker's client with its limits, circuit breaker and retries.

    A call that waits for its retry holds no slot of the limiter.

    Args:
        spec: the worker and how it is reached.
        http: the shared transport.
        policy: the retries.
        limiter: a limiter shared with other clients, such as those of the same key; None: a
            separate one with the spec's limits. The spec's further deployments have their own.
        health: records the worker's failures and opens its circuit breaker; None: no breaker.
        shared: Redis, where limits are counted over all processes, except those of `limiter`; None:
            limits hold per process.

    Raises:
        ConfigError: the provider is unknown, its base URL or key is missing or invalid, an extra is
            not installed, or the provider does not support a setting of the worker.
    """
    client = _create_limited_client(spec, http, limiter, shared)
    if spec.deployments:
        client = _create_deployments_client(spec, client, http, shared)
    if health is not None:
        client = CircuitBreakerClient(client, health, spec.worker.id)
    return RetryClient(client, policy, identity=spec_identity(spec))


def _create_limited_client(
    spec: WorkerSpec,
    http: HttpTransport,
    limiter: CallLimiter | None = None,
    shared: RedisConnections | None = None,
) -> RateLimitedClient:
    """Return the client of one address, with its limits."""
    if limiter is None:
        slots = None if shared is None else _shared_slots(spec, shared)
        limiter = CallLimiter(spec.concurrency, spec.rpm, spec.tpm, shared=slots)
    return RateLimitedClient(open_provider_client(spec, http), limiter)


def _create_deployments_client(
    spec: WorkerSpec, first: RateLimitedClient, http: HttpTransport, shared: RedisConnections | None
) -> Client:
    members = [(first, spec.weight)]
    members += [
        (_create_limited_client(each.spec, http, shared=shared), each.weight)
        for each in spec.deployments
    ]
    return Deployments([Deployment(each, share, each.limiter.throttle) for each, share in members])


def _shared_slots(spec: WorkerSpec, shared: RedisConnections) -> RedisSlots:
    """Return the limits that all processes share for this worker id, model and host."""
    host = url_host(spec.base_url or find_provider(spec.provider).base_url)
    account = f"{spec.worker.id}/{spec.worker.model}@{host}"
    return RedisSlots(shared, account, ProviderCaps(spec.concurrency, spec.rpm, spec.tpm))


def open_clients(
    specs: Iterable[WorkerSpec],
    http: HttpTransport,
    health: Mapping[WorkerId, WorkerHealth] | None = None,
    shared: RedisConnections | None = None,
) -> dict[WorkerId, Client]:
    """Return clients by worker id; workers that `health` names have a circuit breaker.

    With `shared` all clients' limits hold over all processes.

    Raises:
        ConfigError: a worker cannot be called; see `open_client`.
    """
    known = health or {}
    return {
        spec.worker.id: open_client(spec, http, health=known.get(spec.worker.id), shared=shared)
        for spec in specs
    }


def open_provider_client(spec: WorkerSpec, http: HttpTransport) -> Client:
    """Return the client of the spec's own address, without limits, retries and deployments.

    Raises:
        ConfigError: the provider is unknown, its base URL or key is missing or invalid, an extra is
            not installed, or the provider does not support a setting of the worker.
    """
    provider = find_provider(spec.provider)
    base_url = spec.base_url or provider.base_url
    if not base_url:
        known = f", or set {' or '.join(provider.url_vars)}" if provider.url_vars else ""
        raise ConfigError(f"worker {spec.worker.id} needs a base_url{known}")
    takes_key = provider.key_vars and not provider.local
    if takes_key and not spec.key and not (spec.base_url and provider.base_url):
        http = _signed_transport(spec, provider, base_url, http)
    if spec.extra_body and (provider.api != "chat" or EMBEDDINGS in spec.worker.tags):
        raise ConfigError(
            f"worker {spec.worker.id}: extra_body is for chat completions, responses and images of "
            "OpenAI's form only"
        )
    if EMBEDDINGS in spec.worker.tags:
        return _open_embedding_client(spec, provider, base_url, http)
    adaptations = Adaptations(kinds=frozenset(spec.adapt), fields=spec.field_names)
    if provider.api == "anthropic":
        client = AnthropicClient(spec.worker, http, base_url=base_url, key=spec.key)
        return client.adapt(adaptations)
    if provider.api == "gemini":
        client = GeminiClient(spec.worker, http, base_url=base_url, key=spec.key)
        return client.adapt(adaptations)
    return _open_openai_client(spec, provider, base_url, http)


def _open_openai_client(
    spec: WorkerSpec, provider: Provider, base_url: str, http: HttpTransport
) -> Client:
    images = spec.openai_api == "images"
    extra: dict[str, Any] = {} if images else {**provider.dialect.extra}
    if IMAGE in spec.worker.tags and not images:
        extra["modalities"] = ["image", "text"]
    dialect = replace(provider.dialect, extra={**extra, **spec.extra_body})
    adaptations = Adaptations(
        kinds=frozenset((*dialect.adapt, *spec.adapt)), fields=spec.field_names
    )
    common: dict[str, Any] = {"base_url": base_url, "key": spec.key, "dialect": dialect}
    if images:
        return ImageClient(spec.worker, http, **common)
    chat = OpenAIChatClient(spec.worker, http, **common).adapt(adaptations)
    if not asks_by_responses(spec):
        tags = spec.think_tags
        read = chat if tags == "off" else ThinkTagClient(chat, tags)
        if provider.local or provider.name == COMPATIBLE:
            read = TextCallClient(read)
        return StreamedClient(read) if provider.always_streams else read
    if dialect.merges_system:
        kinds = adaptations.kinds | {"merge_first_system_messages"}
        adaptations = replace(adaptations, kinds=kinds)
    responses = OpenAIResponsesClient(spec.worker, http, **common).adapt(adaptations)
    may_lack_responses = spec.openai_api is None and base_url != provider.base_url
    return ResponsesOrChatClient(responses, chat) if may_lack_responses else responses


def _signed_transport(
    spec: WorkerSpec, provider: Provider, base_url: str, http: HttpTransport
) -> HttpTransport:
    """Return a transport that signs requests with the cloud's credentials instead of a key."""
    lacks = f"worker {spec.worker.id} needs a key: set {' or '.join(provider.key_vars)}"
    if provider.cloud is None:
        raise ConfigError(lacks)
    try:
        return http.signed_by(open_signer(provider.cloud, base_url))
    except ConfigError as error:
        raise ConfigError(f"{lacks}, {error}") from None


def _open_embedding_client(
    spec: WorkerSpec, provider: Provider, base_url: str, http: HttpTransport
) -> Client:
    if provider.api != "chat":
        message = f"embeddings of the provider {provider.name} are not supported"
        raise ConfigError(f"worker {spec.worker.id} has the tag '{EMBEDDINGS}': {message}")
    return EmbeddingClient(
        spec.worker, http, base_url=base_url, key=spec.key, dialect=provider.dialect
    )


_CHECK_WORDS = "Reply with the word ok."
_CHECK_PROGRAM = "```python\nprint('ok')\n```"


@dataclass(frozen=True, slots=True)
class WorkerCheck:
    """The result of a short test call to a worker."""

    seconds: float
    """Time until the answer or the error."""
    error: ClientError | None = None
    """None: the worker answered."""
    usage: Usage = ZERO_USAGE
    """The tokens of the call; `ZERO_USAGE` if they are not known."""


async def check_worker(client: Client, worker: Worker) -> WorkerCheck:
    """Ask the worker for one word; this costs a few tokens, one tool call or one image.

    A failed call is returned, not raised. A worker that reads web pages gets no URL; its reply that
    there is none counts as an answer.
    """
    words = _CHECK_PROGRAM if PROGRAM in worker.tags else _CHECK_WORDS
    request = Request(
        messages=(user_message(words),),
        sampling=Sampling(max_tokens=CHECK_MAX_TOKENS),
    )
    began = time.perf_counter()
    try:
        reply = await client.complete(request)
    except ClientError as error:
        return WorkerCheck(time.perf_counter() - began, error, error.usage or ZERO_USAGE)
    seconds = time.perf_counter() - began
    if reply.finish is Finish.NO_OUTPUT and READER not in worker.tags:  # a tool's error
        sentence = reply.text.removeprefix(f"{words}: ")
        failure = ProviderOverloadedError(sentence.partition("\n")[0])
        return WorkerCheck(seconds, failure, reply.usage)
    return WorkerCheck(seconds, None, reply.usage)


@final
class StreamedClient:
    """Streams all replies, even if the caller wants no deltas.

    A slow machine may need minutes for a whole reply. In a stream llama.cpp sends comments to keep
    the connection alive, so the call does not time out.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply; a listener that does not stream receives no deltas.

        Raises:
            ClientError: the call failed.
        """
        return await self._client.complete(request, _StreamedListener(listener))


@final
class _StreamedListener:
    streaming = True

    def __init__(self, listener: CallListener) -> None:
        self._listener = listener

    async def before_call(self, request: Request, worker: Worker) -> Request:
        return await self._listener.before_call(request, worker)

    async def on_delta(self, delta: Delta) -> None:
        if self._listener.streaming:
            await self._listener.on_delta(delta)

    async def on_failure(self, failure: Failure) -> None:
        await self._listener.on_failure(failure)
