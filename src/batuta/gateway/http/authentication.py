"""Who asks, found before anything is routed. Pure ASGI, on the path and the headers alone."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import final

from starlette.types import ASGIApp, Receive, Scope, Send

from batuta.errors import StoreError
from batuta.gateway.access.authenticate import Authenticator, missing_key
from batuta.gateway.access.caller import CallerRole, set_caller
from batuta.gateway.errors import APIError
from batuta.gateway.http.body import header_value
from batuta.gateway.http.middleware import log_exception

SESSION_COOKIE = "batuta_session"
"""The cookie that carries a web page's session."""
_API = "/v1"
_ADMIN = "/v1/admin"
_PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json"})
_BEARER = b"bearer "


@final
class AuthenticationMiddleware:
    """Writes down who asks; keeps nobody out of the API, and all but the admin out of its own.

    What is not the API - the web page - finds out who asks and decides for itself.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self.app = app
        self.authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve whoever may be served."""
        path: str = scope.get("path", "")
        if scope["type"] != "http" or path in _PUBLIC_PATHS:
            await self.app(scope, receive, send)
            return
        try:
            caller = await self.authenticator.authenticate(
                _read_credential(scope), _session_cookie(scope)
            )
        except StoreError as error:
            log_exception(error)
            message = "Keys cannot be checked now; try again."
            raise APIError(503, "overloaded", message, headers={"retry-after": "1"}) from None
        set_caller(scope, caller)
        if _is_under(path, _API) and caller.role is CallerRole.NOBODY:
            raise missing_key()
        if _is_under(path, _ADMIN) and caller.role is not CallerRole.ADMIN:
            raise APIError(403, "permission_denied", "This needs the admin's token.")
        await self.app(scope, receive, send)


def _is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _read_credential(scope: Scope) -> str | None:
    """The key that the headers show: as OpenAI's clients send it, or as Anthropic's do."""
    given = header_value(scope, b"authorization")
    if given is not None and given[: len(_BEARER)].lower() == _BEARER:
        return given[len(_BEARER) :].strip().decode("latin-1")
    given = header_value(scope, b"x-api-key")
    return None if given is None else given.strip().decode("latin-1")


def _session_cookie(scope: Scope) -> str | None:
    given = header_value(scope, b"cookie")
    if given is None:
        return None
    try:
        morsel = SimpleCookie(given.decode("latin-1")).get(SESSION_COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel else None
