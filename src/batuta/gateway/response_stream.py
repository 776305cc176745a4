"""A run told as the events of a response: to a reader's connection, or to a job's desk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, final

import anyio
from starlette.types import Send

from batuta.core import Delta, Event, Reply, Run, Spoke, ToolCall
from batuta.gateway.line import Line
from batuta.gateway.models import Timing
from batuta.gateway.play import Booking
from batuta.gateway.progress import Progress
from batuta.gateway.refusal import Refusal
from batuta.gateway.wire.encoding import encode
from batuta.gateway.wire.response import ended, failed
from batuta.gateway.wire.response_script import Script

Json = dict[str, Any]
Keep = Callable[[Json, list[bytes]], Awaitable[None]]
"""Takes the response as it ended, and its events so far."""


class Ear(Protocol):
    """Where events go."""

    @property
    def told(self) -> list[bytes] | None:
        """The events so far as JSON; None if they are not to be kept, or are kept elsewhere."""
        ...

    async def open(self, headers: dict[str, str]) -> None:
        """Before the first event."""
        ...

    async def hear(self, event: Json, *, last: bool = False) -> None:
        """The next event."""
        ...


def frame(event: Json) -> bytes:
    """The event as it is sent."""
    return framed(event["type"], encode(event))


def framed(kind: str, data: bytes) -> bytes:
    """An encoded event as it is sent."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


@final
class Listening:
    """A reader on a line, which says by an event that the response is still going on."""

    def __init__(
        self, send: Send, timing: Timing, alive: Callable[[], Json], *, keeps: bool
    ) -> None:
        """Says nothing yet.

        Args:
            send: of the request.
            timing: of the line.
            alive: gives the event that says it is still going on.
            keeps: whether the events are kept.
        """
        told: list[bytes] | None = [] if keeps else None

        def note(event: Json) -> bytes:
            """The event's frame; kept if events are."""
            data = encode(event)
            if told is not None:
                told.append(data)
            return framed(event["type"], data)

        # The line knows `note` and not this: in a ring the events would outlive the request.
        self._note = note
        self.line = Line(send, timing, lambda: note(alive()))
        self.told = told

    async def open(self, headers: dict[str, str]) -> None:
        """The status and the headers."""
        await self.line.open(headers)

    async def hear(self, event: Json, *, last: bool = False) -> None:
        """Writes the event; after the last one the connection is closed."""
        write = self.line.close if last else self.line.write
        await write(self._note(event))


@final
class ResponseTeller:
    """Tells a run as the events of a response."""

    def __init__(self, ear: Ear, script: Script, booking: Booking, keep: Keep) -> None:
        """Prepares the first event.

        Args:
            ear: who hears the events.
            script: writes them.
            booking: what is played.
            keep: takes the response before its end is told.
        """
        self._ear = ear
        self._script = script
        self._progress = Progress(booking)
        self._trace = booking.call.wishes.trace
        self._keep = keep
        self._turn = anyio.Lock(fast_acquire=True)
        self.response: Json | None = None
        """As it ended; None while it has not."""

    async def open(self, headers: dict[str, str]) -> None:
        """The headers and the first events, before anything is planned."""
        await self._ear.open(headers)
        await self._tell(self._script.begin())

    async def hear(self, event: Event) -> None:
        """Shows what is to be shown of an event of the run."""
        if isinstance(event, Spoke):
            delta = self._progress.fragment(event)
            if delta is not None:
                await self._say(delta)
        elif line := self._progress.line(event):
            await self._tell(self._script.thought(line, new=True))

    def agrees(self, reply: Reply) -> bool:
        """Whether what was told is the beginning of that reply."""
        return reply.text.startswith(self._script.said)

    async def finish(self, run: Run, reply: Reply) -> None:
        """What was not told yet, and the response as it ended."""
        hidden = self._progress.direct and not self._progress.live
        await self._tell(self._script.rest(reply, reasoning=hidden))
        base, output = self._script.base, self._script.output
        await self._end(ended(base, output, run, reply, trace=self._trace))

    async def fail(self, refusal: Refusal) -> None:
        """That there is no answer."""
        await self._end(failed(self._script.base, self._script.unfinished(), refusal))

    async def _end(self, response: Json) -> None:
        event = self._script.end(response)
        told = self._ear.told
        await self._keep(response, [] if told is None else [*told, encode(event)])
        self.response = response
        await self._ear.hear(event, last=True)

    async def _say(self, delta: Delta) -> None:
        script = self._script
        if delta.reasoning and self._progress.direct:
            await self._tell(script.thought(delta.reasoning, new=False))
        if delta.text:
            await self._tell(script.text(delta.text))
        if delta.tool_index is not None:
            call = ToolCall(delta.tool_id, delta.tool_name, delta.tool_arguments)
            await self._tell(script.call(delta.tool_index, call))

    async def _tell(self, events: list[Json]) -> None:
        async with self._turn:  # steps that are played at once tell one after another
            for event in events:
                await self._ear.hear(event)
