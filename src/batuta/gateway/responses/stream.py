"""A run told as the events of a response: to its reader, to a job, or again to who comes later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
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
"""Takes the response as it ended, and its events so far."""


class EventSink(Protocol):
    """Takes events."""

    @property
    def kept_events(self) -> list[bytes] | None:
        """The events so far as JSON; None if they are not to be kept, or are kept elsewhere."""
        ...

    async def open(self, headers: dict[str, str]) -> None:
        """Prepare what comes before the first event."""
        ...

    async def send(self, event: Json, *, last: bool = False) -> None:
        """Return the next event."""
        ...


@final
class SSEEventSink:
    """A reader on a line, which says by an event that the response is still going on."""

    def __init__(
        self,
        send: Send,
        timing: StreamTimeouts,
        alive: Callable[[], Json | None],
        *,
        keep_events: bool,
    ) -> None:
        kept: list[bytes] | None = [] if keep_events else None

        def note(event: Json) -> bytes:
            """Return the event's frame; kept if events are."""
            data = encode_json(event)
            if kept is not None:
                kept.append(data)
            return encoded_event_frame(event["type"], data)

        def sign() -> bytes:
            """Return a sign of life; a comment while the last event waits to be stored."""
            event = alive()
            return KEEP_ALIVE_COMMENT if event is None else note(event)

        # The line knows `note` and not this: in a ring the events would outlive the request.
        self._encode_event = note
        self.writer = SSEWriter(send, timing, sign)
        self.kept_events = kept

    async def open(self, headers: dict[str, str]) -> None:
        """Send the status and the headers."""
        await self.writer.open(headers)

    async def send(self, event: Json, *, last: bool = False) -> None:
        """Write the event; after the last one the connection is closed."""
        write = self.writer.close if last else self.writer.write
        await write(self._encode_event(event))


@final
class ResponsesStreamRenderer:
    """Tells a run as the events of a response."""

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
        """The response as it ended; None while it has not."""

    async def open(self, headers: dict[str, str]) -> None:
        """Send the headers and the first events, before anything is planned."""
        await self._sink.open(headers)
        await self._send_events(self._events.begin())

    async def on_event(self, event: Event) -> None:
        """Send what is shown of an event of the run."""
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
        """Return True if the shown text begins that reply."""
        return reply.text.startswith(self._events.text_so_far)

    async def finish(self, run: Run, reply: Reply) -> None:
        """Write the rest, and the response as it ended."""
        direct = self._progress.direct
        hidden = direct and not self._progress.has_streamed
        await self._send_events(self._events.remaining(reply, reasoning=hidden, thoughts=direct))
        base, output = self._events.base, self._events.output
        await self._send_end(finished_response(base, output, run, reply, trace=self._trace))

    async def fail(self, error: APIError) -> None:
        """Say that there is no answer."""
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
        async with self._lock:  # steps that run at once write one after another
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
) -> None:
    """Send the events as they come, until they end, the reader goes or the reader's key ends.

    A sign of life repeats the last number: it is not one of the events, and whoever resumes after
    it misses nothing.

    Args:
        delivery: whose readers these are.
        events: of the response, each with its number.
        response: as it is now; what signs of life show.
        scope: of the request.
        receive: of the request.
        send: of the request.
        after: the number of the last event that the reader has.
    """
    number = max(after, 0)

    def sign() -> bytes:
        alive = {"type": "response.in_progress", "sequence_number": number}
        return event_frame({**alive, "response": response})

    writer = SSEWriter(send, delivery.timeouts, sign)

    async def work() -> None:
        nonlocal number
        await writer.open({})
        async for event in events:
            number = event["sequence_number"]
            await writer.write(event_frame(event))
        await writer.close(b"")

    try:
        refusal = await delivery.show(caller_of(scope), receive, work, writer)
    except Exception as error:  # noqa: BLE001 - the 200 is out: the reader sees the stream break
        log_exception(error)
        await writer.close(b"")
        return
    if refusal is not None:
        # The response itself goes on, so it is not said to have failed.
        reason = {"code": refusal.code, "message": refusal.message, "param": None}
        await writer.close(event_frame({"type": "error", "sequence_number": number, **reason}))
