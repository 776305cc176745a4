"""The pooled HTTP connections of all clients, through the environment's proxy if it names one."""

from __future__ import annotations

import asyncio
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol, Self, TypeVar, cast, final
from urllib.parse import urlencode

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

from batuta.clients.cloud_credentials import RequestSigner
from batuta.clients.decoding import MalformedTextError, SseEvent, SseParser, read_pieces
from batuta.clients.error_mapping import decode_body, error_from_response
from batuta.clients.http_target import NO_PROXY, HttpTarget, OutwardRoutes, with_host
from batuta.core.redaction import address_parts, hide_addresses
from batuta.errors import (
    BadRequestError,
    ClientError,
    InvalidReplyError,
    ProviderTimeoutError,
    ProviderUnreachableError,
    StreamInterruptedError,
)

MAX_INTERIM_RESPONSES = 16
"""Informational (1xx) responses accepted before one final response. Providers send none or one;
103 Early Hints may be repeated."""


class TooManyInterimResponsesError(aiohttp.ClientConnectionError):
    """More than `MAX_INTERIM_RESPONSES` informational (1xx) responses precede the final one."""


class BoundedResponse(aiohttp.ClientResponse):
    """A response that raises an error where two faults of aiohttp 3.14 would make its reader hang.

    aiohttp skips any number of informational responses, so a provider that sends nothing else would
    keep the event loop busy until the run's deadline. And after malformed chunked encoding the
    reader of the body waits forever, without a timeout.
    """

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the status line and headers.

        Raises:
            TooManyInterimResponsesError: too many informational responses preceded the headers.
        """
        protocol = connection.protocol
        read, left = protocol.read, MAX_INTERIM_RESPONSES + 1

        async def read_bounded() -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise TooManyInterimResponsesError("the provider sent interim responses only")
            return await read()

        # aiohttp has no setting for this limit. Only response headers are read through
        # `protocol.read`, so it is replaced while the headers of this response are awaited.
        protocol.read = read_bounded
        broken: list[BaseException] = []

        def set_exception(error: BaseException, *cause: BaseException) -> None:
            ResponseHandler.set_exception(protocol, error, *cause)
            if isinstance(error, HttpProcessingError):
                broken.append(error)
                self._fail_body(error)

        # The original passes the error only to the reader of the next headers, not to the reader
        # of the body. The connection is closed afterwards; every response replaces this again.
        protocol.set_exception = set_exception
        try:
            started = await super().start(connection)
        finally:
            del protocol.read
        for error in broken:  # raised after the headers were parsed, before `content` was set
            self._fail_body(error)
        return started

    def _fail_body(self, error: BaseException) -> None:
        """Fail the reader of the body, if there is one: the data is not valid HTTP."""
        body = cast("aiohttp.StreamReader | None", self.content)  # None before the headers
        if body is not None and not body.is_eof() and body.exception() is None:
            failure = aiohttp.ClientPayloadError("the body is not valid HTTP")
            body.set_exception(failure, error)
            # A reader that was just woken by the end of a chunk waits again without checking it.
            asyncio.get_running_loop().call_soon(body.set_exception, failure, error)


def connection_error(target: HttpTarget, error: Exception, idle: float) -> ClientError:
    """Return the error for a request that failed before its response's headers were read.

    Args:
        target: the address that was called.
        error: the error that aiohttp or the system raised.
        idle: the idle timeout in seconds.
    """
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        failure = ProviderUnreachableError("no connection to the proxy could be made")
    elif isinstance(error, aiohttp.ClientHttpProxyError):
        failure = ProviderUnreachableError(f"the proxy refused the connection ({error.status})")
    else:
        failure = _classify_connection_error(error, idle)
    return with_host(target, failure)


_UNREACHABLE: tuple[tuple[type[Exception], str], ...] = (
    (aiohttp.ConnectionTimeoutError, "no connection to the provider could be made in time"),
    (aiohttp.ServerDisconnectedError, "the provider closed the connection before it answered"),
    (aiohttp.ClientConnectorCertificateError, "the provider's certificate is not valid"),
    (aiohttp.ClientConnectorError, "no connection to the provider could be made"),
    (aiohttp.ClientOSError, "the connection to the provider broke before it answered"),
    (ConnectionResetError, "the connection to the provider broke before it answered"),
    (UnicodeError, "the host in the provider's URL is not a valid name"),
)
"""Classes of errors and their sentences; the first class that fits counts."""


def _classify_connection_error(error: Exception, idle: float) -> ClientError:
    if isinstance(error, aiohttp.SocketTimeoutError):
        return ProviderTimeoutError(
            f"the provider accepted the request but sent nothing for {idle:g} seconds"
        )
    if isinstance(error, TooManyInterimResponsesError):
        return InvalidReplyError("the provider sent only informational (1xx) responses")
    if isinstance(error, aiohttp.ClientResponseError):
        return InvalidReplyError("the provider's response is not valid HTTP")
    for kind, sentence in _UNREACHABLE:
        if isinstance(error, kind):
            return ProviderUnreachableError(sentence)
    if isinstance(error, TimeoutError):
        return ProviderTimeoutError("the provider sent nothing for too long")
    return ProviderUnreachableError("no connection to the provider could be made")


def interrupted_body_error(target: HttpTarget, error: Exception) -> ClientError:
    """Return the error for a body that was not received completely."""
    if isinstance(error, TimeoutError):
        late = ProviderTimeoutError("the provider stopped sending in the middle of its reply")
        return with_host(target, late)
    broken = StreamInterruptedError("the connection broke in the middle of the provider's reply")
    return with_host(target, broken)


def wrong_type_error(target: HttpTarget, received: str, expected: str) -> ClientError:
    """Return the error for a reply with an unexpected content type."""
    received = hide_addresses(received, address_parts(target.url))[:60]
    message = f"the provider answered with {received} instead of {expected}"
    return with_host(target, InvalidReplyError(message))


def too_large_error(target: HttpTarget, limit: int) -> ClientError:
    """Return the error for a reply larger than `limit` bytes."""
    message = f"the provider answered with more than the allowed {limit} bytes"
    return with_host(target, InvalidReplyError(message))


MEBIBYTE = 1 << 20
MAX_ERROR_BYTES = 1 << 16
"""Size in bytes at which reading the body of an error response stops."""
_LINES = re.compile(r"ndjson|jsonl|json-?lines|stream\+json")
"""Matches content types of streams that are JSON lines instead of server-sent events."""
_SPACE = b"\xef\xbb\xbf \t\r\n"
"""White space, and the bytes of the byte order mark, both of which may precede a body."""
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Beginnings of the lines of a server-sent event."""
MAX_HEADER_BYTES = 1 << 16
"""Maximum bytes of one response header; some providers send more than aiohttp's default, 8 KiB."""
DRAIN_SECONDS = 0.05
"""Seconds to wait for data after the end of a reply; usually only the end of the body follows."""

