"""One call of one model over HTTP: what all providers' APIs share.

A `ProviderAdapter` implements one API: it converts between our types and the API's JSON.
`ProviderClient` does the rest: it sends requests, reads replies and streams, counts and prices
tokens, and turns a provider's failure into a ClientError.

All usage that providers state is checked by `count_reply` before it becomes tokens or cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, Self

import anyio.to_thread

from batuta.clients.adaptations import (
    MAX_ADAPTATIONS,
    NO_ADAPTATIONS,
    Adaptations,
    LearnedAdaptations,
)
from batuta.clients.call_changes import change_for_call
from batuta.clients.decoding import (
    ErrorReply,
    ProviderReply,
    as_object,
    dump_json,
    with_joined_halves,
)
from batuta.clients.error_mapping import describe_wrong_format, find_stated_error
from batuta.clients.http_target import HttpTarget, with_host
from batuta.clients.reply_cost import count_reply, has_small_usage, price_searches
from batuta.clients.stream_reading import (
    DECODING_ERRORS,
    StreamAccumulator,
    map_error_reply,
    read_stream,
)
from batuta.clients.transport import HttpTransport, WholeBody
from batuta.core import CallListener, Delta, Reply, Request, Worker
from batuta.core.conductor import NULL_LISTENER
from batuta.core.json_values import LARGE_BODY
from batuta.errors import (
    ClientError,
    FormRefusedError,
    InvalidReplyError,
    ProviderTimeoutError,
    StreamInterruptedError,
)
from batuta.offload.threads import read_off_loop

_MANY_PARTS = 1000
"""A request with more message parts is converted to the API's JSON in a thread; converting this
many takes some 10 ms."""


class ProviderAdapter(Protocol):
    """One provider API: converts our types to its JSON and back."""

    @property
    def supports_prefill(self) -> bool:
        """Whether `Request.prefill` is honoured."""
        ...

    def build_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """Return the JSON to send.

        Raises:
            ClientError: the API cannot express the request.
        """
        ...

    def parse_reply(self, data: Any) -> ProviderReply:
        """Parse a complete reply.

        Raises:
            ErrorReply: `data` is an error object, or its finish reason states an error.
            AttributeError, IndexError, KeyError, TypeError or ValueError: `data` is malformed.
        """
        ...

    def new_accumulator(self) -> StreamAccumulator:
        """Return an accumulator for a new reply."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProviderEndpoint:
    """A worker with its adapter, its addresses and what was learned from its server's refusals."""

    worker: Worker
    adapter: ProviderAdapter
    http: HttpTransport
    reply_target: HttpTarget
    stream_target: HttpTarget
    learned: LearnedAdaptations = field(default_factory=LearnedAdaptations)


class ProviderClient:
    """A worker behind a provider's API; each API has a subclass that sets adapter and address."""

    def __init__(
        self,
        name: str,
        worker: Worker,
        http: HttpTransport,
        *,
        adapter: ProviderAdapter,
        target: HttpTarget,
        stream_target: HttpTarget | None = None,
    ) -> None:
        """Create the client; `name` is for `repr`, `stream_target` defaults to `target`."""
        self.worker = worker
        self._name = name
        self._endpoint = _ProviderEndpoint(
            worker=worker,
            adapter=adapter,
            http=http,
            reply_target=target,
            stream_target=stream_target or target,
        )

    def adapt(self, adaptations: Adaptations) -> Self:
        """Apply these adaptations from the first request on; return this client."""
        if adaptations != NO_ADAPTATIONS:
            self._endpoint.learned.keep(adaptations)
        return self

    def __repr__(self) -> str:
        return f"{self._name}({self.worker.id!r} at {self._endpoint.reply_target.host})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the model's reply with usage and cost; stream it if the listener wants deltas.

        If the API honours `request.prefill`, the reply's text starts with it.

        Raises:
            ClientError: there is no usable reply; the error has the known or estimated usage and
                cost if the provider may charge for the call.
        """
        endpoint = self._endpoint
        sampling = request.sampling.with_defaults(endpoint.worker.sampling)
        if sampling is not request.sampling:
            request = replace(request, sampling=sampling)
        adapter, streams = endpoint.adapter, listener.streaming
        form = await _adapt_off_loop(adapter, endpoint.learned.current, request, stream=streams)
        tried = [form.body]
        while True:
            try:
                if streams:
                    provider_reply = await _stream_reply(
                        endpoint, form.request, form.body, listener
                    )
                else:
                    provider_reply = await _fetch_reply(endpoint, form.request, form.body)
            except ClientError as error:
                other = _other_form(endpoint, form, error, tried)
                if other is None:
                    raise
            else:
                if form.adaptations is not endpoint.learned.current:
                    endpoint.learned.keep(form.adaptations)
                return await _count_off_loop(endpoint, form.request, provider_reply)
            form = other
            tried.append(form.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """A request after its adaptations, as it is sent."""

    original: Request
    """The request before its adaptations."""
    adaptations: Adaptations
    request: Request
    body: dict[str, Any]
    stream: bool


def _adapt_request(
    adapter: ProviderAdapter, adaptations: Adaptations, original: Request, *, stream: bool
) -> _Form:
    """Return the request with the known adaptations to the worker's server applied."""
    if adaptations is NO_ADAPTATIONS:
        request, body = original, adapter.build_body(original, stream=stream)
    else:
        request = adaptations.adapt_request(original)
        body = adaptations.adapt_body(adapter.build_body(request, stream=stream))
    return _Form(
        original=original, adaptations=adaptations, request=request, body=body, stream=stream
    )


