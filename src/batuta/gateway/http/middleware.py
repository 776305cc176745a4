"""The one layer around the routes, in pure ASGI: what every request passes through.

It is counted and logged, named, checked at the door, and known by its caller; what is raised
becomes an error body.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from functools import lru_cache
from ipaddress import ip_address
from itertools import chain
from time import perf_counter
from typing import Any, final

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batuta.errors import StoreError
from batuta.gateway.access.caller import (
    Authenticator,
    CallerRole,
    caller_of,
    missing_key,
    set_caller,
)
from batuta.gateway.access.rate_limit import RateLimiter
from batuta.gateway.errors import APIError, internal_error, log_exception, messages_error_body
from batuta.gateway.http.body import ClientGone, cookie_value, send_json
from batuta.gateway.http.idempotency import IdempotencyMiddleware
from batuta.gateway.http.request_slots import (
    LIMITED_PATHS,
    BodyMemory,
    ConcurrencyLimiter,
    HeldMemory,
    LoopTurns,
)
from batuta.gateway.http.stored_reads import give_limiter
from batuta.gateway.telemetry.metrics import Metrics
from batuta.gateway.telemetry.spans import parse_parent_span, use_parent_span
from batuta.store import Store

RawHeaders = list[tuple[bytes, bytes]]
EVERY = "*"
"""The setting that allows any origin, if a key is required."""
_SHOWN = (
    b"x-request-id, request-id, retry-after, retry-after-ms, x-batuta-run-id, x-batuta-outcome, "
    b"x-batuta-cost-usd, x-batuta-cache, x-batuta-conductor, x-batuta-ignored"
)
_SECONDS = b"600"


@final
class CrossOrigin:
    """The origins whose pages may use the API, without the admin's routes and the server's page."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def allows(self, path: str, origin: bytes, *, needs_key: bool) -> bool:
        """Tell whether a page of that origin may be answered.

        Args:
            path: what it asks for.
            origin: as the browser tells it.
            needs_key: whether nobody is served without a key: else any page could spend money.
        """
        if not self._origins or not path.startswith(f"{_API}/") or path.startswith(_ADMIN):
            return False
        if EVERY in self._origins and needs_key:
            return True
        return origin.decode("latin-1").rstrip("/").lower() in self._origins

    @staticmethod
    def answer_headers(origin: bytes) -> RawHeaders:
        """Return the headers of an answer that the page may read; cookies are never read."""
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _SHOWN),
            (b"vary", b"origin"),
        ]

    @staticmethod
    def preflight_headers(asked: Mapping[bytes, bytes]) -> RawHeaders:
        """Return the headers that answer a browser's question whether it may send a request."""
        wanted = asked.get(b"access-control-request-headers", b"authorization, content-type")
        return [
            (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
            (b"access-control-allow-headers", wanted),
            (b"access-control-max-age", _SECONDS),
        ]


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a browser asks if it may send a request."""
    return method == "OPTIONS" and b"access-control-request-method" in headers


logger = logging.getLogger("batuta.requests")

NO_ROUTE = "(none)"
"""The route of what no route was found for."""
CLIENT_CLOSED = 499
"""The status of what was not answered because its reader went away."""
SESSION_COOKIE = "batuta_session"
"""The cookie that carries a web page's session."""
MAX_HEADERS = 64 * 1024
_REQUEST_ID_KEY = "batuta.request_id"
_MESSAGES_PATH = "/v1/messages"
"""The path under which errors have Anthropic's form."""
_REQUEST_ID_PATTERN = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_HOST_PATTERN = re.compile(r"(?P<name>\[[^\]]*\]|[^:]*)(:\d*)?")
_API = "/v1"
_ADMIN = "/v1/admin"
_SINGLE_HEADERS = frozenset(
    {
        b"authorization", b"content-encoding", b"content-length", b"content-type", b"host",
        b"idempotency-key", b"origin", b"transfer-encoding", b"x-api-key",
    }
)  # fmt: skip
"""Headers by which a proxy before this server could take a request for another one than it is
here, if they came twice."""
_PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json", "/docs"})
_BEARER = b"bearer "
_NO_SPAN = nullcontext()

Headers = dict[bytes, bytes]
"""The first header of each name, in lower case."""
ExplainError = Callable[[Scope, Exception], APIError | None]
"""Returns the error that the caller is told; None if the exception is a fault of ours."""


def request_id(scope: Scope) -> str | None:
    """Return the id under which the request's answer is known."""
    name = scope.get(_REQUEST_ID_KEY)
    return name if isinstance(name, str) else None


@final
class RequestMiddleware:
    """Every request passes through it once, on its way to the routes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        routes: Iterable[BaseRoute],
        authenticator: Authenticator,
        limiter: ConcurrencyLimiter,
        rate_limiter: RateLimiter,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        store: Store | None = None,
        explain: ExplainError = lambda _scope, _error: None,
    ) -> None:
        """Wire what a request passes through.

        Args:
            app: the routes.
            metrics: count each request.
            routes: the same routes, for their names.
            authenticator: tells who asks.
            limiter: gives each request for an answer its place.
            rate_limiter: counts what is read of the store.
            hosts: names under which the server is reached, besides the loopback.
            origins: of other web pages that may use the API.
            store: keeps answers under an `Idempotency-Key`; None: none is kept.
            explain: what is told of exceptions that are no `APIError`.
        """
        self._app = app
        self._metrics = metrics
        self._paths: dict[object, str] = {
            route.endpoint: route.path for route in routes if isinstance(route, Route)
        }
        self._authenticator = authenticator
        self._limiter = limiter
        self._rate_limiter = rate_limiter
        self._host_check = HostCheck(hosts, authenticator)
        self._cross_origin = CrossOrigin(origins)
        self._bodies = BodyMemory()
        self._turns = LoopTurns()
        self._idempotent = None if store is None else IdempotencyMiddleware(self._place, store)
        self._explain = explain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, measure, and say in the API's form what went wrong."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: Headers = dict(reversed(scope["headers"]))
        answer = _Answer(scope, send, headers.get(b"x-request-id"))
        try:
            await self._serve(scope, receive, answer, headers)
        except ClientGone:
            pass  # nobody is there to be told anything
        except APIError as error:
            if answer.status is None:  # else the answer had begun when the body was looked at
                await answer.send_error(error)
        except Exception as error:  # noqa: BLE001 - the last one who can answer
            answered = self._explain(scope, error)
            if answered is None:
                log_exception(error)
            if answered is not None or answer.status is None:
                await answer.send_error(answered or internal_error())
        finally:
            self._record_request(scope, answer)

    async def _serve(
        self, scope: Scope, receive: Receive, answer: _Answer, headers: Headers
    ) -> None:
        """Serve whoever may be served.

        Raises:
            APIError: it is too large, comes from another web page, or its caller may not.
        """
        if b"origin" in headers and self._is_allowed_page(scope, headers):
            answer.more_headers = self._cross_origin.answer_headers(headers[b"origin"])
            if is_preflight(scope["method"], headers):
                answer.more_headers += self._cross_origin.preflight_headers(headers)
                await answer.send_nothing()
                return
            headers = {n: v for n, v in headers.items() if n not in {b"origin", b"cookie"}}
        self._host_check.check(scope, headers)
        packed = headers.get(b"content-encoding")
        # the length of a compressed body does not tell its size
        length = headers.get(b"content-length") if packed is None else None
        held = HeldMemory.of_request(scope, self._bodies)
        give_limiter(scope, self._rate_limiter)
        body = held.watch_large_body(receive, length)
        receive = receive if body is None else body.receive
        if packed is not None and body is not None:
            receive = body.unpacked(packed.decode("latin-1"))
        if scope["method"] == "POST":
            receive = self._turns.paced(receive)
        try:
            if scope["path"] not in _PUBLIC_PATHS:
                await self._find_caller(scope, headers)
            keyed = b"idempotency-key" in headers and self._idempotent is not None
            app = self._idempotent if keyed and self._idempotent is not None else self._place
            traced = headers.get(b"traceparent")
            with _NO_SPAN if traced is None else use_parent_span(parse_parent_span(traced)):
                await app(scope, receive, answer.send)
        finally:
            held.release()

    def _is_allowed_page(self, scope: Scope, headers: Headers) -> bool:
        """Tell whether the request is of another web page that may use the API."""
        needs_key = self._authenticator.is_known_to_need_key
        return self._cross_origin.allows(scope["path"], headers[b"origin"], needs_key=needs_key)

    async def _place(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request; one that asks for an answer waits for a place."""
        if scope["path"] in LIMITED_PATHS and scope["method"] == "POST":
            async with self._limiter.slot(caller_of(scope).tenant):
                await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _find_caller(self, scope: Scope, headers: Headers) -> None:
        """Write down who asks; keep nobody out of the API, and all but the admin out of its own.

        What is not the API - the web page - finds out who asks and decides for itself.
        """
        path: str = scope["path"]
        session = cookie_value(scope, SESSION_COOKIE) if b"cookie" in headers else None
        try:
            caller = await self._authenticator.authenticate(_read_credential(headers), session)
        except StoreError as error:
            log_exception(error)
            message = "Keys cannot be checked now; try again."
            raise APIError(503, "overloaded", message, headers={"retry-after": "1"}) from None
        set_caller(scope, caller)
        if caller.role is CallerRole.NOBODY and _is_under(path, _API):
            raise missing_key()
        if caller.role is not CallerRole.ADMIN and _is_under(path, _ADMIN):
            raise APIError(403, "permission_denied", "This needs the admin's token.")

    def _record_request(self, scope: Scope, answer: _Answer) -> None:
        """Count the request by route, and write a line of it to the log, if it wants them."""
        route, seconds = self._paths.get(scope.get("endpoint"), NO_ROUTE), answer.elapsed()
        status = CLIENT_CLOSED if answer.status is None else answer.status
        self._metrics.count_request(route, scope["method"], status, seconds)
        if answer.error_code is not None:
            self._metrics.count_error(answer.error_code)
        if logger.isEnabledFor(logging.INFO):
            who = caller_of(scope)
            about: dict[str, Any] = {
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
                "tenant": who.tenant,
                "key": who.key,
                "error": answer.error_code,
                **answer.logged_ids(),
            }
            logger.info("request", extra={"about": about})


@final
class _Answer:
    """The answer to one request: named, and noted for the log."""

    __slots__ = (
        "_began", "_headers", "_name", "_scope", "_send", "error_code", "more_headers", "status",
    )  # fmt: skip

    def __init__(self, scope: Scope, send: Send, given: bytes | None) -> None:
        self._began = perf_counter()
        self._send = send
        self._scope = scope
        known = given is not None and _REQUEST_ID_PATTERN.fullmatch(given)
        self._name = given if given and known else f"req_{secrets.token_hex(12)}".encode()
        scope[_REQUEST_ID_KEY] = self._name.decode()
        self._headers: list[tuple[bytes, bytes]] = []
        self.more_headers: list[tuple[bytes, bytes]] = []
        """Headers that let a web page of another origin read the answer."""
        self.status: int | None = None
        """None: nothing was sent yet."""
        self.error_code: str | None = None
        """The code of the error that the request gets."""

    async def send(self, message: Message) -> None:
        """Pass it on; every answer names its request and how long it took to begin."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            took = str(int(self.elapsed() * 1000)).encode()
            # `request-id` is where Anthropic's clients look.
            self._headers = message["headers"] = [
                *message["headers"],
                (b"x-request-id", self._name),
                (b"request-id", self._name),
                (b"openai-processing-ms", took),
                *self.more_headers,
            ]
        await self._send(message)

    async def send_nothing(self) -> None:
        """Send an answer without a body."""
        await self.send({"type": "http.response.start", "status": 204, "headers": []})
        await self.send({"type": "http.response.body", "body": b""})

    async def send_error(self, error: APIError) -> None:
        """Send the refusal in the form that the path's dialect has."""
        self.error_code = error.code
        path: str = self._scope["path"]
        ours = path != _MESSAGES_PATH and not path.startswith(f"{_MESSAGES_PATH}/")
        body = error.body if ours else messages_error_body(error, request_id(self._scope))
        await send_json(self.send, body, error.status, error.headers)

    def elapsed(self) -> float:
        """Return the seconds since the request came."""
        return perf_counter() - self._began

    def logged_ids(self) -> dict[str, str]:
        """Return the ids of the request and of its run, as the answer's headers told them."""
        ids: dict[str, str] = {}
        for name, value in self._headers:
            if name in _LOGGED_HEADERS:
                ids[_LOGGED_HEADERS[name]] = value.decode("latin-1")
        return ids


_LOGGED_HEADERS = {b"x-request-id": "request_id", b"x-batuta-run-id": "run_id"}


@final
class HostCheck:
    """Turns away what no client of ours sends: huge headers, or from a web page of somebody else.

    Where no key is needed, any page that is open in a browser on this machine could spend money
    by a request to the loopback; its `Origin`, or after DNS rebinding its `Host`, gives it away.
    """

    def __init__(
        self, hosts: Collection[str] = (), authenticator: Authenticator | None = None
    ) -> None:
        self._hosts = frozenset({"localhost", *hosts})
        self._authenticator = authenticator

    def check(self, scope: Scope, headers: Headers) -> None:
        """Return if the request may pass, else raise.

        Raises:
            APIError: it may not.
        """
        if sum(map(len, chain.from_iterable(scope["headers"]))) > MAX_HEADERS:
            raise APIError(431, "headers_too_large", f"The headers exceed {MAX_HEADERS} bytes.")
        _check_single(scope["headers"])
        host = headers.get(b"host") or b"localhost"
        if not self._is_known_host(host.decode("latin-1")):
            message = "This host name is not one of the server's; see its setting 'hosts'."
            raise APIError(403, "permission_denied", message)
        origin = headers.get(b"origin")
        if origin is not None and origin.partition(b"://")[2] != host:
            raise APIError(403, "permission_denied", "Requests from other web pages are refused.")

    def _is_known_host(self, host: str) -> bool:
        if self._authenticator is not None and self._authenticator.is_known_to_need_key:
            return True  # a page that rebinds its name has no key
        name = _host_name(host)
        return name in self._hosts or _is_loopback(name)


def _check_single(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise APIError if a header came twice that may come once."""
    found = [name for name, _ in headers if name in _SINGLE_HEADERS]
    if len(found) == len(set(found)):
        return
    name = next(name for name in found if found.count(name) > 1).decode("latin-1")
    raise APIError(400, "invalid_request", f"The header '{name}' came more than once.")


@lru_cache(maxsize=128)
def _host_name(host: str) -> str:
    """Return the name in a `Host` header; empty if it has none."""
    match = _HOST_PATTERN.fullmatch(host)
    return match["name"].lower() if match else ""


@lru_cache(maxsize=128)
def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _read_credential(headers: Headers) -> str | None:
    """Return the key that the headers show: as OpenAI's clients send it, or as Anthropic's do."""
    given = headers.get(b"authorization")
    if given is not None and given[: len(_BEARER)].lower() == _BEARER:
        return given[len(_BEARER) :].strip().decode("latin-1")
    given = headers.get(b"x-api-key")
    return None if given is None else given.strip().decode("latin-1")
