"""Reads a streamed reply: takes in its events, and tells a listener its fragments on the way.

Fragments that came at once are told as one; half of a surrogate pair waits for its other half.
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
    error_from_reply,
    find_stated_error,
    name_dialect_mistake,
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

_TURN_EVENTS = 64
"""Events of a stream after which others have their turn: a few milliseconds' work."""
USAGE_SECONDS = 10.0
"""Seconds to wait for the usage after a reply has given its finish reason."""
COUNTS_SECONDS = 0.5
"""Seconds of silence that end the search for the usage behind an event that cannot be read."""
_BATCH_EVENTS = 8
"""Events for which the reading of what came at once counts."""
_KNOWN_EVENTS = 1024
"""Different events behind the end of a reply that are known when they come again."""
DECODING_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Errors that decoding raises when JSON has not the dialect's shape."""
_FIRST_HALVES = ("\ud800", "\udbff")


class StreamAccumulator(Protocol):
    """Takes a stream's events one by one; pure but for its own state."""

    @property
    def is_finished(self) -> bool:
        """The end of the reply was announced."""
        ...

    @property
    def is_closed(self) -> bool:
        """True if nothing that matters can follow; reading may stop."""
        ...

    def add_event(self, event: str, data: bytes) -> Sequence[Delta]:
        """Return the fragments of one event.

        Raises:
            ClientError: the event is an error object.
        """
        ...

    def result(self) -> ProviderReply:
        """Return the reply as far as it has come."""
        ...


