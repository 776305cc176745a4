"""The middleware around the routes, in pure ASGI.

It gives each HTTP request an id, checks its headers, size and origin, authenticates its caller
(except on public paths), limits concurrency, counts and logs the request, and turns exceptions into
error bodies.
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

from starlette.routing import BaseRoute, Match, Route
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
_EXPOSED_HEADERS = (
    b"x-request-id, request-id, retry-after, retry-after-ms, x-should-retry, x-batuta-run-id, "
    b"x-batuta-outcome, x-batuta-cost-usd, x-batuta-cache, x-batuta-conductor, x-batuta-ignored"
)
_PREFLIGHT_MAX_AGE = b"600"


@final
class CrossOrigin:
    """CORS: the origins whose pages may use the API, apart from the admin routes."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def allows(self, path: str, origin: bytes, *, needs_key: bool) -> bool:
        """Return True if a page of this origin may use the path.

        Args:
            path: the path of the request.
            origin: the header `Origin`.
            needs_key: whether the server requires keys. If not, "*" allows no origin, since any
                page could spend money.
        """
        if not self._origins or not path.startswith(f"{_API}/") or path.startswith(_ADMIN):
            return False
        if EVERY in self._origins and needs_key:
            return True
        return origin.decode("latin-1").rstrip("/").lower() in self._origins

    @staticmethod
    def answer_headers(origin: bytes) -> RawHeaders:
        """Return the headers that let the page read the response, without credentials."""
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED_HEADERS),
            (b"vary", b"origin"),
        ]

    @staticmethod
    def preflight_headers(headers: Mapping[bytes, bytes]) -> RawHeaders:
        """Return the headers of the response to a preflight request with these headers."""
        allowed = headers.get(b"access-control-request-headers", b"authorization, content-type")
        return [
            (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
            (b"access-control-allow-headers", allowed),
            (b"access-control-max-age", _PREFLIGHT_MAX_AGE),
        ]


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return True if the request is a CORS preflight."""
    return method == "OPTIONS" and b"access-control-request-method" in headers


logger = logging.getLogger("batuta.requests")

NO_ROUTE = "(none)"
"""The route label of requests without a route."""
CLIENT_CLOSED = 499
"""The logged and counted status of requests whose client disconnected before a response."""
SESSION_COOKIE = "batuta_session"
"""The cookie with a web page's session."""
MAX_HEADERS = 64 * 1024
"""Maximum number of bytes of a request's headers."""
_REQUEST_ID_KEY = "batuta.request_id"
_MESSAGES_PATH = "/v1/messages"
"""This path and those under it send errors in Anthropic's form."""
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
"""Headers that must not be repeated: a proxy in front could interpret the request differently."""
_PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json", "/docs"})
"""Paths that need no caller, so that none is looked up."""
_BEARER = b"bearer "
_NO_SPAN = nullcontext()
_FOREIGN_PAGE = (
    "Requests from web pages of other origins are refused; the server's setting 'cors_origins' "
    "admits origins to /v1."
)

Headers = dict[bytes, bytes]
"""The values of headers by their names in lower case; of a repeated header the first value."""
ExplainError = Callable[[Scope, Exception], APIError | None]
"""Returns the error for the caller; None if the exception is an internal error."""


def request_id(scope: Scope) -> str | None:
    """Return the request's id, which the response has in the header `x-request-id`.

    Return None for a request that has not passed the middleware.
    """
    found = scope.get(_REQUEST_ID_KEY)
    return found if isinstance(found, str) else None


@final
class RequestMiddleware:
    """Serves each request: identifies, checks, authenticates, limits, measures and logs it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        routes: Iterable[BaseRoute],
        authenticator: Authenticator,
        limiter: ConcurrencyLimiter,
        rate_limiter: RateLimiter,
        hosts: Collection[str],
        origins: Collection[str],
        store: Store | None,
        explain: ExplainError,
    ) -> None:
        """Connect the parts that handle a request.

        Args:
            app: the router.
            metrics: counts each request.
            routes: the router's routes, for the labels of metrics and logs.
            authenticator: identifies the caller.
            limiter: limits the concurrent requests that call models.
            rate_limiter: limits the bytes read from the store.
            hosts: host names of the server, besides the loopback's.
            origins: other origins whose web pages may use the API.
            store: stores answers under an `Idempotency-Key`; None: they are not stored.
            explain: maps exceptions other than `APIError` to an error for the caller.
        """
        self._app = app
        self._metrics = metrics
        self._routes = [route for route in routes if isinstance(route, Route)]
        self._paths: dict[object, str] = {route.endpoint: route.path for route in self._routes}
        self._authenticator = authenticator
        self._limiter = limiter
        self._rate_limiter = rate_limiter
        self._host_check = HostCheck(hosts, authenticator)
        self._cross_origin = CrossOrigin(origins)
        self._bodies = BodyMemory()
        self._turns = LoopTurns()
        self._idempotent = (
            None if store is None else IdempotencyMiddleware(self._serve_in_slot, store)
        )
        self._explain = explain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve and record the request; send exceptions as the API's errors.

        Once the response has begun, an exception only ends it.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: Headers = dict(reversed(scope["headers"]))
        answer = _Answer(scope, send, headers.get(b"x-request-id"))
        try:
            await self._serve(scope, receive, answer, headers)
        except ClientGone:
            pass  # the client has disconnected
        except APIError as error:
            if answer.status is None:
                await answer.send_error(error)
        except Exception as error:  # noqa: BLE001 - the outermost handler
            answered = self._explain(scope, error)
            if answered is None:
                log_exception(error)
            if answer.status is None:
                await answer.send_error(answered or internal_error())
        finally:
            self._record_request(scope, answer)

    async def _serve(
        self, scope: Scope, receive: Receive, answer: _Answer, headers: Headers
    ) -> None:
        """Check the request, authenticate its caller and pass it to the routes.

        Raises:
            APIError: the request's size, headers, page or caller are refused, or a route refuses
                the request.
            ClientGone: the client has disconnected.
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
        # `content-length` of a compressed body is not the size that counts
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
            idempotent = self._idempotent if b"idempotency-key" in headers else None
            app = self._serve_in_slot if idempotent is None else idempotent
            traced = headers.get(b"traceparent")
            with _NO_SPAN if traced is None else use_parent_span(parse_parent_span(traced)):
                await app(scope, receive, answer.send)
        finally:
            held.release()

    def _is_allowed_page(self, scope: Scope, headers: Headers) -> bool:
        """Return True if the request comes from another origin whose pages may use the API."""
        needs_key = self._authenticator.is_known_to_need_key
        return self._cross_origin.allows(scope["path"], headers[b"origin"], needs_key=needs_key)

    async def _serve_in_slot(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request; a request that calls models first waits for a concurrency slot."""
        if scope["path"] in LIMITED_PATHS and scope["method"] == "POST":
            async with self._limiter.slot(caller_of(scope).tenant):
                await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _find_caller(self, scope: Scope, headers: Headers) -> None:
        """Set the request's caller.

        The web page's routes check the caller themselves.

        Raises:
            APIError: a credential is not valid, `/v1` is requested without one where one is
                needed, `/v1/admin` is requested by somebody else than an admin, or the database
                fails.
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
            message = "This request needs the admin token or the session of an administrator."
            raise APIError(403, "permission_denied", message)

    def _record_request(self, scope: Scope, answer: _Answer) -> None:
        """Count the request by route and its error by code, and log the request at level INFO."""
        route = self._paths.get(scope.get("endpoint")) or self._find_route(scope)
        seconds = answer.elapsed()
        status = CLIENT_CLOSED if answer.status is None else answer.status
        self._metrics.count_request(route, scope["method"], status, seconds)
        if answer.error_code is not None:
            self._metrics.count_error(answer.error_code)
        if logger.isEnabledFor(logging.INFO):
            caller = caller_of(scope)
            about: dict[str, Any] = {
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
                "tenant": caller.tenant,
                "key": caller.key,
                "error": answer.error_code,
                **answer.logged_ids(),
            }
            logger.info("request", extra={"about": about})

    def _find_route(self, scope: Scope) -> str:
        """Return the path of the route of a request that was answered before it was routed."""
        fits = (route.path for route in self._routes if route.matches(scope)[0] is not Match.NONE)
        return next(fits, NO_ROUTE)


@final
class _Answer:
    """Sends the response to one request with its id, and notes its status for the log."""

    __slots__ = (
        "_began", "_headers", "_id", "_scope", "_send", "error_code", "more_headers", "status",
    )  # fmt: skip

    def __init__(self, scope: Scope, send: Send, given: bytes | None) -> None:
        self._began = perf_counter()
        self._send = send
        self._scope = scope
        known = given is not None and _REQUEST_ID_PATTERN.fullmatch(given)
        self._id = given if given and known else f"req_{secrets.token_hex(12)}".encode()
        scope[_REQUEST_ID_KEY] = self._id.decode()
        self._headers: list[tuple[bytes, bytes]] = []
        self.more_headers: list[tuple[bytes, bytes]] = []
        """CORS headers, for a web page of another origin."""
        self.status: int | None = None
        """The status that was sent; None: no response has begun."""
        self.error_code: str | None = None
        """The code of the error that was sent, if any."""

    async def send(self, message: Message) -> None:
        """Send the message; add request id, time taken and CORS headers to the first one."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            took = str(int(self.elapsed() * 1000)).encode()
            # Anthropic's clients read `request-id`.
            self._headers = message["headers"] = [
                *message["headers"],
                (b"x-request-id", self._id),
                (b"request-id", self._id),
                (b"openai-processing-ms", took),
                *self.more_headers,
            ]
        await self._send(message)

    async def send_nothing(self) -> None:
        """Send status 204 without a body."""
        await self.send({"type": "http.response.start", "status": 204, "headers": []})
        await self.send({"type": "http.response.body", "body": b""})

    async def send_error(self, error: APIError) -> None:
        """Send the error in the form of the path's dialect: OpenAI's or Anthropic's."""
        self.error_code = error.code
        path: str = self._scope["path"]
        is_openai = path != _MESSAGES_PATH and not path.startswith(f"{_MESSAGES_PATH}/")
        body = error.body if is_openai else messages_error_body(error, request_id(self._scope))
        await send_json(self.send, body, error.status, error.headers)

    def elapsed(self) -> float:
        """Return the seconds since the request was received."""
        return perf_counter() - self._began

    def logged_ids(self) -> dict[str, str]:
        """Return the ids of the request and of its run, if the response's headers have them."""
        return {
            _LOGGED_HEADERS[name]: value.decode("latin-1")
            for name, value in self._headers
            if name in _LOGGED_HEADERS
        }


_LOGGED_HEADERS = {b"x-request-id": "request_id", b"x-batuta-run-id": "run_id"}


@final
class HostCheck:
    """Refuses too large headers, repeated `_SINGLE_HEADERS`, and requests of foreign web pages.

    Unknown hosts are refused too, unless a key is needed.

    If no key is needed, any page open in a browser on this machine could spend money by a request
    to the loopback. The header `Origin` reveals such a request; after DNS rebinding, `Host` does.
    """

    def __init__(self, hosts: Collection[str], authenticator: Authenticator) -> None:
        self._hosts = frozenset({"localhost", *hosts})
        self._authenticator = authenticator

    def check(self, scope: Scope, headers: Headers) -> None:
        """Check the request's headers.

        Raises:
            APIError: the request is refused.
        """
        if sum(map(len, chain.from_iterable(scope["headers"]))) > MAX_HEADERS:
            raise APIError(431, "headers_too_large", f"The headers exceed {MAX_HEADERS} bytes.")
        _check_single(scope["headers"])
        host = headers.get(b"host") or b"localhost"
        if not self._is_known_host(host.decode("latin-1")):
            message = "Without API keys the host must be 'localhost' or a loopback address."
            raise APIError(403, "permission_denied", message)
        origin = headers.get(b"origin")
        if origin is not None and origin.partition(b"://")[2] != host:
            raise APIError(403, "permission_denied", _FOREIGN_PAGE)

    def _is_known_host(self, host: str) -> bool:
        if self._authenticator.is_known_to_need_key:
            return True  # a page that uses DNS rebinding has no key
        name = _host_name(host)
        return name in self._hosts or _is_loopback(name)


def _check_single(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise APIError if one of `_SINGLE_HEADERS` is repeated."""
    found = [name for name, _ in headers if name in _SINGLE_HEADERS]
    if len(found) == len(set(found)):
        return
    name = next(name for name in found if found.count(name) > 1).decode("latin-1")
    raise APIError(400, "invalid_request", f"The header '{name}' came more than once.")


@lru_cache(maxsize=128)
def _host_name(host: str) -> str:
    """Return the host name of a `Host` header without its port; empty if it is malformed."""
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
    """Return the key from `Authorization: Bearer` or, as Anthropic's clients send it, `x-api-key`.

    Return None if neither was sent.
    """
    given = headers.get(b"authorization")
    if given is not None and given[: len(_BEARER)].lower() == _BEARER:
        return given[len(_BEARER) :].strip().decode("latin-1")
    given = headers.get(b"x-api-key")
    return None if given is None else given.strip().decode("latin-1")
