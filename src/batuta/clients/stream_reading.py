"""Reads a streamed reply: accumulates its events, and passes their deltas to a listener.

Text deltas received together are merged into one; the first half of a surrogate pair waits for the
second half.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, final

import anyio

from batuta.clients.decoding import (
    ErrorReply,
    ProviderReply,
    SseEvent,
    join_halves,
    join_thought,
    with_joined_halves,
)
from batuta.clients.error_mapping import (
    decode_body,
    describe_wrong_format,
    error_from_reply,
    find_stated_error,
)
from batuta.clients.http_target import HttpTarget, with_host
from batuta.clients.transport import DRAIN_SECONDS, EventStream
from batuta.core import CallListener, Delta
from batuta.core.redaction import address_parts
from batuta.errors import (
    ClientError,
    InvalidReplyError,
    ProviderTimeoutError,
    StreamInterruptedError,
)

_EVENTS_PER_YIELD = 64
"""Events after which the loop yields to other tasks: a few milliseconds of work."""
USAGE_SECONDS = 10.0
"""Seconds to wait for an event, such as the usage, after a reply has given its finish reason."""
COUNTS_SECONDS = 0.5
"""Seconds of silence that end the search for the usage after an error or a malformed event."""
_BATCH_EVENTS = 8
"""The work of reading one chunk, as a number of events."""
_KNOWN_EVENTS = 1024
"""Number of different events after the end of a reply that are remembered, to skip repetitions."""
DECODING_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Errors raised when JSON does not have the shape of the API's format."""
_FIRST_HALVES = ("\ud800", "\udbff")
"""The first and the last high surrogate."""


class StreamAccumulator(Protocol):
    """Builds a reply from a stream's events; no side effects beyond its own state."""

    @property
    def is_finished(self) -> bool:
        """Whether the stream has announced the end of the reply."""
        ...

    @property
    def is_closed(self) -> bool:
        """True if nothing relevant can follow; reading may stop."""
        ...

    def add_event(self, event: str, data: bytes) -> Sequence[Delta]:
        """Add an event; return its deltas.

        Raises:
            ErrorReply: the event states an error.
            AttributeError, IndexError, KeyError, TypeError or ValueError: the event is malformed.
        """
        ...

    def result(self) -> ProviderReply:
        """Return what has been received of the reply so far."""
        ...