@final
class HalfJoiner:
    """Joins halves in the fragments of one stream; holds a first half until the second comes."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int, int | None], str] = {}

    def join(self, delta: Delta) -> Delta:
        """Return the fragment with the half that waited for it, without one that must wait."""
        if not self._waiting and _is_ascii(delta):
            return delta
        place = (delta.choice, delta.tool_index)
        return replace(
            delta,
            text=self._joined(delta.text, ("text", *place)),
            reasoning=self._joined(delta.reasoning, ("reasoning", *place)),
            tool_arguments=self._joined(delta.tool_arguments, ("arguments", *place)),
            tool_id=join_halves(delta.tool_id),
            tool_name=join_halves(delta.tool_name),
            thought=delta.thought and join_thought(delta.thought),
        )

    def _joined(self, text: str, place: tuple[str, int, int | None]) -> str:
        if not text:
            return text
        text = self._waiting.pop(place, "") + text
        if _FIRST_HALVES[0] <= text[-1] <= _FIRST_HALVES[1]:
            self._waiting[place] = text[-1]
            text = text[:-1]
        return join_halves(text)


@final
class FragmentSender:
    """Tells a listener the fragments of a stream.

    Words that came from the upstream at once are told as one fragment: each costs the same to pass
    on, however short it is, and nobody could have read one before the next.
    """

    __slots__ = ("_halves", "_held", "_listener", "_pieces")

    def __init__(self, listener: CallListener) -> None:
        self._listener = listener
        self._halves = HalfJoiner()
        self._held: Delta | None = None
        """The first of the fragments that are not told yet."""
        self._pieces: list[str] = []
        """The words of those after it."""

    async def add(self, delta: Delta) -> None:
        """Tell the fragment, or keep it until `send_held` if it is nothing but words."""
        held, is_words = self._held, _is_words(delta)
        if held is not None:
            if is_words and _is_same_kind(held, delta):
                self._pieces.append(delta.text or delta.reasoning)
                return
            await self.send_held()
        if is_words:
            self._held = delta
        else:
            await self._listener.on_delta(self._halves.join(delta))

    async def send_held(self) -> None:
        """Tell what was kept."""
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


def _is_words(delta: Delta) -> bool:
    """Tell whether the fragment is a piece of the text, or one of the reasoning, and no more."""
    if bool(delta.text) is bool(delta.reasoning) or delta.tool_index is not None or delta.logprobs:
        return False
    return delta.thought is None and delta.server_call is None


def _is_same_kind(one: Delta, other: Delta) -> bool:
    """Tell whether both are pieces of the same text."""
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
    """Feed `accumulator` until its reply is closed, or the connection ends as announced."""
    turn, sender = _Turn(), FragmentSender(listener)
    behind: Sequence[SseEvent] = ()
    while not accumulator.is_closed:
        batch = await _next_batch(accumulator, events)
        if batch is None:
            await _read_rest(target, accumulator, events, sender)
            break
        for place, (event, data) in enumerate(batch):
            try:
                deltas = _parse_event(target, accumulator, event, data)
            except ClientError:
                await sender.send_held()
                await _read_behind(
                    target, accumulator, events, batch[place + 1 :], silence=COUNTS_SECONDS
                )
                raise
            for delta in deltas:  # one event may have thousands
                await sender.add(delta)
                await turn.count(1)
            if not deltas:
                await turn.count(1)
            if accumulator.is_closed:
                behind = batch[place + 1 :]
                break
        await sender.send_held()
        await turn.count(_BATCH_EVENTS)  # it may have been comments alone
    return with_joined_halves(await _check_end(target, accumulator, events, behind))


async def _check_end(
    target: HttpTarget,
    accumulator: StreamAccumulator,
    events: EventStream,
    behind: Sequence[SseEvent],
) -> ProviderReply:
    """Return the reply with the counts that came behind its end.

    Raises:
        InvalidReplyError: words came there that are not in the reply.
    """
    result = accumulator.result()
    if not behind and events.is_over:
        return result
    deltas = await _read_behind(target, accumulator, events, behind, silence=DRAIN_SECONDS)
    text = "".join(delta.text + delta.reasoning for delta in deltas).strip()
    known = result.reply.text + result.reply.reasoning
    if text not in known or any(delta.tool_index is not None for delta in deltas):
        broken = InvalidReplyError("the provider went on after the end of its reply")
        raise with_host(events.target, broken)
    return replace(accumulator.result(), reply=result.reply)


async def _read_behind(
    target: HttpTarget,
    accumulator: StreamAccumulator,
    events: EventStream,
    batch: Sequence[SseEvent],
    *,
    silence: float,
) -> list[Delta]:
    """Take in what comes behind the end, or behind an event that cannot be read, until a silence.

    A stream states its tokens at its end: what was already sent of it is counted. Where it has
    ended as it should, its connection can be used again.
    """
    more: Sequence[SseEvent] | None = batch
    turn, behind, ends = _Turn(), _Behind(target, accumulator), time.monotonic() + USAGE_SECONDS
    while more is not None and time.monotonic() < ends:
        for event in more:
            if behind.take_in(event):
                await turn.count(1)
        await turn.count(_BATCH_EVENTS)
        more = await _batch_within(events, silence)
    for event in events.rest():
        behind.take_in(event)
    return behind.deltas


@final
class _Behind:
    """Takes in what comes behind the end of a reply.

    Some servers repeat their whole reply there again and again. The same event again tells the same
    fragments and no higher counts, so it is not read again.
    """

    def __init__(self, target: HttpTarget, accumulator: StreamAccumulator) -> None:
        self._target = target
        self._accumulator = accumulator
        self._known: dict[SseEvent, Sequence[Delta]] = {}
        self.deltas: list[Delta] = []

    def take_in(self, event: SseEvent) -> bool:
        """Take in an event; return False if it is known already."""
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
    """Return the next events if they come in time; None: none does, or none will."""
    if events.is_over:
        return None
    with anyio.move_on_after(seconds), suppress(ClientError):
        return await events.batch()
    return None


async def _next_batch(accumulator: StreamAccumulator, events: EventStream) -> list[SseEvent] | None:
    """Return the next events, or None if a reply is at its end and need not wait for more."""
    if not accumulator.is_finished:
        return await events.batch()
    with anyio.move_on_after(USAGE_SECONDS):
        try:
            return await events.batch()
        except (ProviderTimeoutError, StreamInterruptedError):
            pass  # the finish reason has come, so the reply is whole
    return None


async def _read_rest(
    target: HttpTarget,
    accumulator: StreamAccumulator,
    events: EventStream,
    sender: FragmentSender,
) -> None:
    """Take in the event that the end of the connection left.

    Raises:
        StreamInterruptedError: the reply has not ended.
        ClientError: the event is an error object, or is whole and contradicts those before it.
    """
    for event, data in events.rest():
        try:
            deltas = _parse_event(target, accumulator, event, data)
        except InvalidReplyError:
            if isinstance(decode_body(data), dict):
                raise  # it is whole, and cannot be what it says
            continue  # cut off
        for delta in deltas:
            await sender.add(delta)
    await sender.send_held()
    if not (accumulator.is_finished or accumulator.is_closed):
        broken = StreamInterruptedError("the provider ended its reply in the middle")
        raise with_host(events.target, broken)


class _Turn:
    """Lets others have the loop where a stream comes faster than it is passed on.

    What is there already is read without waiting, so such a stream would keep the loop to itself.
    """

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = 0

    async def count(self, work: int) -> None:
        """Note work that was done, in events, and give up the loop for a moment after some."""
        self._done += work
        if self._done >= _TURN_EVENTS:
            self._done = 0
            await asyncio.sleep(0)


_EMPTY = {b"", b"null", b"[]"}
"""Data of events that say nothing."""


def _parse_event(
    target: HttpTarget, accumulator: StreamAccumulator, event: str, data: bytes
) -> Sequence[Delta]:
    if data in _EMPTY or data.startswith(b":"):  # some put their signs of life into the data
        return ()
    try:
        return accumulator.add_event(event, data)
    except ErrorReply as error:
        failure = map_error_reply(target, error)
    except DECODING_ERRORS:
        payload = decode_body(data)
        stated = {"error": payload} if event == "error" else find_stated_error(payload)
        failure = (
            InvalidReplyError(f"the provider streamed an event {name_dialect_mistake(payload)}")
            if stated is None
            else map_error_reply(target, ErrorReply(stated))
        )
    raise with_host(target, failure)


def map_error_reply(target: HttpTarget, error: ErrorReply) -> ClientError:
    """Return the error that the provider told."""
    return error_from_reply(error.payload, target.key, address_parts(target.url))
