"""Accepts connections under limits.

A connection on which the server waits for a request, or for the rest of one, uses a file
descriptor and does no work. When the server or one address has reached its limit of connections,
the connection that has waited longest is evicted for the new one; connections in the middle of a
body are evicted last. A connection whose request was received completely is not evicted until the
request is answered and the answer is sent.

A response is written in pieces: its headers, its body, several chunks of a stream. Each piece
would be a system call and a packet, so all writes of one event-loop iteration are sent together.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, OrderedDict, deque
from enum import Enum
from itertools import chain
from time import monotonic
from typing import Any, final

import anyio
from httptools import HttpParserUpgrade
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
"""Seconds between checks for overdue connections."""
_MAX_PIPELINED = 64
"""Maximum number of pipelined requests queued on a connection."""
_MAX_WAITING_BYTES = 1 << 18
"""Maximum number of bytes of the headers of a connection's queued requests."""
_MAX_HEADERS = 256
"""Maximum number of a request's headers; a short header takes 25 times its length in memory."""
MOST_GATHERED = 1 << 16
"""Maximum number of bytes buffered until the end of an event-loop iteration."""


class ConnectionState(Enum):
    """The activity of a connection, which decides whether it may be evicted."""

    IDLE = "waits for a request, or for the rest of its headers"
    UPLOADING = "waits for the rest of a request's body"
    ANSWERED = "is being answered"


class Wait(Enum):
    """An event that the server awaits on a connection, within a deadline."""

    BYTES = "bytes of a request"
    READER = "the client to read the response"
    LEFTOVER = "the client to read the rest of a finished response"


@final
class ConnectionTable:
    """The open connections of one server, with their states and deadlines."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self.total = openable_connection_count(self.limits.total)
        """Maximum number of open connections, as far as the limit of open files permits."""
        self.per_address = min(self.total, self.limits.per_address or max(1, self.total // 2))
        """Maximum number of open connections of one address; by default half of `total`."""
        self.closed = 0
        """Number of connections that were evicted or overdue."""
        self.refused = 0
        """Number of connections that were refused because no other could be evicted."""
        self._open: Counter[str] = Counter()
        self._count = 0
        self._idle: OrderedDict[GuardedProtocol, None] = OrderedDict()
        self._uploading: OrderedDict[GuardedProtocol, None] = OrderedDict()
        self._deadlines: dict[tuple[GuardedProtocol, Wait], float] = {}

    def __len__(self) -> int:
        return self._count

    def add_connection(self, connection: GuardedProtocol) -> bool:
        """Add the connection; return False if a limit is reached and no other can be evicted."""
        address = connection.address
        crowded = self._open[address] >= self.per_address
        if crowded or self._count >= self.total:
            evicted = self._longest_waiting(address if crowded else None)
            if evicted is None:
                self.refused += 1
                return False
            self._close(evicted)
        self._open[address] += 1
        self._count += 1
        return True

    def remove_connection(self, connection: GuardedProtocol) -> None:
        """Remove a connection that has closed."""
        self.set_state(connection, ConnectionState.ANSWERED)
        for wait in Wait:
            self._deadlines.pop((connection, wait), None)
        self._count -= 1
        self._open[connection.address] -= 1
        if self._open[connection.address] <= 0:
            del self._open[connection.address]

    def set_state(self, connection: GuardedProtocol, state: ConnectionState) -> None:
        """Set the connection's state; an idle or uploading one may be evicted."""
        self._idle.pop(connection, None)
        self._uploading.pop(connection, None)
        if state is ConnectionState.IDLE:
            self._idle[connection] = None
        elif state is ConnectionState.UPLOADING:
            self._uploading[connection] = None

    def set_deadline(self, connection: GuardedProtocol, wait: Wait, seconds: float) -> None:
        """Let the connection be closed in `seconds`, unless it has a deadline for this wait."""
        self._deadlines.setdefault((connection, wait), monotonic() + seconds)

    def clear_deadline(self, connection: GuardedProtocol, wait: Wait) -> None:
        """Drop the deadline: the awaited event has happened."""
        self._deadlines.pop((connection, wait), None)

    def close_overdue(self) -> None:
        """Close connections past a deadline; drop a `LEFTOVER` deadline if the client has read."""
        now = monotonic()
        for connection, wait in [key for key, at in self._deadlines.items() if at <= now]:
            if wait is Wait.LEFTOVER and connection.is_drained:
                self.clear_deadline(connection, wait)
            elif (connection, wait) in self._deadlines:  # else another deadline has closed it
                self._close(connection)

    async def watch_deadlines(self) -> None:
        """Close overdue connections until cancelled."""
        while True:
            await anyio.sleep(_TICK)
            self.close_overdue()

    def _longest_waiting(self, address: str | None) -> GuardedProtocol | None:
        """Return the connection to evict, idle ones first; None if none may be evicted.

        Only connections of `address` are considered, unless `address` is None.
        """
        for connection in chain(self._idle, self._uploading):
            if address in {None, connection.address} and connection.is_drained:
                return connection
        return None

    def _close(self, connection: GuardedProtocol) -> None:
        self.closed += 1
        connection.abort()


