"""One call of one model over HTTP: what all dialects share.

A dialect is a `ProviderAdapter`: pure functions between our types and its JSON. `call_provider`
does the rest: sends, listens, counts, prices, and turns whatever goes wrong into one ClientError.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Protocol, final

from batuta.clients.decoding import need_string
from batuta.clients.error_mapping import error_from_reply
from batuta.clients.http_target import HttpTarget, with_host
from batuta.clients.transport import EventStream, HttpTransport
from batuta.core import (
    CallListener,
    Cost,
    Delta,
    Finish,
    Reply,
    Request,
    ToolCall,
    Usage,
    Worker,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.redaction import address_parts
from batuta.core.token_estimate import estimate_usage
from batuta.errors import (
    ClientError,
    InvalidReplyError,
    ProviderTimeoutError,
    StreamInterruptedError,
)
from batuta.usage import audio_surcharge, hour_cache_surcharge, usage_cost

MAX_TOOL_CALLS = 1024
"""Tool calls of one reply."""
_TURN_EVENTS = 64
"""Events of a stream after which others have their turn: a few milliseconds' work."""
_BATCH_EVENTS = 8
"""Events for which the reading of what came at once counts."""
_DECODING_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What decoding raises when JSON has not the shape of the dialect."""


class ErrorReply(Exception):
    """An error object in a reply of status 200: an adapter raises, `call_provider` catches it."""

    def __init__(self, payload: Any) -> None:
        super().__init__("an error object in a reply")
        self.payload = payload


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderReply:
    """A provider's reply, before it is counted and priced."""

    reply: Reply
    usage: Usage | None = None
    """None: the provider told none."""
    usd: Decimal | None = None
    """Dollars, where the provider tells them."""
    hour_cache_write: int = 0
    """Of the tokens that were written to a cache, those that are kept for an hour."""
    audio_input: int = 0
    """Of the tokens of the prompt that no cache gave, those of recordings."""


class StreamAccumulator(Protocol):
    """Takes a stream's events one by one; pure but for its own state."""

    @property
    def is_finished(self) -> bool:
        """The end of the reply was announced."""
        ...

    @property
    def is_closed(self) -> bool:
        """Nothing that matters can follow; reading may stop."""
        ...

    def add_event(self, event: str, data: bytes) -> Sequence[Delta]:
        """The fragments of one event.

        Raises:
            ClientError: the event is an error object.
        """
        ...

    def result(self) -> ProviderReply:
        """All that came so far."""
        ...


