"""A run as response events: sent to an SSE client or a job, or replayed to a late client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, final

from starlette.types import Receive, Scope, Send

from batuta.core import Event, Reply, Run, StepDelta
from batuta.gateway.access.caller import caller_of
from batuta.gateway.errors import APIError, log_exception
from batuta.gateway.http.body import encode_json
from batuta.gateway.responses.events import ResponseEventWriter
from batuta.gateway.responses.response import failed_response, finished_response
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.deliver import (
    KEEP_ALIVE_COMMENT,
    AnswerDelivery,
    SSEWriter,
    StreamTimeouts,
    encoded_event_frame,
    event_frame,
)
from batuta.gateway.serving.progress import RunProgress

Json = dict[str, Any]
SaveResponse = Callable[[Json, list[bytes]], Awaitable[None]]
"""Stores a finished or failed response, and its events if they were kept."""


class EventSink(Protocol):
    """Receives the events of a response."""

    @property
    def kept_events(self) -> list[bytes] | None:
        """The events so far, each as JSON; None if the sink does not keep them."""
        ...

    async def open(self, headers: dict[str, str]) -> None:
        """Send the headers, if the sink has any."""
        ...

    async def send(self, event: Json, *, last: bool = False) -> None:
        """Send the next event; no event follows the `last`."""
        ...


@final
class SSEEventSink:
    """An SSE connection that sends a keep-alive event of the response after a long silence."""

    def __init__(
        self,
        send: Send,
        timing: StreamTimeouts,
        keep_alive_event: Callable[[], Json | None],
        *,
        keep_events: bool,
    ) -> None:
        kept: list[bytes] | None = [] if keep_events else None

        def encode_event(event: Json) -> bytes:
            """Return the event's frame; keep the event if events are kept."""
            data = encode_json(event)
            if kept is not None:
                kept.append(data)
            return encoded_event_frame(event["type"], data)

        def keep_alive() -> bytes:
            """Return a keep-alive frame, or a comment while the final response is being stored."""
            event = keep_alive_event()
            return KEEP_ALIVE_COMMENT if event is None else encode_event(event)

        # SSEWriter gets a closure, not a method of `self`: a reference cycle would keep the
        # events alive after the request.
        self._encode_event = encode_event
        self.writer = SSEWriter(send, timing, keep_alive)
        self.kept_events = kept

    async def open(self, headers: dict[str, str]) -> None:
        """Send the status and the headers."""
        await self.writer.open(headers)

    async def send(self, event: Json, *, last: bool = False) -> None:
        """Write the event; the last event ends the response."""
        write = self.writer.close if last else self.writer.write
        await write(self._encode_event(event))


@final
class ResponsesStreamRenderer:
    """Sends a run to a sink as the events of a response."""

    def __init__(
        self,
        sink: EventSink,
        event_writer: ResponseEventWriter,
        prepared: PreparedCall,
        save: SaveResponse,
    ) -> None:
        self._sink = sink
        self._events = event_writer
        self._progress = RunProgress(prepared)
        self._trace = prepared.call.options.trace
        self._save = save
        self._lock = asyncio.Lock()
        self.response: Json | None = None
        """The finished or failed response; None until the run has ended."""

    async def open(self, headers: dict[str, str]) -> None:
        """Send the headers and the first events, before anything is planned."""
        await self._sink.open(headers)
        await self._send_events(self._events.begin())

    async def on_event(self, event: Event) -> None:
        """Send the response's events for an event of the run, if there are any."""
        if self._events.compacts:
            return
        if isinstance(event, StepDelta):
            delta = self._progress.visible_delta(event)
            if delta is not None:
                thinks = self._progress.direct
                await self._send_events(self._events.fragment(delta, thinks=thinks))
                return
        pieces = self._progress.pieces(event)
        await self._send_events([e for p in pieces for e in self._events.progress(p)])

    def matches(self, reply: Reply) -> bool:
        """Return True if the text sent so far is a prefix of the reply."""
        return reply.text.startswith(self._events.text_so_far)

    async def finish(self, run: Run, reply: Reply) -> None:
        """Send the rest of the reply, store the response and send the final event."""
        direct = self._progress.direct
        hidden = direct and not self._progress.has_streamed
        await self._send_events(self._events.remaining(reply, reasoning=hidden, thoughts=direct))
        base, output = self._events.base, self._events.output
        await self._send_end(finished_response(base, output, run, reply, trace=self._trace))

    async def fail(self, error: APIError) -> None:
        """Store the failed response and send the final event."""
        await self._send_end(
            failed_response(self._events.base, self._events.unfinished_items(), error)
        )

    async def _send_end(self, response: Json) -> None:
        event = self._events.end(response)
        events = self._sink.kept_events
        await self._save(response, [] if events is None else [*events, encode_json(event)])
        self.response = response
        await self._sink.send(event, last=True)

    async def _send_events(self, events: list[Json]) -> None:
        async with self._lock:  # keeps the events of concurrent steps together
            for event in events:
                await self._sink.send(event)


async def send_events(
    delivery: AnswerDelivery,
    events: AsyncIterator[Json],
    response: Json,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    after: int = -1,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Send events as they occur, until they end or fail or the request is cancelled.

    A keep-alive frame repeats the number of the last event, so that a client that resumes after
    this number misses nothing. Before the first event the number is 0: a client that resumes then
    misses event 0.

    Args:
        delivery: watches the connection and the caller's key.
        events: events of the response, in order.
        response: the response as it is now, which keep-alive frames contain.
        scope: the request's ASGI scope.
        receive: the request's ASGI receive channel.
        send: the request's ASGI send channel.
        after: the number of the last event that the client has; -1: none.
        headers: further headers of the stream.
    """
    number = max(after, 0)

    def keep_alive() -> bytes:
        event = {"type": "response.in_progress", "sequence_number": number, "response": response}
        return event_frame(event)

    writer = SSEWriter(send, delivery.timeouts, keep_alive)

    async def work() -> None:
        nonlocal number
        await writer.open(dict(headers))
        async for event in events:
            number = event["sequence_number"]
            await writer.write(event_frame(event))
        await writer.close(b"")

    try:
        refusal = await delivery.show(caller_of(scope), receive, work, writer)
    except Exception as error:  # noqa: BLE001 - status 200 was sent: the stream ends early
        log_exception(error)
        await writer.close(b"")
        return
    if refusal is not None:
        # The response itself continues, so it is not reported as failed.
        details = {"code": refusal.code, "message": refusal.message, "param": None}
        await writer.close(event_frame({"type": "error", "sequence_number": number, **details}))
