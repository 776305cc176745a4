"""Accepts connections under limits.

A connection that waits for its next request, or has sent a part of one's headers, holds a file
descriptor and no work. When the server, or one address, has as many as it may, the one that has
waited longest is closed for the new one; a request that is being answered is never closed for
another.

An answer is written in pieces: its head, its body, the chunks of a stream that came at once. Each
would be a system call and a packet of its own, though nobody could read one before the next; so
what is written in one turn of the event loop is sent together.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from enum import Enum
from itertools import chain
from time import monotonic
from typing import Any, final

import anyio
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from batuta.gateway.errors import APIError
from batuta.gateway.http.body import encode_json
from batuta.gateway.http.server_limits import (
    ConnectionLimits,
    customer_of,
    openable_connection_count,
)

_TICK = 0.5
"""Seconds between looks for connections whose time is up."""
_MAX_PIPELINED = 64
"""Requests that may wait on a connection for the answers to those before them."""
_MAX_WAITING_BYTES = 1 << 18
"""Bytes of the headers of requests that wait there."""
_MAX_HEADERS = 256
"""Headers of a request; a short one takes 25 times its length in memory."""
MOST_GATHERED = 1 << 16
"""Bytes that wait for the turn's end at most."""


class Place(Enum):
    """The state of a connection, as far as it may be closed for another."""

    IDLE = "waits for a request, or for the rest of its headers"
    UPLOADING = "waits for the rest of a request's body"
    ANSWERED = "is being answered"


class Wait(Enum):
    """The event for which a connection keeps the server waiting."""

    BYTES = "bytes of a request"
    READER = "a reader"
    LEFTOVER = "a reader of what is left of an answer that has ended"


