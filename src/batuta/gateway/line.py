"""The way to the reader of a stream."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import final

import anyio
from starlette.types import Send

from batuta.gateway.flight import Cut
from batuta.gateway.models import Timing
from batuta.gateway.reply import raw_headers

COMMENT = b": keep-alive\n\n"
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def comment() -> bytes:
    """What a silent stream says where its readers skip comments."""
    return COMMENT


@final
class Line:
    """The way to a reader: writes, knows since when it is silent, and notices a full pipe.

    It is the pulse of a flight: a sign of life after long silence, the end after long deafness.
    """

    def __init__(self, send: Send, timing: Timing, sign: Callable[[], bytes] = comment) -> None:
        self._send = send
        self._timing = timing
        self._sign = sign
        self._last = monotonic()
        self._writing: float | None = None

    async def open(self, headers: dict[str, str]) -> None:
        """The status and the headers."""
        given = [*HEADERS, *raw_headers(headers.items())]
        await self._send({"type": "http.response.start", "status": 200, "headers": given})

    async def write(self, frame: bytes) -> None:
        """A frame; waits while the reader is slow."""
        self._writing = self._writing or monotonic()
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        self._writing = None
        self._last = monotonic()

    async def close(self, frame: bytes) -> None:
        """The last frame."""
        self._writing = self._writing or monotonic()
        await self._send({"type": "http.response.body", "body": frame, "more_body": False})

    def due(self) -> float:
        """Seconds until the reader must hear something, or must have read."""
        if self._writing is None:
            return max(0.0, self._last + self._timing.keep_alive - monotonic())
        return max(0.0, self._writing + self._timing.write - monotonic())

    async def beat(self) -> Cut | None:
        """A sign of life if nothing was said for long; an end if nothing was read for long."""
        if self.due() > 0:
            return None
        if self._writing is not None:
            return Cut.SLOW
        with anyio.move_on_after(self._timing.write) as patience:
            await self.write(self._sign())
        return Cut.SLOW if patience.cancelled_caught else None