class ProviderAdapter(Protocol):
    """A dialect: our types to its JSON and back."""

    @property
    def supports_prefill(self) -> bool:
        """Whether `Request.prefill` is honoured."""
        ...

    def build_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """The JSON to send.

        Raises:
            ClientError: the dialect cannot say it.
        """
        ...

    def parse_reply(self, data: Any) -> ProviderReply:
        """A whole reply read.

        Raises:
            ClientError: it is an error object.
        """
        ...

    def new_accumulator(self) -> StreamAccumulator:
        """An empty reply, to be filled by events."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderEndpoint:
    """A worker, its dialect and the addresses at which it is called."""

    worker: Worker
    adapter: ProviderAdapter
    http: HttpTransport
    reply_target: HttpTarget
    stream_target: HttpTarget


class ProviderClient:
    """A worker behind a provider's API; each dialect's client says where that is."""

    def __init__(self, name: str, endpoint: ProviderEndpoint) -> None:
        """`name` is the dialect's, for people."""
        self.worker = endpoint.worker
        self._name = name
        self._endpoint = endpoint

    def __repr__(self) -> str:
        return f"{self._name}({self.worker.id!r} at {self._endpoint.reply_target.host})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """The model's reply; streamed if the listener wants fragments.

        Raises:
            ClientError: the call gave no usable reply.
        """
        return await call_provider(self._endpoint, request, listener)


async def call_provider(
    endpoint: ProviderEndpoint, request: Request, listener: CallListener
) -> Reply:
    """The reply of the line's worker, counted and priced.

    If the dialect honours `request.prefill`, the reply's text starts with it.

    Raises:
        ClientError: no usable reply; with the usage and cost that are known or estimated if the
            provider had already begun to answer.
    """
    sampling = request.sampling.with_defaults(endpoint.worker.sampling)
    if sampling is not request.sampling:
        request = replace(request, sampling=sampling)
    body = endpoint.adapter.build_body(request, stream=listener.streaming)
    if listener.streaming:
        provider_reply = await _stream_reply(endpoint, request, body, listener)
    else:
        provider_reply = await _fetch_reply(endpoint, request, body)
    return _complete_reply(endpoint, request, provider_reply)


async def _fetch_reply(
    line: ProviderEndpoint, request: Request, body: dict[str, Any]
) -> ProviderReply:
    try:
        data = await line.http.post(line.reply_target, body)
        try:
            return line.adapter.parse_reply(data)
        except ErrorReply as error:
            failure = _map_error_reply(line.reply_target, error)
        except _DECODING_ERRORS:
            failure = InvalidReplyError(
                "the provider answered with JSON that is not in its dialect"
            )
        raise with_host(line.reply_target, failure)
    except (ProviderTimeoutError, StreamInterruptedError, InvalidReplyError) as error:
        # The provider had taken the prompt and may charge for it.
        _attach_cost(error, line, request, ProviderReply(reply=Reply(text="")))
        raise


async def _stream_reply(
    line: ProviderEndpoint, request: Request, body: dict[str, Any], listener: CallListener
) -> ProviderReply:
    fold = line.adapter.new_accumulator()
    try:
        with await line.http.stream(line.stream_target, body) as events:
            if line.adapter.supports_prefill and request.prefill:
                await listener.on_delta(Delta(text=request.prefill))
            await _read_stream(line, fold, events, listener)
            await events.drain()
            return fold.result()
    except (ProviderTimeoutError, StreamInterruptedError, InvalidReplyError) as error:
        _attach_cost(error, line, request, fold.result())
        raise
    except ClientError as error:
        if fold.result().reply.text or fold.result().usage:
            _attach_cost(error, line, request, fold.result())
        raise


async def _read_stream(
    line: ProviderEndpoint, fold: StreamAccumulator, events: EventStream, listener: CallListener
) -> None:
    """Feeds `fold` until its reply is closed, or the connection ends after its announced end."""
    turn = _Turn()
    while not fold.is_closed:
        batch = await events.batch()
        if batch is None:
            if fold.is_finished:
                return
            broken = StreamInterruptedError("the provider ended its reply in the middle")
            raise with_host(events.target, broken)
        for event, data in batch:
            if fold.is_closed:
                return  # what a server says after its own end belongs to no reply
            for delta in _parse_event(line, fold, event, data):
                await listener.on_delta(delta)
            await turn.count(1)
        await turn.count(_BATCH_EVENTS)  # it may have been comments alone


class _Turn:
    """Lets others have the loop where a stream comes faster than it is passed on.

    What is there already is read without waiting, so such a stream would keep the loop to itself.
    """

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = 0

    async def count(self, work: int) -> None:
        """Notes work that was done, in events, and gives up the loop for a moment after some."""
        self._done += work
        if self._done >= _TURN_EVENTS:
            self._done = 0
            await asyncio.sleep(0)


def _parse_event(
    line: ProviderEndpoint, fold: StreamAccumulator, event: str, data: bytes
) -> Sequence[Delta]:
    target = line.stream_target
    try:
        return fold.add_event(event, data)
    except ErrorReply as error:
        failure = _map_error_reply(target, error)
    except _DECODING_ERRORS:
        failure = InvalidReplyError("the provider streamed an event that is not in its dialect")
    raise with_host(target, failure)


def _map_error_reply(target: HttpTarget, error: ErrorReply) -> ClientError:
    return error_from_reply(error.payload, target.key, address_parts(target.url))


def _complete_reply(
    line: ProviderEndpoint, request: Request, provider_reply: ProviderReply
) -> Reply:
    """The reply with its prefill, usage and cost."""
    reply = provider_reply.reply
    usage = provider_reply.usage or estimate_usage(request, reply)
    text = request.prefill + reply.text if line.adapter.supports_prefill else reply.text
    cost, model = _reply_cost(line, usage, provider_reply), reply.model or line.worker.model
    return replace(reply, text=text, usage=usage, cost=cost, model=model)


def _attach_cost(
    error: ClientError, line: ProviderEndpoint, request: Request, provider_reply: ProviderReply
) -> None:
    error.usage = provider_reply.usage or estimate_usage(request, provider_reply.reply)
    error.cost = _reply_cost(line, error.usage, provider_reply)


def _reply_cost(line: ProviderEndpoint, usage: Usage, provider_reply: ProviderReply) -> Cost:
    if provider_reply.usd is not None:
        return Cost(provider_reply.usd)
    price = line.worker.price
    cost = usage_cost(usage, price)
    if price is None or not (provider_reply.hour_cache_write or provider_reply.audio_input):
        return cost
    kept = hour_cache_surcharge(price, provider_reply.hour_cache_write)
    return cost + Cost(kept + audio_surcharge(price, provider_reply.audio_input))


@final
class ToolCallAccumulator:
    """The tool calls of a reply as their fragments come."""

    __slots__ = ("_arguments", "_ids", "_names")

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._names: list[str] = []
        self._arguments: list[list[str]] = []

    def __len__(self) -> int:
        return len(self._ids)

    def start_call(self, call_id: str, name: str, arguments: str = "") -> Delta:
        """A new call; one without an id is given one.

        Raises:
            TypeError: what a provider sent in place of a string is none.
            ValueError: they are too many.
        """
        for value in (call_id, name, arguments):
            need_string(value)
        if len(self) >= MAX_TOOL_CALLS:
            raise ValueError(f"more than {MAX_TOOL_CALLS:,} tool calls in one reply")
        self._ids.append(call_id or f"call_{secrets.token_hex(8)}")
        self._names.append(name)
        self._arguments.append([arguments])
        return Delta(
            tool_index=len(self) - 1,
            tool_id=self._ids[-1],
            tool_name=name,
            tool_arguments=arguments,
        )

    def add_arguments(self, index: int, arguments: str) -> Delta:
        """More of a call's arguments.

        Raises:
            TypeError: what a provider sent in place of a string is none.
        """
        need_string(arguments)
        self._arguments[index].append(arguments)
        return Delta(tool_index=index, tool_arguments=arguments)

    def call_id(self, index: int) -> str:
        """The id of a call."""
        return self._ids[index]

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls so far; one without arguments has an empty object."""
        rows = zip(self._ids, self._names, self._arguments, strict=True)
        return tuple(
            ToolCall(id=i, name=name, arguments="".join(parts) or "{}") for i, name, parts in rows
        )


def min_cap(*caps: int | None) -> int | None:
    """The lowest of the caps that there are; None: there is none."""
    return min((cap for cap in caps if cap is not None), default=None)


def resolve_finish(finish: Finish, calls: Sequence[ToolCall]) -> Finish:
    """`finish`, or TOOL_CALLS where a provider says `stop` although it calls tools."""
    return Finish.TOOL_CALLS if calls and finish is Finish.STOP else finish
