"""The pooled HTTP session under every client: JSON out, JSON or server-sent events in."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping
from copy import copy
from http import HTTPStatus
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast, final
from urllib.parse import urlencode

import aiohttp
import anyio
import orjson

from batuta.clients.cloud_credentials import RequestSigner
from batuta.clients.connection_errors import (
    connection_error,
    interrupted_body_error,
    too_large_error,
    wrong_type_error,
)
from batuta.clients.decoding import SseEvent, SseParser
from batuta.clients.error_mapping import decode_body, error_from_response
from batuta.clients.http_target import HttpTarget, with_host
from batuta.clients.interim_responses import BoundedResponse
from batuta.core.redaction import address_parts
from batuta.errors import BadRequestError, ClientError, InvalidReplyError

MEBIBYTE = 1 << 20
MAX_ERROR_BYTES = 1 << 16
"""Of the body of an error, read at most."""
DRAIN_SECONDS = 0.05
"""How long the end of a finished stream is awaited, so that its connection can be used again."""

_CONNECTION_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)


class Closable(Protocol):
    """Holds connections."""

    async def close(self) -> None:
        """Lets them go."""
        ...


ClosableT = TypeVar("ClosableT", bound=Closable)


@final
class HttpTransport:
    """One connection pool for each event loop, shared by all clients.

    Redirects are not followed and cookies are not kept, so that a key reaches one host only.
    """

    def __init__(
        self,
        *,
        connect: float = 5.0,
        idle: float = 120.0,
        max_request_bytes: int = 32 * MEBIBYTE,
        max_reply_bytes: int = 32 * MEBIBYTE,
        trust_env: bool = False,
    ) -> None:
        """Opens nothing yet.

        Args:
            connect: seconds to wait for a connection.
            idle: seconds of silence after which a call is given up; there is no total limit.
            max_request_bytes: a larger body is refused before it is sent.
            max_reply_bytes: a larger reply is refused while it is read.
            trust_env: whether `HTTPS_PROXY` and its like are used.
        """
        self.connect = connect
        self.idle = idle
        self._max_request = max_request_bytes
        self._max_reply = max_reply_bytes
        self._trust_env = trust_env
        self._signer: RequestSigner | None = None
        self._companions: dict[str, Closable] = {}
        self._sessions: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, aiohttp.ClientSession
        ] = weakref.WeakKeyDictionary()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes this event loop's connections; the next call opens new ones."""
        for companion in self._companions.values():
            await companion.close()
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def signed_by(self, signer: RequestSigner) -> Self:
        """The same connections, for requests that somebody signs."""
        signed = copy(self)
        signed._signer = signer  # noqa: SLF001 - its own
        return signed

    def companion(self, name: str, make: Callable[[], ClosableT]) -> ClosableT:
        """What was made under that name, once; it is closed whenever this session is."""
        if name not in self._companions:
            self._companions[name] = make()
        return cast("ClosableT", self._companions[name])

    async def post(self, target: HttpTarget, body: Mapping[str, Any]) -> Any:
        """The decoded JSON that the provider answers to `body`.

        Raises:
            ClientError: of the kind that names what went wrong.
        """
        response = await self._send(target, body, "application/json")
        try:
            return await self._json(target, response)
        finally:
            _release_connection(response)

    async def post_form(self, target: HttpTarget, fields: Mapping[str, str]) -> Any:
        """The decoded JSON that is answered to a form, as token endpoints take it.

        Raises:
            ClientError: of the kind that names what went wrong.
        """
        payload, kind = urlencode(fields).encode(), "application/x-www-form-urlencoded"
        response = await self._request("POST", target, payload, "application/json", kind=kind)
        try:
            return await self._json(target, response)
        finally:
            _release_connection(response)

    async def stream(self, target: HttpTarget, body: Mapping[str, Any]) -> EventStream:
        """The events that the provider answers to `body`; close them, as `with` does.

        Raises:
            ClientError: of the kind that names what went wrong.
        """
        response = await self._send(target, body, "text/event-stream")
        if response.content_type != "text/event-stream":
            response.close()
            raise wrong_type_error(target, response.content_type, "text/event-stream")
        return EventStream(response, target, self._max_reply)

    async def get(self, target: HttpTarget) -> Any:
        """The decoded JSON at `target`; used to ask a server which models it has.

        Raises:
            ClientError: of the kind that names what went wrong.
        """
        response = await self._request("GET", target, None, "application/json")
        try:
            return await self._json(target, response)
        finally:
            _release_connection(response)

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None, connect=self.connect, sock_read=self.idle
                ),
                trust_env=self._trust_env,
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
    ) -> aiohttp.ClientResponse:
        headers = {**target.headers, "Accept": accept}
        if payload is not None:
            headers["Content-Type"] = kind
        if self._signer is not None:
            headers = await self._signer.sign(method, target.url, headers, payload or b"")
        try:
            response = await self._session().request(
                method, target.url, data=payload, headers=headers, allow_redirects=False
            )
        except _CONNECTION_ERRORS as error:
            failure = connection_error(target, error, self.idle)
        else:
            if response.status < HTTPStatus.MULTIPLE_CHOICES:
                return response
            failure = await _status_error(target, response)
        # Raised out here so that aiohttp's error, which holds our headers, is not its context.
        raise failure

    async def _json(self, target: HttpTarget, response: aiohttp.ClientResponse) -> Any:
        if "json" not in response.content_type:
            raise wrong_type_error(target, response.content_type, "application/json")
        failure: ClientError
        try:
            body = await _read_body(response, self._max_reply)
        except _CONNECTION_ERRORS as error:
            failure = interrupted_body_error(target, error)
        else:
            if len(body) > self._max_reply:
                raise too_large_error(target, self._max_reply)
            try:
                return orjson.loads(body)
            except orjson.JSONDecodeError:
                failure = with_host(
                    target, InvalidReplyError("the provider answered with malformed JSON")
                )
        raise failure