@final
class GatheredTransport(asyncio.Transport):
    """A transport that sends all writes of one event-loop iteration together."""

    __slots__ = ("_inner", "_is_due", "_loop", "_pieces", "_size")

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._inner = inner
        self._loop = loop
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._size = 0
        self._is_due = False
        """True while a flush is scheduled."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Buffer the bytes until the iteration's end; send immediately if the buffer is full."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MOST_GATHERED:
            self._send()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        self._send()

    def _send(self) -> None:
        pieces = self._pieces
        if pieces:
            self._pieces, self._size = [], 0
            if self._inner.is_closing():
                return  # the client has disconnected since the bytes were written
            self._inner.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def close(self) -> None:
        """Close the connection once all written bytes are sent."""
        self._send()
        self._inner.close()

    def abort(self) -> None:
        """Close the connection immediately and drop unsent bytes."""
        self._pieces, self._size = [], 0
        self._inner.abort()

    def is_closing(self) -> bool:
        """Return True if the connection is closed or closing."""
        return self._inner.is_closing()

    def get_write_buffer_size(self) -> int:
        """Return the number of unsent bytes."""
        return self._size + self._inner.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the wrapped transport's information."""
        return self._inner.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading."""
        self._inner.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Switch to another protocol."""
        self._inner.set_protocol(protocol)