@final
class HalfJoiner:
    """Joins surrogate pairs split between deltas; holds the first half until the second arrives."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int, int | None], str] = {}

    def join(self, delta: Delta) -> Delta:
        """Return the delta with any held half prepended; hold a first half at its end."""
        if not self._waiting and _is_ascii(delta):
            return delta
        key = (delta.choice, delta.tool_index)
        return replace(
            delta,
            text=self._joined(delta.text, ("text", *key)),
            reasoning=self._joined(delta.reasoning, ("reasoning", *key)),
            tool_arguments=self._joined(delta.tool_arguments, ("arguments", *key)),
            tool_id=join_halves(delta.tool_id),
            tool_name=join_halves(delta.tool_name),
            thought=delta.thought and join_thought(delta.thought),
        )

    def _joined(self, text: str, key: tuple[str, int, int | None]) -> str:
        if not text:
            return text
        text = self._waiting.pop(key, "") + text
        if _FIRST_HALVES[0] <= text[-1] <= _FIRST_HALVES[1]:
            self._waiting[key] = text[-1]
            text = text[:-1]
        return join_halves(text)


@final
class FragmentSender:
    """Passes the deltas of a stream to a listener.

    Consecutive text deltas received in one chunk are merged into one, because passing on a delta
    costs the same however short it is.
    """

    __slots__ = ("_halves", "_held", "_listener", "_pieces")

    def __init__(self, listener: CallListener) -> None:
        self._listener = listener
        self._halves = HalfJoiner()
        self._held: Delta | None = None
        """The first delta that was not sent yet; None if all were sent."""
        self._pieces: list[str] = []
        """The texts of the held deltas after the first."""

    async def add(self, delta: Delta) -> None:
        """Send the delta; plain text is held until `send_held` or a delta of another kind."""
        held, is_plain = self._held, _is_plain_text(delta)
        if held is not None:
            if is_plain and _is_same_kind(held, delta):
                self._pieces.append(delta.text or delta.reasoning)
                return
            await self.send_held()
        if is_plain:
            self._held = delta
        else:
            await self._listener.on_delta(self._halves.join(delta))

    async def send_held(self) -> None:
        """Send the held deltas as one."""
        held, pieces = self._held, self._pieces
        if held is None:
            return
        self._held = None
        if pieces:
            self._pieces = []
            rest = "".join(pieces)
            texts = (
                {"text": held.text + rest} if held.text else {"reasoning": held.reasoning + rest}
            )
            held = replace(held, **texts)
        await self._listener.on_delta(self._halves.join(held))


def _is_plain_text(delta: Delta) -> bool:
    """Return True if the delta is a piece of text, or of reasoning, and nothing else."""
    if bool(delta.text) is bool(delta.reasoning) or delta.tool_index is not None or delta.logprobs:
        return False
    return delta.thought is None and delta.server_call is None


def _is_same_kind(one: Delta, other: Delta) -> bool:
    """Return True if both deltas are pieces of the same text."""
    return (
        bool(one.text) is bool(other.text)
        and one.choice == other.choice
        and one.is_refusal is other.is_refusal
    )


def _is_ascii(delta: Delta) -> bool:
    texts = (delta.text, delta.reasoning, delta.tool_arguments, delta.tool_id, delta.tool_name)
    return delta.thought is None and all(map(str.isascii, texts))


async def read_stream(
    target: HttpTarget,
    accumulator: StreamAccumulator,
    events: EventStream,
    listener: CallListener,
) -> ProviderReply:
    """Read the stream until the reply has ended; return the accumulated reply.

    Raises:
        ClientError: the stream contains an error, is malformed or too large, stops, or ends too
            early.
    """
    yielder, sender = _LoopYielder(), FragmentSender(listener)
    trailing: Sequence[SseEvent] = ()
    while not accumulator.is_closed:
        batch = await _next_batch(accumulator, events)
        if batch is None:
            await _read_rest(target, accumulator, events, sender)
            break
        for position, (event, data) in enumerate(batch):
            try:
                deltas = _parse_event(target, accumulator, event, data)
            except ClientError:
                await sender.send_held()
                await _read_trailing(
                    target, accumulator, events, batch[position + 1 :], silence=COUNTS_SECONDS
                )
                raise
            for delta in deltas:  # one event may have thousands
                await sender.add(delta)
                await yielder.count(1)
            if not deltas:
                await yielder.count(1)
            if accumulator.is_closed:
                trailing = batch[position + 1 :]
                break
        await sender.send_held()
        await yielder.count(_BATCH_EVENTS)  # the chunk may have had only comments
    return with_joined_halves(await _check_end(target, accumulator, events, trailing))


async def _check_end(
    target: HttpTarget,
    accumulator: StreamAccumulator,
    events: EventStream,
    trailing: Sequence[SseEvent],
) -> ProviderReply:
    """Return the reply with any usage that follows its end.

    Raises:
        InvalidReplyError: text that is not in the reply, or a tool call, follows its end.
    """
    result = accumulator.result()
    if not trailing and events.is_over:
        return result
    deltas = await _read_trailing(target, accumulator, events, trailing, silence=DRAIN_SECONDS)
    text = "".join(delta.text + delta.reasoning for delta in deltas).strip()
    known = result.reply.text + result.reply.reasoning
    if text not in known or any(delta.tool_index is not None for delta in deltas):
        broken = InvalidReplyError("the provider sent more text after the end of its reply")
        raise with_host(events.target, broken)
    return replace(accumulator.result(), reply=result.reply)


async def _read_trailing(
    target: HttpTarget,
    accumulator: StreamAccumulator,
    events: EventStream,
    batch: Sequence[SseEvent],
    *,
    silence: float,
) -> list[Delta]:
    """Return the deltas of the events after the end of the reply, an error or a malformed event.

    The usage at the end of a stream must be counted. And a connection can be reused only if its
    body was read to the end.

    Args:
        target: the called address, for errors.
        accumulator: takes the events and their usage.
        events: the stream.
        batch: events that were received but not parsed yet.
        silence: seconds without data after which reading stops; it stops after `USAGE_SECONDS` in
            any case.
    """
    more: Sequence[SseEvent] | None = batch
    yielder, trailing = _LoopYielder(), _TrailingEvents(target, accumulator)
    ends = time.monotonic() + USAGE_SECONDS
    while more is not None and time.monotonic() < ends:
        for event in more:
            if trailing.add(event):
                await yielder.count(1)
        await yielder.count(_BATCH_EVENTS)
        more = await _batch_within(events, silence)
    for event in events.rest():
        trailing.add(event)
    return trailing.deltas


@final
class _TrailingEvents:
    """Reads events after the end of a reply.

    Some servers repeat their whole reply many times after its end. A repeated event adds no new
    text and no higher counts, so it is not parsed again.
    """

    def __init__(self, target: HttpTarget, accumulator: StreamAccumulator) -> None:
        self._target = target
        self._accumulator = accumulator
        self._known: dict[SseEvent, Sequence[Delta]] = {}
        self.deltas: list[Delta] = []

    def add(self, event: SseEvent) -> bool:
        """Add an event; return False if it is a repetition."""
        deltas = self._known.get(event)
        is_new = deltas is None
        if deltas is None:
            deltas = ()
            with suppress(ClientError):
                deltas = _parse_event(self._target, self._accumulator, *event)
            if len(self._known) < _KNOWN_EVENTS:
                self._known[event] = deltas
        self.deltas += deltas
        return is_new


async def _batch_within(events: EventStream, seconds: float) -> list[SseEvent] | None:
    """Return the next events; None if none arrive in time, or the stream has ended or failed."""
    if events.is_over:
        return None
    with anyio.move_on_after(seconds), suppress(ClientError):
        return await events.batch()
    return None


async def _next_batch(accumulator: StreamAccumulator, events: EventStream) -> list[SseEvent] | None:
    """Return the next events; None at the end of the stream.

    After a finished reply also None if no event follows in time, or the connection fails. Comments,
    with which some servers keep a connection open, are no events.
    """
    if not accumulator.is_finished:
        return await events.batch()
    # With the finish reason the reply is complete, whatever becomes of the connection.
    with anyio.move_on_after(USAGE_SECONDS), suppress(ProviderTimeoutError, StreamInterruptedError):
        while (batch := await events.batch()) == []:
            pass
        return batch
    return None


async def _read_rest(
    target: HttpTarget,
    accumulator: StreamAccumulator,
    events: EventStream,
    sender: FragmentSender,
) -> None:
    """Read the last event, which the end of the connection may have truncated.

    Raises:
        StreamInterruptedError: the reply has not ended.
        ClientError: the event is an error object, or is complete but invalid.
    """
    for event, data in events.rest():
        try:
            deltas = _parse_event(target, accumulator, event, data)
        except InvalidReplyError:
            if isinstance(decode_body(data), dict):
                raise  # complete, but invalid
            continue  # truncated
        for delta in deltas:
            await sender.add(delta)
    await sender.send_held()
    if not (accumulator.is_finished or accumulator.is_closed):
        broken = StreamInterruptedError("the provider ended the stream in the middle of its reply")
        raise with_host(events.target, broken)


class _LoopYielder:
    """Yields the event loop to other tasks while a stream arrives faster than it is passed on.

    Buffered data is read without waiting, so such a stream would otherwise block the loop.
    """

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = 0

    async def count(self, work: int) -> None:
        """Add `work`, in events; yield the loop after every `_EVENTS_PER_YIELD` of them."""
        self._done += work
        if self._done >= _EVENTS_PER_YIELD:
            self._done = 0
            await asyncio.sleep(0)


_EMPTY = {b"", b"null", b"[]"}
"""Data of events without content."""


def _parse_event(
    target: HttpTarget, accumulator: StreamAccumulator, event: str, data: bytes
) -> Sequence[Delta]:
    if data in _EMPTY or data.startswith(b":"):
        return ()  # some servers put keep-alive comments into the data
    try:
        return accumulator.add_event(event, data)
    except ErrorReply as error:
        failure = map_error_reply(target, error)
    except DECODING_ERRORS:
        payload = decode_body(data)
        stated = {"error": payload} if event == "error" else find_stated_error(payload)
        failure = (
            InvalidReplyError(f"the provider streamed an event {describe_wrong_format(payload)}")
            if stated is None
            else map_error_reply(target, ErrorReply(stated))
        )
    raise with_host(target, failure)


def map_error_reply(target: HttpTarget, error: ErrorReply) -> ClientError:
    """Return the ClientError for a provider's error object."""
    return error_from_reply(error.payload, target.key, address_parts(target.url))
