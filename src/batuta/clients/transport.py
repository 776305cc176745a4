"""The pooled HTTP session under every client, by way of a proxy where the environment names one."""

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
"""`100 Continue` and its like before one response. Providers send none or one; early hints may come
several times."""


class TooManyInterimResponsesError(aiohttp.ClientConnectionError):
    """The provider announces a response and never sends it."""


class BoundedResponse(aiohttp.ClientResponse):
    """A response whose head and body come to an end, if need be by an error.

    aiohttp skips interim responses without an end: a provider that sends nothing else would keep
    the event loop busy, and every other request waiting, until the run's deadline. And the reader
    of a body whose chunks are no HTTP waits for ever, its time-outs taken away (aiohttp 3.14).
    """

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the head of the response.

        Raises:
            TooManyInterimResponsesError: what came before it has no end.
        """
        protocol = connection.protocol
        read, left = protocol.read, MAX_INTERIM_RESPONSES + 1

        async def read_bounded() -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise TooManyInterimResponsesError("the provider sent interim responses only")
            return await read()

        # aiohttp has no setting for it. The heads of all responses come through this one method,
        # and nothing else reads by it, so it is replaced while this response's head is awaited.
        protocol.read = read_bounded
        broken: list[BaseException] = []

        def set_exception(error: BaseException, *cause: BaseException) -> None:
            ResponseHandler.set_exception(protocol, error, *cause)
            if isinstance(error, HttpProcessingError):
                broken.append(error)
                self._tell_reader(error)

        # It tells only whoever waits for the next head, and forgets the body; the connection is
        # closed then. For its next response this is done anew.
        protocol.set_exception = set_exception
        try:
            started = await super().start(connection)
        finally:
            del protocol.read
        for error in broken:  # it came when the head was read and not yet taken
            self._tell_reader(error)
        return started

    def _tell_reader(self, error: BaseException) -> None:
        """Tell the reader of the body, if there is one, that what comes is no HTTP."""
        body = cast("aiohttp.StreamReader | None", self.content)  # None before the head
        if body is not None and not body.is_eof() and body.exception() is None:
            failure = aiohttp.ClientPayloadError("the body is no HTTP")
            body.set_exception(failure, error)
            # A reader that the end of a chunk has just woken waits again without a look at it.
            asyncio.get_running_loop().call_soon(body.set_exception, failure, error)


def connection_error(target: HttpTarget, error: Exception, idle: float) -> ClientError:
    """Return the error for a request that got no answer at all."""
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        failure = ProviderUnreachableError("no connection to the proxy could be made")
    elif isinstance(error, aiohttp.ClientHttpProxyError):
        sentence = f"the proxy refused the connection ({error.status})"
        failure = ProviderUnreachableError(sentence)
    else:
        failure = _classify_connection_error(error, idle)
    return with_host(target, failure)


def _classify_connection_error(error: Exception, idle: float) -> ClientError:
    if isinstance(error, aiohttp.SocketTimeoutError):
        return ProviderTimeoutError(
            f"the provider took the request and was silent for {idle:g} seconds"
        )
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ProviderUnreachableError("no connection to the provider could be made in time")
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return ProviderUnreachableError("the provider closed the connection before it answered")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return ProviderUnreachableError("the provider's certificate is not valid")
    if isinstance(error, TooManyInterimResponsesError):
        return InvalidReplyError("the provider announced a response again and again and sent none")
    if isinstance(error, aiohttp.ClientResponseError):
        return InvalidReplyError("the provider does not answer in HTTP")
    if isinstance(error, TimeoutError):
        return ProviderTimeoutError("the provider was silent for too long")
    return ProviderUnreachableError("no connection to the provider could be made")


def interrupted_body_error(target: HttpTarget, error: Exception) -> ClientError:
    """Return the error for a body that did not come to its end."""
    if isinstance(error, TimeoutError):
        return with_host(
            target, ProviderTimeoutError("the provider fell silent in the middle of its reply")
        )
    return with_host(
        target, StreamInterruptedError("the provider broke off in the middle of its reply")
    )


def wrong_type_error(target: HttpTarget, found: str, wanted: str) -> ClientError:
    """Return the error for a reply of another content type."""
    found = hide_addresses(found, address_parts(target.url))[:60]
    return with_host(
        target, InvalidReplyError(f"the provider answered with {found} instead of {wanted}")
    )


def too_large_error(target: HttpTarget, limit: int) -> ClientError:
    """Return the error for a reply that is not read to its end."""
    message = f"the provider answered with more than the allowed {limit} bytes"
    return with_host(target, InvalidReplyError(message))


MEBIBYTE = 1 << 20
MAX_ERROR_BYTES = 1 << 16
"""Most bytes that are read of an error's body."""
_LINES = re.compile(r"ndjson|jsonl|json-?lines|stream\+json")
"""Matches the content types of a stream whose lines are JSON, without the frame of events."""
_SPACE = b"\xef\xbb\xbf \t\r\n"
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Prefixes of an event's lines."""
MAX_HEADER_BYTES = 1 << 16
"""The largest header of an answer: some providers send more than aiohttp's usual 8 KiB."""
DRAIN_SECONDS = 0.05
"""How long more is awaited behind the end of a reply: the end of its body, as a rule."""