class TooMuchReadError(Exception):
    """A request's headers are refused, or too many pipelined requests are queued."""


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on times, sizes and the number of connections and requests."""

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
        """The address or network that the connection counts towards."""
        self._table = table
        self._entered = False
        self._head = 0
        """Bytes of headers received since the last request."""
        self._overhead = 0
        """Bytes received since the last piece of body: trailers and chunk framing."""
        self._waiting: deque[int] = deque()
        """Bytes of the headers of each queued request, in the order of `pipeline`."""
        self._whole = True
        """Whether the last request was received completely."""
        self._answering = False
        """Whether a request is being answered."""
        self._running: RequestResponseCycle | None = None
        """The request being answered, or answered last; uvicorn's `cycle` is the last one read."""
        self._plain_head = b""
        """The headers, without the offer, of a request with a body and an offer to upgrade; else
        empty."""
        self._parsed = b""
        """The bytes being parsed."""
        self._again = b""
        """Bytes to be parsed after `_parsed`."""

    def _unsupported_upgrade_warning(self) -> None:
        """Keep the bytes to parse after a request that offers to change the protocol.

        The parser takes such a request for one without a body, and its body for another request.
        So a request with a body is parsed again without the offer, which the server ignores.
        """
        parsed = sys.exc_info()[1]
        if isinstance(parsed, HttpParserUpgrade):
            self._again = self._plain_head + self._parsed[parsed.args[0] :]
        self._plain_head = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Add the connection to the table, or refuse it if the table does not admit it."""
        super().connection_made(GatheredTransport(transport, self.loop))
        self.address = customer_of(self.client[0] if self.client else "")
        if not self._table.add_connection(self):
            message = "The server, or your address, has too many connections; try again later."
            self.send_refusal(APIError(503, "overloaded", message, headers={"retry-after": "2"}))
            return
        self._entered = True
        self._table.set_state(self, ConnectionState.IDLE)
        self._table.set_deadline(self, Wait.BYTES, self._table.limits.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection, and notify the running request that its client has gone."""
        self._leave()
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data; refuse headers that are too large.

        Trailers or chunk framing that are too large close the connection.
        """
        if self.transport.is_closing():
            return
        if self._whole:
            self._head += len(data)
        else:
            self._overhead += len(data)
        self._again = data
        while self._again and not self.transport.is_closing():
            self._parsed, self._again = self._again, b""
            super().data_received(self._parsed)
        self._parsed = b""
        if self.transport.is_closing():
            return
        if not self._whole:
            self._table.set_state(self, ConnectionState.UPLOADING)
            if self._overhead > self._table.limits.header_bytes:
                self.abort()
        elif self._head:
            self._wait_for_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; a trailer (a header after a chunked body) is dropped.

        Raises:
            TooMuchReadError: the request has too many headers; it is refused.
        """
        if not self._whole:
            return
        super().on_header(name, value)
        if len(self.headers) > _MAX_HEADERS:
            self._refuse_head(_long_head())
            raise TooMuchReadError

    def on_body(self, body: bytes) -> None:
        """Receive a piece of the request's body."""
        self._overhead = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Start answering the request, or queue it if another is being answered.

        Raises:
            TooMuchReadError: the target and `Host` name different servers, or too many pipelined
                requests are queued (each byte sent can cost 100 bytes of memory). The connection
                is closed before this is raised.
        """
        if self._names_another_host():
            message = "The request's target and its header 'host' name different servers."
            self._refuse_head(APIError(400, "invalid_request", message))
            raise TooMuchReadError
        if plain := self._head_without_upgrade():
            self._plain_head = plain
            return
        self._head, self._overhead, self._whole, self._answering = 0, 0, False, True
        self._table.clear_deadline(self, Wait.BYTES)
        self._table.clear_deadline(self, Wait.LEFTOVER)
        self._table.set_state(self, ConnectionState.ANSWERED)
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
        """Clear the deadline of the request, which was received completely; another may follow."""
        if self._plain_head:
            return
        super().on_message_complete()
        self._whole = True
        self._table.clear_deadline(self, Wait.BYTES)
        state = ConnectionState.ANSWERED if self._answering else ConnectionState.IDLE
        self._table.set_state(self, state)

    def on_response_complete(self) -> None:
        """Answer the next queued request, or await a new one or the rest of the answered one."""
        following = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if following is not None and not self.transport.is_closing():
            self._running = following
            self._waiting.pop()
        if not self._entered:
            return
        # The remainder is below the high-water mark, so `pause_writing` is not called; even a
        # closing connection stays open until the client has read it.
        self._table.set_deadline(self, Wait.LEFTOVER, self._table.limits.write_s)
        if self.transport.is_closing() or not self.cycle.response_complete:
            return
        self._answering = False
        self._table.set_state(self, ConnectionState.IDLE)
        if not self._whole:
            self._table.set_deadline(self, Wait.BYTES, self._table.limits.body_s)
        elif self._head:
            self._wait_for_head()

    def pause_writing(self) -> None:
        """Set a deadline: the client has stopped reading."""
        super().pause_writing()
        if self._entered:
            self._table.set_deadline(self, Wait.READER, self._table.limits.write_s)

    def resume_writing(self) -> None:
        """Clear the deadline: the client is reading again."""
        super().resume_writing()
        self._table.clear_deadline(self, Wait.READER)

    @property
    def is_drained(self) -> bool:
        """True if all written bytes are sent."""
        return self.transport.get_write_buffer_size() == 0

    def abort(self) -> None:
        """Close the connection immediately and drop unsent bytes."""
        self.transport.abort()
        self._leave()  # now: `connection_lost` is called only in a later loop iteration

    def send_refusal(self, refusal: APIError) -> None:
        """Send an error and close the connection, unless it is closing; the app sees nothing."""
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
        """Set the deadline for a request's headers, part of which has arrived; refuse long headers.

        While a request is being answered, there is no deadline for the next.
        """
        if not self._answering:
            self._table.set_deadline(self, Wait.BYTES, self._table.limits.header_s)
        if self._head > self._table.limits.header_bytes:
            self._refuse_head(_long_head())

    def _refuse_head(self, refusal: APIError) -> None:
        """Refuse a request; while another is answered, only close: the responses would be mixed."""
        if self._answering:
            self.abort()
        else:
            self.send_refusal(refusal)

    def _names_another_host(self) -> bool:
        """Return True if the target is an absolute URL whose host differs from `Host`."""
        scheme, found, rest = self.url.partition(b"://")
        if self.url.startswith((b"/", b"*")) or not found or not scheme.isalpha():
            return False
        authority = rest.partition(b"/")[0].partition(b"?")[0]
        return any(value != authority for name, value in self.headers if name.lower() == b"host")

    def _head_without_upgrade(self) -> bytes:
        """Return the headers without `Upgrade`; empty if they offer none or announce no body.

        A body of no bytes, which a proxy may announce, counts as none.
        """
        parser, announced = self.parser, dict(self.headers)
        if parser is None or not parser.should_upgrade():
            return b""
        has_bytes = bool(announced.get(b"content-length", b"").strip(b" \t0"))
        if not has_bytes and b"transfer-encoding" not in announced:
            return b""
        version = parser.get_http_version().encode()
        first = b"%b %b HTTP/%b" % (parser.get_method(), self.url, version)
        kept = (b"%b: %b" % each for each in self.headers if each[0] != b"upgrade")
        return b"\r\n".join((first, *kept, b"", b""))

    def _leave(self) -> None:
        """Remove the connection from the table, unless this was done or it was never added."""
        if self._entered:
            self._entered = False
            self._table.remove_connection(self)


def _long_head() -> APIError:
    return APIError(431, "headers_too_large", "The headers are too many or too large.")
