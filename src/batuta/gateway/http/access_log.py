"""The outermost layer of the onion: what every request took, counted and logged."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import perf_counter
from typing import Any, final

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batuta.gateway.access.caller import caller_of
from batuta.gateway.http.body import header_value
from batuta.gateway.telemetry.metrics import Metrics
from batuta.gateway.telemetry.spans import parse_parent_span, use_parent_span

logger = logging.getLogger("batuta.requests")

NO_ROUTE = "(none)"
"""The route of what no route was found for."""
CLIENT_CLOSED = 499
"""The status of what was not answered because its reader went away."""
_ERROR_CODE_KEY = "batuta.refused"
_LOGGED_HEADERS = {b"x-request-id": "request_id", b"x-batuta-run-id": "run_id"}


def note_error_code(scope: Scope, code: str) -> None:
    """Writes down the code of the error that the request gets."""
    scope[_ERROR_CODE_KEY] = code


@final
class AccessLog:
    """Counts requests by route, and writes a line of each to the log, if it wants them."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Iterable[BaseRoute]) -> None:
        self.app = app
        self.metrics = metrics
        self.paths: dict[object, str] = {
            route.endpoint: route.path for route in routes if isinstance(route, Route)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, and measure."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = perf_counter(), CLIENT_CLOSED
        shown: dict[str, Any] = {}

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                for name, value in message["headers"]:
                    if name in _LOGGED_HEADERS:
                        shown[_LOGGED_HEADERS[name]] = value.decode("latin-1")
            await send(message)

        try:
            with use_parent_span(parse_parent_span(header_value(scope, b"traceparent"))):
                await self.app(scope, receive, watched)
        finally:
            self._record_request(scope, status, perf_counter() - began, shown)

    def _record_request(
        self, scope: Scope, status: int, seconds: float, shown: dict[str, Any]
    ) -> None:
        route = self.paths.get(scope.get("endpoint"), NO_ROUTE)
        self.metrics.count_request(route, scope["method"], status, seconds)
        code = scope.get(_ERROR_CODE_KEY)
        if code is not None:
            self.metrics.count_error(code)
        if logger.isEnabledFor(logging.INFO):
            who = caller_of(scope)
            about: dict[str, Any] = {
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
                "tenant": who.tenant,
                "key": who.key,
                "error": code,
                **shown,
            }
            logger.info("request", extra={"about": about})