_CONNECTION_ERRORS = (aiohttp.ClientError, OSError, UnicodeError)  # UnicodeError: a host's name


class Closable(Protocol):
    """An object with connections to close."""

    async def close(self) -> None:
        """Close all connections."""
        ...


ClosableT = TypeVar("ClosableT", bound=Closable)
T = TypeVar("T")


@final
class HttpTransport:
    """One connection pool per event loop, shared by all clients.

    Redirects are not followed and cookies are not kept, so that a key is sent to one host only.
    """

    def __init__(
        self,
        *,
        connect: float = 5.0,
        idle: float = 300.0,
        max_request_bytes: int = 32 * MEBIBYTE,
        max_reply_bytes: int = 32 * MEBIBYTE,
        environ: Mapping[str, str] | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        """Create the transport; connections are opened on first use.

        Args:
            connect: seconds to wait for a connection.
            idle: seconds without data after which a call times out; there is no total limit.
                The default is long because a reasoning model sends nothing while it reasons, and
                its reasoning is billed.
            max_request_bytes: a larger JSON body is refused before it is sent.
            max_reply_bytes: a larger reply is refused while it is read; `fetch` has its own limit.
            environ: the environment with `HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` etc.; None:
                that of this process.
            resolver: resolves host names; no proxy is then used, as a proxy would resolve the names
                again. None: the system's resolver, with a proxy if the environment names one.

        Raises:
            ConfigError: the environment names a proxy or certificates that cannot be used.
        """
        self.connect = connect
        self.idle = idle
        self._max_request = max_request_bytes
        self._max_reply = max_reply_bytes
        self._routes = OutwardRoutes(os.environ if environ is None else environ)
        self._resolver = resolver
        self._signer: RequestSigner | None = None
        self._companions: dict[str, Closable] = {}
        self._sessions: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, aiohttp.ClientSession
        ] = weakref.WeakKeyDictionary()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def allow_silence(self, seconds: float) -> None:
        """Raise the idle timeout to at least `seconds`, from the next call on.

        Transports that `signed_by` returned before keep theirs.
        """
        self.idle = max(self.idle, seconds)

    async def close(self) -> None:
        """Close the companions and this event loop's connections; the next call opens new ones."""
        for companion in self._companions.values():
            await companion.close()
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def signed_by(self, signer: RequestSigner) -> Self:
        """Return a transport with the same connections; `signer` signs its requests."""
        signed = copy(self)
        signed._signer = signer  # noqa: SLF001 - a copy of this object
        return signed

    def companion(self, name: str, make: Callable[[], ClosableT]) -> ClosableT:
        """Return the companion called `name`: made on first use, closed with this transport."""
        if name not in self._companions:
            self._companions[name] = make()
        return cast("ClosableT", self._companions[name])

    async def post(self, target: HttpTarget, body: Mapping[str, Any]) -> Any:
        """Send `body` as JSON; return the decoded JSON reply.

        Raises:
            ClientError: the request failed; the subclass says why.
        """
        return await self._json(target, await self._send(target, body, "application/json"))

    async def send(self, target: HttpTarget, body: Mapping[str, Any]) -> None:
        """Send `body` as JSON and ignore the body of the response.

        Raises:
            ClientError: the request failed; the subclass says why.
        """
        _release_connection(await self._send(target, body, "*/*"))

    async def post_form(self, target: HttpTarget, fields: Mapping[str, str]) -> Any:
        """Send a form, as token endpoints require; return the decoded JSON reply.

        Raises:
            ClientError: the request failed; the subclass says why.
        """
        payload, kind = urlencode(fields).encode(), "application/x-www-form-urlencoded"
        response = await self._request("POST", target, payload, "application/json", kind=kind)
        return await self._json(target, response)

    async def open_reply(
        self, target: HttpTarget, body: Mapping[str, Any], *, streamed: bool
    ) -> WholeBody | EventStream:
        """Send `body`; return the reply as one JSON body or as a stream of events.

        The first bytes count more than the content type, which is wrong on some servers. An
        `EventStream` must be closed: use it in a `with` block.

        Args:
            target: the address.
            body: sent as JSON.
            streamed: whether `body` requests a stream; a server may answer otherwise.

        Raises:
            ClientError: the request failed; the subclass says why.
        """
        accept = "text/event-stream" if streamed else "application/json"
        response = await self._send(target, body, accept)
        is_stream = False
        try:
            begun = await self._first_bytes(target, response)
            kind = response.content_type
            is_lines = streamed and bool(_LINES.search(kind)) and not _begins_event(begun)
            is_value = _begins_value(begun) or ("json" in kind and not _begins_event(begun))
            if is_value and not is_lines:
                return WholeBody(await self._read_whole(target, response, begun))
            if kind != "text/event-stream" and not is_lines and not _begins_event(begun):
                raise wrong_type_error(target, kind, accept)
            is_stream = True
            parser = SseParser(has_bare_lines=is_lines)
            return EventStream(response, target, parser, limit=self._max_reply, begun=begun)
        finally:
            if not is_stream:
                _release_connection(response)

    async def get(self, target: HttpTarget) -> Any:
        """Return the decoded JSON at `target`.

        Raises:
            ClientError: the request failed; the subclass says why.
        """
        response = await self._request("GET", target, None, "application/json")
        return await self._json(target, response)

    async def fetch(self, target: HttpTarget, accept: str, max_bytes: int) -> FetchedBody:
        """Return the response at `target` undecoded, whatever its status.

        A redirect is returned, not followed.

        Raises:
            ClientError: the request failed or the body is too large; the subclass says which.
        """
        response = await self._request("GET", target, None, accept, any_status=True)
        try:
            pieces, is_too_large = await _read_body(response, max_bytes)
        except _CONNECTION_ERRORS as error:
            failure = interrupted_body_error(target, error)
        else:
            has_type = bool(response.headers.get("Content-Type"))
            if not is_too_large:
                return FetchedBody(
                    status=response.status,
                    location=response.headers.get("Location", ""),
                    content_type=response.content_type if has_type else "",
                    charset=response.charset or "",
                    body=b"".join(pieces),
                )
            failure = too_large_error(target, max_bytes)
        finally:
            _release_connection(response)
        raise failure

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,
                    keepalive_timeout=30,
                    ssl=self._routes.certificates or True,
                    resolver=self._resolver,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
                response_class=BoundedResponse,
                headers={"User-Agent": "batuta", "Accept-Encoding": "identity"},
            )
            self._sessions[loop] = session
        return session

    async def _send(
        self, target: HttpTarget, body: Mapping[str, Any], accept: str
    ) -> aiohttp.ClientResponse:
        try:
            payload = orjson.dumps(body)
        except orjson.JSONEncodeError as error:
            raise BadRequestError(f"the request cannot be written as JSON: {error}") from None
        if len(payload) > self._max_request:
            raise BadRequestError(
                f"the request has {len(payload)} bytes, which is more than the allowed "
                f"{self._max_request}"
            )
        return await self._request("POST", target, payload, accept)

    async def _request(
        self,
        method: str,
        target: HttpTarget,
        payload: bytes | None,
        accept: str,
        *,
        kind: str = "application/json",
        any_status: bool = False,
    ) -> aiohttp.ClientResponse:
        headers = {**target.headers, "Accept": accept}
        if payload is not None:
            headers["Content-Type"] = kind
        if self._signer is not None:
            headers = await self._signer.sign(method, target.url, headers, payload or b"")
        direct = self._resolver or self._routes.are_direct
        proxy = NO_PROXY if direct else self._routes.find_proxy(target.url)
        if proxy.headers and target.url.startswith("http:"):
            headers |= proxy.headers  # without a tunnel the proxy reads the headers of the request
        try:
            response = await self._session().request(
                method,
                target.url,
                data=payload,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(connect=self.connect, sock_read=self.idle),
                proxy=proxy.url,
                proxy_headers=proxy.headers,
            )
        except _CONNECTION_ERRORS as error:
            failure = connection_error(target, error, self.idle)
        else:
            if any_status or response.status < HTTPStatus.MULTIPLE_CHOICES:
                return response
            failure = await _status_error(target, response)
        # Raised outside `except`: aiohttp's error contains our headers and must not be chained.
        raise failure

    async def _json(self, target: HttpTarget, response: aiohttp.ClientResponse) -> Any:
        """Return the decoded JSON of the response, and release its connection."""
        try:
            begun = await self._first_bytes(target, response)
            if "json" not in response.content_type and not _begins_value(begun):
                raise wrong_type_error(target, response.content_type, "application/json")
            body = WholeBody(await self._read_whole(target, response, begun))
            return await body.read(target, lambda value: value)
        finally:
            _release_connection(response)

    async def _first_bytes(self, target: HttpTarget, response: aiohttp.ClientResponse) -> bytes:
        """Return the body's first chunks, up to one that is more than white space.

        The result is empty if the body is empty, and only white space if the body has nothing else
        or begins with more than 64 KiB of it.
        """
        begun = b""
        try:
            while not begun.strip(_SPACE) and len(begun) <= MAX_HEADER_BYTES:
                chunk = await response.content.readany()
                if not chunk:
                    break
                begun += chunk
        except _CONNECTION_ERRORS as error:
            failure = interrupted_body_error(target, error)
        else:
            return begun
        raise failure

    async def _read_whole(
        self, target: HttpTarget, response: aiohttp.ClientResponse, begun: bytes
    ) -> Sequence[bytes]:
        """Return the body in pieces, beginning with `begun`."""
        try:
            pieces, is_too_large = await _read_body(response, self._max_reply, begun)
        except _CONNECTION_ERRORS as error:
            failure = interrupted_body_error(target, error)
        else:
            if is_too_large:
                raise too_large_error(target, self._max_reply)
            return pieces
        raise failure


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBody:
    """A response of any status and content type, undecoded."""

    status: int
    location: str
    """The `Location` header, unchanged; empty if there is none."""
    content_type: str
    """In lower case and without parameters; empty if the response names none."""
    charset: str
    """The charset of the content type, unchecked; empty if the response names none."""
    body: bytes


