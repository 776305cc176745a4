"""The reader of an answer: a request ends when it goes away, and a stream writes to it.

A request in flight ends when its reader goes away, reads too slowly, or the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Any, Protocol, final

import anyio
from starlette.types import Receive, Send

from batuta.gateway.http.body import encode_json, raw_headers


class DisconnectReason(Enum):
    """Why a flight was ended before its work was done."""

    CLIENT_GONE = "the reader closed the connection"
    CLIENT_SLOW = "the reader did not read"
    SERVER_CLOSING = "the server is shutting down"


class KeepAlive(Protocol):
    """Work that must be done from time to time while a flight lasts."""

    def seconds_until_due(self) -> float:
        """Return the seconds until `tick` is wanted."""
        ...

    async def tick(self) -> DisconnectReason | None:
        """Do it; a reason if the flight must end."""
        ...


@final
class RequestScope:
    """One request's work, and what can end it."""

    __slots__ = ("reason", "scope")

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.scope = scope
        """Around the work."""
        self.reason: DisconnectReason | None = None
        """Why it was ended early; None if it was not."""

    def end(self, reason: DisconnectReason) -> None:
        """Cancels the work; the first reason counts."""
        self.reason = self.reason or reason
        self.scope.cancel()


@final
class RequestScopes:
    """Every flight of one server."""

    def __init__(self) -> None:
        self._scopes: set[RequestScope] = set()
        self._closing = False

    def __len__(self) -> int:
        return len(self._scopes)

    def close(self) -> None:
        """Ends every flight, and each that begins later at once."""
        self._closing = True
        for flight in tuple(self._scopes):
            flight.end(DisconnectReason.SERVER_CLOSING)

    async def run(
        self,
        receive: Receive,
        work: Callable[[], Awaitable[None]],
        keep_alive: KeepAlive | None = None,
    ) -> DisconnectReason | None:
        """Does `work` while somebody waits for it.

        Returns:
            None if the work was done; else why it was cancelled.
        """
        flight = RequestScope(anyio.CancelScope())
        self._scopes.add(flight)
        done = False
        try:
            with flight.scope:
                if self._closing:
                    flight.end(DisconnectReason.SERVER_CLOSING)
                # The standard library's group keeps the same promise for less, as in the engine.
                async with asyncio.TaskGroup() as tasks:
                    watch = tasks.create_task(_watch_connection(receive, flight, keep_alive))
                    await work()
                    done = True
                    watch.cancel()
        finally:
            self._scopes.discard(flight)
        return None if done else flight.reason


async def _watch_connection(
    receive: Receive, scope: RequestScope, keep_alive: KeepAlive | None
) -> None:
    """Ends the flight when its connection does, or when its pulse says so."""
    if keep_alive is None:
        await _wait_for_disconnect(receive)
        scope.end(DisconnectReason.CLIENT_GONE)
        return
    while True:
        with anyio.move_on_after(keep_alive.seconds_until_due()) as patience:
            await _wait_for_disconnect(receive)
        cut = await keep_alive.tick() if patience.cancelled_caught else DisconnectReason.CLIENT_GONE
        if cut is not None:
            scope.end(cut)
            return


async def _wait_for_disconnect(receive: Receive) -> None:
    """Until the connection is closed; the body has been read, so nothing else comes."""
    while (await receive())["type"] != "http.disconnect":
        pass


KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
SSE_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def keep_alive_comment() -> bytes:
    """Return the comment of a silent stream whose readers skip comments."""
    return KEEP_ALIVE_COMMENT


@final
class SSEWriter:
    """The way to a reader: writes, knows since when it is silent, and notices a full pipe.

    It is the pulse of a flight: a sign of life after long silence, the end after long deafness.
    """

    def __init__(
        self,
        send: Send,
        timeouts: StreamTimeouts,
        keep_alive_frame: Callable[[], bytes] = keep_alive_comment,
    ) -> None:
        self._send = send
        self._timeouts = timeouts
        self._keep_alive_frame = keep_alive_frame
        self._last_write = monotonic()
        self._writing_since: float | None = None

    async def open(self, headers: dict[str, str]) -> None:
        """The status and the headers."""
        given = [*SSE_HEADERS, *raw_headers(headers.items())]
        await self._send({"type": "http.response.start", "status": 200, "headers": given})

    async def write(self, frame: bytes) -> None:
        """A frame; waits while the reader is slow."""
        self._writing_since = self._writing_since or monotonic()
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        self._writing_since = None
        self._last_write = monotonic()

    async def close(self, frame: bytes) -> None:
        """The last frame."""
        self._writing_since = self._writing_since or monotonic()
        await self._send({"type": "http.response.body", "body": frame, "more_body": False})

    def seconds_until_due(self) -> float:
        """Return the seconds until the reader must hear something, or must have read."""
        if self._writing_since is None:
            return max(0.0, self._last_write + self._timeouts.keep_alive - monotonic())
        return max(0.0, self._writing_since + self._timeouts.write - monotonic())

    async def tick(self) -> DisconnectReason | None:
        """Return a sign of life if nothing was said for long.

        If nothing was read for long, the end is returned.
        """
        if self.seconds_until_due() > 0:
            return None
        if self._writing_since is not None:
            return DisconnectReason.CLIENT_SLOW
        with anyio.move_on_after(self._timeouts.write) as patience:
            await self.write(self._keep_alive_frame())
        return DisconnectReason.CLIENT_SLOW if patience.cancelled_caught else None


@dataclass(frozen=True, slots=True)
class StreamTimeouts:
    """Seconds that a stream waits for things."""

    keep_alive: float = 10.0
    """Silence after which a comment is sent."""
    write: float = 60.0
    """How long a reader may leave what was written unread before it is cut off."""


def event_frame(event: dict[str, Any]) -> bytes:
    """Return the event as it is sent."""
    return encoded_event_frame(event["type"], encode_json(event))


def encoded_event_frame(kind: str, data: bytes) -> bytes:
    """Return an encoded event as it is sent."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