_CONNECTION_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)


class Closable(Protocol):
    """Holds connections."""

    async def close(self) -> None:
        """Close the connections."""
        ...


ClosableT = TypeVar("ClosableT", bound=Closable)
T = TypeVar("T")


@final
class HttpTransport:
    """One connection pool for each event loop, shared by all clients.

    Redirects are not followed and cookies are not kept, so that a key reaches one host only.
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
        """Open nothing yet.

        Args:
            connect: seconds to wait for a connection.
            idle: seconds of silence after which a call is given up; there is no total limit.
                A model that reasons is silent while it does, and its thoughts are billed.
            max_request_bytes: a larger body is refused before it is sent.
            max_reply_bytes: a larger reply is refused while it is read.
            environ: where `HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` and their like are read; None:
                this process's own.
            resolver: looks names up; then no proxy is used, which would look them up again. None:
                the system.
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
        """From the next call on, give up none for a silence that is shorter than this."""
        self.idle = max(self.idle, seconds)

    async def close(self) -> None:
        """Close this event loop's connections; the next call opens new ones."""
        for companion in self._companions.values():
            await companion.close()
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def signed_by(self, signer: RequestSigner) -> Self:
        """Return the same connections, for requests that somebody signs."""
        signed = copy(self)
        signed._signer = signer  # noqa: SLF001 - its own
        return signed

    def companion(self, name: str, make: Callable[[], ClosableT]) -> ClosableT:
        """Return the object made under that name, once; it is closed when this session is."""
        if name not in self._companions:
            self._companions[name] = make()
        return cast("ClosableT", self._companions[name])

    async def post(self, target: HttpTarget, body: Mapping[str, Any]) -> Any:
        """Return the decoded JSON that the provider answers to `body`.

        Raises:
            ClientError: of the kind that names what went wrong.
        """
        response = await self._send(target, body, "application/json")
        try:
            return await self._json(target, response)
        finally:
            _release_connection(response)

    async def send(self, target: HttpTarget, body: Mapping[str, Any]) -> None:
        """Send JSON to somebody whose answer says only whether it was taken.

        Raises:
            ClientError: it was not.
        """
        _release_connection(await self._send(target, body, "*/*"))

    async def post_form(self, target: HttpTarget, fields: Mapping[str, str]) -> Any:
        """Return the decoded JSON that is answered to a form, as token endpoints take it.

        Raises:
            ClientError: of the kind that names what went wrong.
        """
        payload, kind = urlencode(fields).encode(), "application/x-www-form-urlencoded"
        response = await self._request("POST", target, payload, "application/json", kind=kind)
        try:
            return await self._json(target, response)
        finally:
            _release_connection(response)

    async def open_reply(
        self, target: HttpTarget, body: Mapping[str, Any], *, streamed: bool
    ) -> WholeBody | EventStream:
        """Send `body`, and open the answer: a value or events, whichever it is.

        What it is says its beginning, for servers name it wrongly. Events are to be closed, as
        `with` does.

        Raises:
            ClientError: of the kind that names what went wrong.
        """
        wanted = "text/event-stream" if streamed else "application/json"
        response = await self._send(target, body, wanted)
        is_read = False
        try:
            begun = await self._first_bytes(target, response)
            kind = response.content_type
            is_lines = streamed and bool(_LINES.search(kind)) and not _begins_event(begun)
            is_value = _begins_value(begun) or ("json" in kind and not _begins_event(begun))
            if is_value and not is_lines:
                return WholeBody(await self._read_whole(target, response, begun))
            if kind != "text/event-stream" and not is_lines and not _begins_event(begun):
                raise wrong_type_error(target, kind, wanted)
            is_read = True
            parser = SseParser(has_bare_lines=is_lines)
            return EventStream(response, target, parser, limit=self._max_reply, begun=begun)
        finally:
            if not is_read:
                _release_connection(response)

    async def get(self, target: HttpTarget) -> Any:
        """Return the decoded JSON at `target`; used to ask a server which models it has.

        Raises:
            ClientError: of the kind that names what went wrong.
        """
        response = await self._request("GET", target, None, "application/json")
        try:
            return await self._json(target, response)
        finally:
            _release_connection(response)

    async def fetch(self, target: HttpTarget, accept: str, max_bytes: int) -> FetchedBody:
        """Return the body at `target` as it came, whatever its status.

        A redirect is returned as one and not followed.

        Raises:
            ClientError: of the kind that names what went wrong; the body may be too large.
        """
        response = await self._request("GET", target, None, accept, any_status=True)
        try:
            pieces, is_too_large = await _read_body(response, max_bytes)
        except _CONNECTION_ERRORS as error:
            failure = interrupted_body_error(target, error)
        else:
            if not is_too_large:
                return FetchedBody(
                    status=response.status,
                    location=response.headers.get("Location", ""),
                    content_type=response.content_type
                    if response.headers.get("Content-Type")
                    else "",
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
        # Raised out here so that aiohttp's error, which holds our headers, is not its context.
        raise failure

    async def _json(self, target: HttpTarget, response: aiohttp.ClientResponse) -> Any:
        begun = await self._first_bytes(target, response)
        if "json" not in response.content_type and not _begins_value(begun):
            raise wrong_type_error(target, response.content_type, "application/json")
        body = WholeBody(await self._read_whole(target, response, begun))
        return await body.read(target, lambda value: value)

    async def _first_bytes(self, target: HttpTarget, response: aiohttp.ClientResponse) -> bytes:
        """Read the body's beginning, up to something that is no space; it is empty at its end."""
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
        """Return the body in pieces."""
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
    """An answer of any kind, as it came."""

    status: int
    location: str
    """The address that a redirect names, as it is written there."""
    content_type: str
    """In small letters and without parameters; empty: none was said."""
    charset: str
    body: bytes


@dataclass(frozen=True, slots=True)
class WholeBody:
    """An answer that came as one value, in pieces."""

    pieces: Sequence[bytes]

    async def read(self, target: HttpTarget, read: Callable[[Any], T]) -> T:
        """Return what `read` makes of the value, perhaps in another thread.

        Raises:
            InvalidReplyError: it is no JSON.
        """
        try:
            return await read_pieces(self.pieces, read)
        except MalformedTextError:
            failure = InvalidReplyError("the provider answered with malformed JSON")
        raise with_host(target, failure)


@final
class EventStream:
    """The events of one streamed reply; a sync context manager that closes the connection."""

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
        """Return the events that came next, perhaps none; None at the end of the connection.

        Raises:
            ProviderTimeoutError: nothing came for too long.
            StreamInterruptedError: the connection broke.
            InvalidReplyError: the stream is larger than is allowed.
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
        """Return the event that had not ended when the connection did; it may be cut off."""
        return self._parser.close()

    @property
    def is_over(self) -> bool:
        """Whether the body has ended: only then can the connection be used again."""
        return self._response.content.at_eof()


def _take_unread(content: aiohttp.StreamReader) -> bytes:
    """Return what had come of a body before its connection broke.

    aiohttp keeps it from its readers from then on, though a provider said it.
    """
    pieces = content._buffer  # noqa: SLF001 - there is no other way  # pyright: ignore[reportPrivateUsage]
    unread = b"".join(pieces)
    pieces.clear()
    return unread


def _begins_value(begun: bytes) -> bool:
    """Tell whether a body that begins so is JSON: no event does."""
    return begun.strip(_SPACE)[:1] in {b"{", b"["}


def _begins_event(begun: bytes) -> bool:
    """Tell whether a body that begins so is of events."""
    text = begun.strip(_SPACE)
    return any(text.startswith(name) or name.startswith(text) for name in _FIELDS) and bool(text)


def _release_connection(response: aiohttp.ClientResponse) -> None:
    """Give a read connection back to the pool and close one that is still speaking."""
    if response.content.at_eof():
        response.release()
    else:
        response.close()


async def _read_body(
    response: aiohttp.ClientResponse, limit: int, begun: bytes = b""
) -> tuple[list[bytes], bool]:
    """Read the body; reading stops once it is larger than the limit.

    Args:
        response: whose body it is.
        limit: bytes that it may have.
        begun: what was read of it before.

    Returns:
        The body in pieces, since to join what is too large would hold the loop; whether it is.
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
