"""The onion around the routes, in pure ASGI: request id, error form, guard at the door."""

from __future__ import annotations

import logging
import re
import secrets
import traceback
from collections.abc import Collection
from functools import lru_cache
from ipaddress import ip_address
from time import perf_counter
from typing import cast, final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batuta.gateway.access.authenticate import Authenticator
from batuta.gateway.errors import APIError, internal_error, messages_error_body
from batuta.gateway.http.access_log import note_error_code
from batuta.gateway.http.body import header_value, send_json

logger = logging.getLogger("batuta.gateway")

MAX_BODY = 20 * 1024 * 1024
MAX_HEADERS = 64 * 1024
_REQUEST_ID_KEY = "batuta.request_id"
_MESSAGES_PATH = "/v1/messages"
"""Where errors have Anthropic's form."""
_REQUEST_ID_PATTERN = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_HOST_PATTERN = re.compile(r"(?P<name>\[[^\]]*\]|[^:]*)(:\d*)?")


def request_id(scope: Scope) -> str | None:
    """The id under which the request's answer is known."""
    name = scope.get(_REQUEST_ID_KEY)
    return name if isinstance(name, str) else None


@final
class RequestIdMiddleware:
    """Every answer names its request and how long it took to begin."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve with two headers more."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = perf_counter()
        given = header_value(scope, b"x-request-id")
        known = given is not None and _REQUEST_ID_PATTERN.fullmatch(given)
        name = given if given and known else f"req_{secrets.token_hex(12)}".encode()
        scope[_REQUEST_ID_KEY] = name.decode()

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                took = str(int((perf_counter() - began) * 1000)).encode()
                # `request-id` is where Anthropic's clients look.
                more = (
                    (b"x-request-id", name),
                    (b"request-id", name),
                    (b"openai-processing-ms", took),
                )
                message["headers"] = [*message["headers"], *more]
            await send(message)

        await self.app(scope, receive, named)


@final
class ErrorMiddleware:
    """What is raised becomes an error body; a fault of ours is logged without its content."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, or say in the API's form why not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except APIError as refusal:
            await _send_error(scope, send, refusal)
        except Exception as error:  # noqa: BLE001 - the last one who can answer
            log_exception(error)
            if not started:
                await _send_error(scope, send, internal_error())


async def _send_error(scope: Scope, send: Send, error: APIError) -> None:
    """The refusal in the form that the path's dialect has."""
    note_error_code(scope, error.code)
    path: str = scope.get("path", "")
    ours = path != _MESSAGES_PATH and not path.startswith(f"{_MESSAGES_PATH}/")
    body = error.body if ours else messages_error_body(error, request_id(scope))
    await send_json(send, body, error.status, error.headers)


@final
class HostCheck:
    """Turns away what no client of ours sends: too large, or from a web page of somebody else.

    Where no key is needed, any page that is open in a browser on this machine could spend money
    by a request to the loopback; its `Origin`, or after DNS rebinding its `Host`, gives it away.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str] = (), authenticator: Authenticator | None = None
    ) -> None:
        self.app = app
        self.hosts = frozenset({"localhost", *hosts})
        self.authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what may pass."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self._check_headers(scope)
        length = header_value(scope, b"content-length")
        if length is None:
            receive = _limit_body(receive)
        elif length.isdigit() and int(length) > MAX_BODY:
            raise _too_large_error()
        await self.app(scope, receive, send)

    def _check_headers(self, scope: Scope) -> None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
            raise APIError(431, "headers_too_large", f"The headers exceed {MAX_HEADERS} bytes.")
        host = (header_value(scope, b"host") or b"localhost").decode("latin-1")
        if not self._is_known_host(host):
            message = "This host name is not one of the server's; see its setting 'hosts'."
            raise APIError(403, "permission_denied", message)
        origin = header_value(scope, b"origin")
        if origin is not None and origin.decode("latin-1").partition("://")[2] != host:
            raise APIError(403, "permission_denied", "Requests of other web pages are refused.")

    def _is_known_host(self, host: str) -> bool:
        if self.authenticator is not None and self.authenticator.is_known_to_need_key:
            return True  # a page that rebinds its name has no key
        name = _host_name(host)
        return name in self.hosts or _is_loopback(name)


def log_exception(error: Exception) -> None:
    """Logs where a fault happened and of what type it is; never its message, never content."""
    places: list[str] = []
    for inner in _leaf_exceptions(error):
        frames = traceback.extract_tb(inner.__traceback__)
        where = " > ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in frames)
        places.append(f"{type(inner).__name__} in {where}")
    logger.error("a request failed: %s", "; ".join(places))


def _leaf_exceptions(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return [leaf for inner in group.exceptions for leaf in _leaf_exceptions(inner)]
    return [error]


@lru_cache(maxsize=128)
def _host_name(host: str) -> str:
    """The name in a `Host` header; empty if it has none."""
    match = _HOST_PATTERN.fullmatch(host)
    return match["name"].lower() if match else ""


@lru_cache(maxsize=128)
def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _too_large_error() -> APIError:
    return APIError(413, "request_too_large", f"The body exceeds {MAX_BODY} bytes.")


def _limit_body(receive: Receive) -> Receive:
    """`receive`, refusing a body that turns out to be too large."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY:
            raise _too_large_error()
        return message

    return counted