@final
class EventStream:
    """The events of one streamed reply; a sync context manager that closes the connection."""

    __slots__ = ("_left", "_limit", "_parser", "_response", "target")

    def __init__(self, response: aiohttp.ClientResponse, target: HttpTarget, limit: int) -> None:
        self._response = response
        self._parser = SseParser()
        self._left = limit
        self._limit = limit
        self.target = target

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _release_connection(self._response)

    async def batch(self) -> list[SseEvent] | None:
        """The events that came next, perhaps none; None at the end of the connection.

        Raises:
            ProviderTimeoutError: nothing came for too long.
            StreamInterruptedError: the connection broke.
            InvalidReplyError: the stream is larger than is allowed.
        """
        try:
            chunk = await self._response.content.readany()
        except _CONNECTION_ERRORS as error:
            failure = interrupted_body_error(self.target, error)
        else:
            if not chunk:
                return None
            self._left -= len(chunk)
            if self._left >= 0:
                return self._parser.feed(chunk)
            failure = too_large_error(self.target, self._limit)
        raise failure

    async def drain(self) -> None:
        """Waits a moment for the end of the body: only then can the connection be used again."""
        content = self._response.content
        if content.at_eof():
            return
        with anyio.move_on_after(DRAIN_SECONDS):
            try:
                while await content.readany():
                    pass
            except _CONNECTION_ERRORS:
                return


def _release_connection(response: aiohttp.ClientResponse) -> None:
    """Gives a read connection back to the pool and closes one that is still speaking."""
    if response.content.at_eof():
        response.release()
    else:
        response.close()


async def _read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body; reading stops once it is larger than `limit`."""
    chunks: list[bytes] = []
    size = 0
    while size <= limit and (chunk := await response.content.readany()):
        chunks.append(chunk)
        size += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _status_error(target: HttpTarget, response: aiohttp.ClientResponse) -> ClientError:
    try:
        body = await _read_body(response, MAX_ERROR_BYTES)
    except _CONNECTION_ERRORS:
        body = b""
    finally:
        _release_connection(response)
    error = error_from_response(
        response.status,
        decode_body(body),
        response.headers,
        target.key,
        address=address_parts(target.url),
    )
    return with_host(target, error)