async def _adapt_off_loop(
    adapter: ProviderAdapter, adaptations: Adaptations, original: Request, *, stream: bool
) -> _Form:
    """Call `_adapt_request`, in a thread if the request has many parts."""
    adapt = partial(_adapt_request, adapter, adaptations, original, stream=stream)
    if sum(len(message.parts) for message in original.messages) <= _MANY_PARTS:
        return adapt()
    return await anyio.to_thread.run_sync(adapt)


def _other_form(
    endpoint: _ProviderEndpoint, form: _Form, error: ClientError, tried: Sequence[dict[str, Any]]
) -> _Form | None:
    """Return another form of the request that may avoid the error.

    Returns None if there is none, or if `MAX_ADAPTATIONS` other forms were sent. A call with known
    usage is not repeated here, so that its cost is counted first.

    Raises:
        FormRefusedError: the server cannot enforce the response format, and describing it in the
            prompt does not suffice. The client remembers this.
    """
    if error.usage is not None or not error.words or len(tried) > MAX_ADAPTATIONS:
        return None
    changed = change_for_call(error, form.original, form.body)
    if changed is not None:
        other = _adapt_request(endpoint.adapter, form.adaptations, changed, stream=form.stream)
        if other.body not in tried:
            return other
    described: Adaptations | None = None
    for adaptations in form.adaptations.remedies(error, form.original, form.body):
        if adaptations.only_describes_format(form.original):
            described = described or adaptations
            continue
        other = _adapt_request(endpoint.adapter, adaptations, form.original, stream=form.stream)
        if other.body not in tried:
            return other
    if described is not None:
        endpoint.learned.keep(described)
        raise FormRefusedError(str(error), status=error.status) from error
    return None


async def _fetch_reply(
    endpoint: _ProviderEndpoint, request: Request, body: dict[str, Any]
) -> ProviderReply:
    accumulator = endpoint.adapter.new_accumulator()
    try:
        opened = await endpoint.http.open_reply(endpoint.reply_target, body, streamed=False)
        if isinstance(opened, WholeBody):
            return await _parse_whole(endpoint, endpoint.reply_target, opened, accumulator)
        with opened:
            return await read_stream(endpoint.stream_target, accumulator, opened, NULL_LISTENER)
    except (ProviderTimeoutError, StreamInterruptedError, InvalidReplyError) as error:
        # The provider had accepted the prompt and may charge for it.
        _attach_cost(error, endpoint, request, accumulator.result())
        raise
    except ClientError as error:
        if (result := accumulator.result()).usage:
            _attach_cost(error, endpoint, request, result)
        raise


async def _stream_reply(
    endpoint: _ProviderEndpoint, request: Request, body: dict[str, Any], listener: CallListener
) -> ProviderReply:
    accumulator, sent = endpoint.adapter.new_accumulator(), False
    try:
        opened = await endpoint.http.open_reply(endpoint.stream_target, body, streamed=True)
        if isinstance(opened, WholeBody):
            provider_reply = await _parse_whole(
                endpoint, endpoint.stream_target, opened, accumulator
            )
            await _send_whole(endpoint, provider_reply.reply, request, listener)
            return provider_reply
        with opened as events:
            if endpoint.adapter.supports_prefill and request.prefill:
                sent = True
                await listener.on_delta(Delta(text=request.prefill))
            return await read_stream(endpoint.stream_target, accumulator, events, listener)
    except (ProviderTimeoutError, StreamInterruptedError, InvalidReplyError) as error:
        _attach_cost(error, endpoint, request, accumulator.result())
        raise
    except ClientError as error:
        result = accumulator.result()
        own = result.reply
        has_begun = own.text or own.reasoning or own.tool_calls or own.server_calls or own.images
        if has_begun or result.usage:
            _attach_cost(error, endpoint, request, result)
        if sent:
            error.words = ""  # prevents a retry in another form: the prefill was already passed on
        raise