@dataclass(frozen=True, slots=True)
class WholeBody:
    """A reply that is one JSON value, in the pieces in which it was received."""

    pieces: Sequence[bytes]

    async def read(self, target: HttpTarget, read: Callable[[Any], T]) -> T:
        """Decode the JSON, pass its value to `read` and return the result.

        This happens in another thread if the body is large.

        Raises:
            InvalidReplyError: the body is not JSON, or has too many values.
        """
        try:
            return await read_pieces(self.pieces, read)
        except MalformedTextError:
            failure = InvalidReplyError("the provider answered with malformed or too much JSON")
        raise with_host(target, failure)


@final
class EventStream:
    """The events of one streamed reply; a sync context manager that releases the connection."""

    __slots__ = ("_begun", "_broken", "_left", "_limit", "_parser", "_response", "target")

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        target: HttpTarget,
        parser: SseParser,
        *,
        limit: int,
        begun: bytes = b"",
    ) -> None:
        self._begun = begun
        self._broken: ClientError | None = None
        """The failure of the connection; raised once all data received before it was returned."""
        self._response = response
        self._parser = parser
        self._left = limit
        self._limit = limit
        self.target = target

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _release_connection(self._response)

    async def batch(self) -> list[SseEvent] | None:
        """Return the events that the next chunk completes, if any; None at the end of the body.

        Raises:
            ProviderTimeoutError: no data was received for too long.
            StreamInterruptedError: the connection broke.
            InvalidReplyError: the stream is larger than allowed.
        """
        failure = self._broken
        try:
            chunk, self._begun = self._begun, b""
            chunk = chunk or await self._response.content.readany()
        except _CONNECTION_ERRORS as error:
            failure = failure or interrupted_body_error(self.target, error)
            chunk = _take_unread(self._response.content)
            self._broken = failure
        if failure is not None and not chunk:
            raise failure
        if not chunk:
            return None
        self._left -= len(chunk)
        if self._left < 0:
            raise too_large_error(self.target, self._limit)
        return self._parser.feed(chunk)

    def rest(self) -> list[SseEvent]:
        """Return the last event if it was not terminated, else nothing; it may be truncated."""
        return self._parser.close()

    @property
    def is_over(self) -> bool:
        """Whether the body has ended: only then can the connection be reused."""
        return self._response.content.at_eof()


