"""Who asks, found before anything is routed. Pure ASGI, on the path and the headers alone."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import final

from starlette.types import ASGIApp, Receive, Scope, Send

from batuta.errors import StoreError
from batuta.gateway.caller import Role, name_caller
from batuta.gateway.gate import Gate, need_key
from batuta.gateway.middleware import log_fault
from batuta.gateway.refusal import Refusal
from batuta.gateway.reply import header

COOKIE = "batuta_session"
"""The cookie that carries a web page's session."""
_API = "/v1"
_ADMIN = "/v1/admin"
_OPEN = frozenset({"/healthz", "/readyz"})
_BEARER = b"bearer "


@final
class Auth:
    """Writes down who asks; keeps nobody out of the API, and all but the admin out of its own.

    What is not the API - the web page - finds out who asks and decides for itself.
    """

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve whoever may be served."""
        path: str = scope.get("path", "")
        if scope["type"] != "http" or path in _OPEN:
            await self.app(scope, receive, send)
            return
        try:
            caller = await self.gate.admit(_shown(scope), _session(scope))
        except StoreError as error:
            log_fault(error)
            message = "Keys cannot be checked now; try again."
            raise Refusal(503, "overloaded", message, headers={"retry-after": "1"}) from None
        name_caller(scope, caller)
        if _is_under(path, _API) and caller.role is Role.NOBODY:
            raise need_key()
        if _is_under(path, _ADMIN) and caller.role is not Role.ADMIN:
            raise Refusal(403, "permission_denied", "This needs the admin's token.")
        await self.app(scope, receive, send)


def _is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _shown(scope: Scope) -> str | None:
    """The key that the headers show: as OpenAI's clients send it, or as Anthropic's do."""
    given = header(scope, b"authorization")
    if given is not None and given[: len(_BEARER)].lower() == _BEARER:
        return given[len(_BEARER) :].strip().decode("latin-1")
    given = header(scope, b"x-api-key")
    return None if given is None else given.strip().decode("latin-1")


def _session(scope: Scope) -> str | None:
    given = header(scope, b"cookie")
    if given is None:
        return None
    try:
        morsel = SimpleCookie(given.decode("latin-1")).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel else None