async def _send_whole(
    endpoint: _ProviderEndpoint, reply: Reply, request: Request, listener: CallListener
) -> None:
    """Pass the text, reasoning, server calls and images of a whole reply to the listener.

    The provider sent the whole reply although a stream was requested. Tool calls, thoughts and
    alternatives are not passed on.
    """
    prefill = request.prefill if endpoint.adapter.supports_prefill else ""
    sent = 0
    for call in reply.server_calls:
        if before := reply.text[sent : call.at]:
            await listener.on_delta(Delta(text=before))
        sent = max(sent, call.at)
        await listener.on_delta(Delta(server_call=call))
    rest = prefill + reply.text[sent:]
    if rest or reply.reasoning:
        await listener.on_delta(Delta(text=rest, reasoning=reply.reasoning))
    for image in reply.images:
        await listener.on_delta(Delta(image=image))


async def _parse_whole(
    endpoint: _ProviderEndpoint, target: HttpTarget, body: WholeBody, accumulator: StreamAccumulator
) -> ProviderReply:
    """Parse a whole reply; add the usage that a faulty reply states to the accumulator.

    Raises:
        ClientError: the reply is an error, or is malformed.
    """
    try:
        return await body.read(target, lambda data: _parse_reply(endpoint, target, data))
    except _FaultyReplyError as caught:
        faulty = caught
    usage = {name: faulty.data.get(name) for name in ("usage", "usageMetadata")}
    with suppress(ErrorReply, *DECODING_ERRORS):
        accumulator.add_event("", dump_json(usage).encode())
    raise faulty.error


class _FaultyReplyError(Exception):
    """A whole reply that is an error or malformed, with its data."""

    def __init__(self, error: ClientError, data: Any) -> None:
        super().__init__(str(error))
        self.error = error
        self.data = as_object(data)


def _parse_reply(endpoint: _ProviderEndpoint, target: HttpTarget, data: Any) -> ProviderReply:
    """Parse a whole reply.

    Raises:
        _FaultyReplyError: the reply is an error, or not in the API's format.
    """
    try:
        return with_joined_halves(endpoint.adapter.parse_reply(data))
    except ErrorReply as error:
        failure = map_error_reply(target, error)
    except DECODING_ERRORS:
        stated = find_stated_error(data)
        failure = (
            InvalidReplyError(f"the provider answered with JSON {describe_wrong_format(data)}")
            if stated is None
            else map_error_reply(target, ErrorReply(stated))
        )
    raise _FaultyReplyError(with_host(target, failure), data)


async def _count_off_loop(
    endpoint: _ProviderEndpoint, request: Request, provider_reply: ProviderReply
) -> Reply:
    """Call `_complete_reply`, in a thread if much text must be counted."""
    reply = provider_reply.reply
    complete = partial(_complete_reply, endpoint, request, provider_reply)
    if len(reply.text) + len(reply.reasoning) > LARGE_BODY:
        return await anyio.to_thread.run_sync(complete)
    if has_small_usage(provider_reply):
        return complete()  # the request need not be read
    return await read_off_loop(request.messages, complete)


def _complete_reply(
    endpoint: _ProviderEndpoint, request: Request, provider_reply: ProviderReply
) -> Reply:
    """Return the reply with prefill, usage, cost and the model that it names, else the worker's."""
    reply = provider_reply.reply
    is_partial = provider_reply.usage_is_partial
    usage, cost = count_reply(endpoint.worker, request, provider_reply, partial=is_partial)
    text = request.prefill + reply.text if endpoint.adapter.supports_prefill else reply.text
    model = reply.model or endpoint.worker.model
    calls = price_searches(endpoint.worker, request, reply)
    return replace(reply, text=text, usage=usage, cost=cost, model=model, server_calls=calls)


def _attach_cost(
    error: ClientError, endpoint: _ProviderEndpoint, request: Request, provider_reply: ProviderReply
) -> None:
    error.usage, error.cost = count_reply(endpoint.worker, request, provider_reply, partial=True)


def min_cap(*caps: int | None) -> int | None:
    """Return the lowest cap that is not None; None if there is none."""
    return min((cap for cap in caps if cap is not None), default=None)