def _take_unread(content: aiohttp.StreamReader) -> bytes:
    """Return the data of a body that was received before its connection broke.

    aiohttp does not return it to readers after the error, although the provider sent it.
    """
    pieces = content._buffer  # noqa: SLF001 - there is no other way  # pyright: ignore[reportPrivateUsage]
    unread = b"".join(pieces)
    pieces.clear()
    return unread


def _begins_value(begun: bytes) -> bool:
    """Return True if a body begins like a JSON object or array, as no server-sent event does."""
    return begun.strip(_SPACE)[:1] in {b"{", b"["}


def _begins_event(begun: bytes) -> bool:
    """Return True if a body with this beginning may be server-sent events."""
    text = begun.strip(_SPACE)
    return any(text.startswith(name) or name.startswith(text) for name in _FIELDS) and bool(text)


def _release_connection(response: aiohttp.ClientResponse) -> None:
    """Return the connection to the pool if the body was read to its end, else close it."""
    if response.content.at_eof():
        response.release()
    else:
        response.close()


async def _read_body(
    response: aiohttp.ClientResponse, limit: int, begun: bytes = b""
) -> tuple[list[bytes], bool]:
    """Read the body after `begun`; stop once it is larger than `limit` bytes.

    Returns the body in pieces, since joining a large body would block the event loop, and whether
    it exceeds the limit.
    """
    pieces, size = [begun], len(begun)
    while size <= limit and (piece := await response.content.readany()):
        pieces.append(piece)
        size += len(piece)
    return pieces, size > limit


async def _status_error(target: HttpTarget, response: aiohttp.ClientResponse) -> ClientError:
    try:
        pieces, _ = await _read_body(response, MAX_ERROR_BYTES)
    except _CONNECTION_ERRORS:
        pieces = []
    finally:
        _release_connection(response)
    error = error_from_response(
        response.status,
        decode_body(b"".join(pieces)),
        response.headers,
        target.key,
        address=address_parts(target.url),
    )
    return with_host(target, error, location=response.headers.get("Location", ""))