@final
class ConnectionTable:
    """The open connections of one server, and which of them may be closed for another."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        """Count nothing yet.

        Args:
            limits: what is taken on; the total is lowered to what the process may open.
        """
        self.limits = limits or ConnectionLimits()
        self.total = openable_connection_count(self.limits.total)
        """Connections that are possible at the same time."""
        self.per_address = min(self.total, self.limits.per_address or max(1, self.total // 2))
        """Connections of one address that are possible at the same time."""
        self.closed = 0
        """Connections that were closed for others, or because their time was up."""
        self.refused = 0
        """Connections that found every place taken by requests."""
        self._open: Counter[str] = Counter()
        self._count = 0
        self._idle: OrderedDict[GuardedProtocol, None] = OrderedDict()
        self._uploading: OrderedDict[GuardedProtocol, None] = OrderedDict()
        self._deadlines: dict[tuple[GuardedProtocol, Wait], float] = {}

    def __len__(self) -> int:
        return self._count

    def add_connection(self, connection: GuardedProtocol) -> bool:
        """Take the connection in; False if it must be refused, for nobody can be closed."""
        address = connection.address
        crowded = self._open[address] >= self.per_address
        if crowded or self._count >= self.total:
            found = self._longest_waiting(address if crowded else None)
            if found is None:
                self.refused += 1
                return False
            self._close(found)
        self._open[address] += 1
        self._count += 1
        return True

    def remove_connection(self, connection: GuardedProtocol) -> None:
        """Give the place of a connection back."""
        self.place_connection(connection, Place.ANSWERED)
        for wait in Wait:
            self._deadlines.pop((connection, wait), None)
        self._count -= 1
        self._open[connection.address] -= 1
        if self._open[connection.address] <= 0:
            del self._open[connection.address]

    def place_connection(self, connection: GuardedProtocol, place: Place) -> None:
        """Note what the connection does from now on."""
        self._idle.pop(connection, None)
        self._uploading.pop(connection, None)
        if place is Place.IDLE:
            self._idle[connection] = None
        elif place is Place.UPLOADING:
            self._uploading[connection] = None

    def set_deadline(self, connection: GuardedProtocol, wait: Wait, seconds: float) -> None:
        """Close the connection in so many seconds, unless that is set already, or cleared."""
        self._deadlines.setdefault((connection, wait), monotonic() + seconds)

    def clear_deadline(self, connection: GuardedProtocol, wait: Wait) -> None:
        """Forget the deadline of an event that has come."""
        self._deadlines.pop((connection, wait), None)

    def close_overdue(self) -> None:
        """Close every connection whose time is up."""
        now = monotonic()
        for connection, wait in [key for key, at in self._deadlines.items() if at <= now]:
            if wait is Wait.LEFTOVER and connection.is_drained:
                self.clear_deadline(connection, wait)
            elif (connection, wait) in self._deadlines:  # else it was closed for another reason
                self._close(connection)

    async def watch_deadlines(self) -> None:
        """Close connections whose time is up, until cancelled."""
        while True:
            await anyio.sleep(_TICK)
            self.close_overdue()

    def _longest_waiting(self, address: str | None) -> GuardedProtocol | None:
        """Return the connection to close for another (of that address): the idle ones first."""
        for connection in chain(self._idle, self._uploading):
            if address in {None, connection.address} and connection.is_drained:
                return connection
        return None

    def _close(self, connection: GuardedProtocol) -> None:
        self.closed += 1
        connection.abort()


@final
class GatheredTransport(asyncio.Transport):
    """A transport that hands on what it is told to write at the end of the turn."""

    __slots__ = ("_inner", "_is_due", "_loop", "_pieces", "_size")

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._inner = inner
        self._loop = loop
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._size = 0
        self._is_due = False
        """True while the turn's end is awaited."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep the bytes until the turn's end, or send them with all before if they are many."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MOST_GATHERED:
            self._send()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_due = False
        self._send()

    def _send(self) -> None:
        pieces = self._pieces
        if pieces:
            self._pieces, self._size = [], 0
            if self._inner.is_closing():
                return  # the reader has gone meanwhile
            self._inner.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def close(self) -> None:
        """Close the connection once all is sent that was written."""
        self._send()
        self._inner.close()

    def abort(self) -> None:
        """Close the connection at once; what waits is dropped."""
        self._pieces, self._size = [], 0
        self._inner.abort()

    def is_closing(self) -> bool:
        """Return True if the connection is closed, or about to be."""
        return self._inner.is_closing()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that have not left yet."""
        return self._size + self._inner.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection under that name."""
        return self._inner.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._inner.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Tell another protocol from now on what happens."""
        self._inner.set_protocol(protocol)


class TooMuchReadError(Exception):
    """More was read of a connection than may wait there: headers, or requests sent ahead."""


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on time, size and number."""

    def __init__(
        self,
        table: ConnectionTable,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.address = ""
        """The address for which the connection counts."""
        self._table = table
        self._entered = False
        self._head = 0
        """Bytes of a head that came since the last request."""
        self._overhead = 0
        """Bytes of a request that came since the last piece of its body: trailers and the like."""
        self._waiting: deque[int] = deque()
        """Bytes of the headers of each request that waits, as `pipeline` has them."""
        self._whole = True
        """Whether the request that was read last has come to its end."""
        self._answering = False
        self._running: RequestResponseCycle | None = None
        """The request that is answered, or was last; uvicorn's `cycle` was read last."""

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: who wants a WebSocket is told in the answer, and no package is missing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a place, or say that there is none."""
        super().connection_made(GatheredTransport(transport, self.loop))
        self.address = customer_of(self.client[0] if self.client else "")
        if not self._table.add_connection(self):
            self.send_refusal(_no_place())
            return
        self._entered = True
        self._table.place_connection(self, Place.IDLE)
        self._table.set_deadline(self, Wait.BYTES, self._table.limits.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back, and tell the request under way that its reader has gone."""
        self._leave()
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless the head is too long, or what is in a body beside its contents."""
        if self.transport.is_closing():
            return
        if self._whole:
            self._head += len(data)
        else:
            self._overhead += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._whole:
            self._table.place_connection(self, Place.UPLOADING)
            if self._overhead > self._table.limits.header_bytes:
                self.abort()
        elif self._head:
            self._wait_for_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; what follows a body in chunks (a trailer) is nobody's and is dropped.

        Raises:
            TooMuchReadError: it is one too many; the request is refused.
        """
        if not self._whole:
            return
        super().on_header(name, value)
        if len(self.headers) > _MAX_HEADERS:
            self._refuse_head(_long_head())
            raise TooMuchReadError

    def on_body(self, body: bytes) -> None:
        """Take a piece of the request's body."""
        self._overhead = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Note that a request has begun.

        Raises:
            TooMuchReadError: its target and its `Host` are of two servers; or read ahead of their
                answers requests would fill the memory, a hundred bytes of it for each that was
                sent. The connection is closed.
        """
        if self._names_another_host():
            self._refuse_head(_other_host())
            raise TooMuchReadError
        self._head, self._overhead, self._whole, self._answering = 0, 0, False, True
        self._table.clear_deadline(self, Wait.BYTES)
        self._table.clear_deadline(self, Wait.LEFTOVER)
        self._table.place_connection(self, Place.ANSWERED)
        waiting = len(self.pipeline)
        super().on_headers_complete()
        if len(self.pipeline) == waiting:
            self._running = self.cycle
            return
        self._waiting.appendleft(sum(map(len, chain.from_iterable(self.headers))))
        if waiting >= _MAX_PIPELINED or sum(self._waiting) > _MAX_WAITING_BYTES:
            self.pipeline.clear()
            self.abort()
            raise TooMuchReadError

    def on_message_complete(self) -> None:
        """Note that the request's body is whole; a head may follow."""
        super().on_message_complete()
        self._whole = True
        self._table.clear_deadline(self, Wait.BYTES)
        place = Place.ANSWERED if self._answering else Place.IDLE
        self._table.place_connection(self, place)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one's body."""
        following = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if following is not None and not self.transport.is_closing():
            self._running = following
            self._waiting.pop()
        if not self._entered:
            return
        # What is left is less than makes `pause_writing` be called; a closing connection too
        # stays open until somebody has read it.
        self._table.set_deadline(self, Wait.LEFTOVER, self._table.limits.write_s)
        if self.transport.is_closing() or not self.cycle.response_complete:
            return
        self._answering = False
        self._table.place_connection(self, Place.IDLE)
        if not self._whole:
            self._table.set_deadline(self, Wait.BYTES, self._table.limits.body_s)
        elif self._head:
            self._wait_for_head()

    def pause_writing(self) -> None:
        """Note that the reader has stopped reading."""
        super().pause_writing()
        if self._entered:
            self._table.set_deadline(self, Wait.READER, self._table.limits.write_s)

    def resume_writing(self) -> None:
        """Note that the reader has gone on reading."""
        super().resume_writing()
        self._table.clear_deadline(self, Wait.READER)

    @property
    def is_drained(self) -> bool:
        """Return True if everything that was written has left."""
        return self.transport.get_write_buffer_size() == 0

    def abort(self) -> None:
        """Close the connection at once, whatever was to be written to it."""
        self.transport.abort()
        self._leave()  # the place is free now, not when the loop comes round to it

    def send_refusal(self, refusal: APIError) -> None:
        """Send the last words on this connection, unless it is closed; nothing reached the app."""
        if self.transport.is_closing():
            return
        reasons = {400: "Bad Request", 431: "Request Header Fields Too Large"}
        reason = reasons.get(refusal.status, "Service Unavailable")
        body = encode_json(refusal.body)
        head = f"HTTP/1.1 {refusal.status} {reason}\r\ncontent-type: application/json\r\n"
        more = "".join(f"{name}: {value}\r\n" for name, value in refusal.headers.items())
        size = f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write((head + more + size).encode("latin-1") + body)
        self.transport.close()

    def _wait_for_head(self) -> None:
        """Begin the time of a head whose first part is there, if nothing is being answered."""
        if not self._answering:
            self._table.set_deadline(self, Wait.BYTES, self._table.limits.header_s)
        if self._head > self._table.limits.header_bytes:
            self._refuse_head(_long_head())

    def _refuse_head(self, refusal: APIError) -> None:
        """Refuse a head; while something is answered, the refusal would stand in its midst."""
        if self._answering:
            self.abort()
        else:
            self.send_refusal(refusal)

    def _names_another_host(self) -> bool:
        """Tell whether the target is a whole address whose host is not that of the header."""
        scheme, found, rest = self.url.partition(b"://")
        if self.url.startswith((b"/", b"*")) or not found or not scheme.isalpha():
            return False
        authority = rest.partition(b"/")[0].partition(b"?")[0]
        return any(value != authority for name, value in self.headers if name.lower() == b"host")

    def _leave(self) -> None:
        if self._entered:
            self._entered = False
            self._table.remove_connection(self)


def _no_place() -> APIError:
    message = "The server has reached its limit of connections; try again later."
    return APIError(503, "overloaded", message, headers={"retry-after": "2"})


def _other_host() -> APIError:
    message = "The request's target and its header 'host' name two servers."
    return APIError(400, "invalid_request", message)


def _long_head() -> APIError:
    return APIError(431, "headers_too_large", "The headers are too large.")
