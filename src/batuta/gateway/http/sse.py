"""Server-sent events: their frames, and the way to their reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, final

import anyio
from starlette.types import Send

from batuta.gateway.http.body import raw_headers
from batuta.gateway.http.disconnect import DisconnectReason
from batuta.gateway.http.json_codec import encode_json

KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
SSE_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def keep_alive_comment() -> bytes:
    """What a silent stream says where its readers skip comments."""
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
        """Seconds until the reader must hear something, or must have read."""
        if self._writing_since is None:
            return max(0.0, self._last_write + self._timeouts.keep_alive - monotonic())
        return max(0.0, self._writing_since + self._timeouts.write - monotonic())

    async def tick(self) -> DisconnectReason | None:
        """A sign of life if nothing was said for long; an end if nothing was read for long."""
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
    """The event as it is sent."""
    return encoded_event_frame(event["type"], encode_json(event))


def encoded_event_frame(kind: str, data: bytes) -> bytes:
    """An encoded event as it is sent."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
