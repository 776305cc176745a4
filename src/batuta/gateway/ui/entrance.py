"""Signing in with a key or the admin's token, and out."""

from __future__ import annotations

from typing import final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from batuta.gateway.auth import COOKIE
from batuta.gateway.caller import Role
from batuta.gateway.gate import SESSION
from batuta.gateway.models import Orchestra
from batuta.gateway.refusal import Refusal
from batuta.gateway.ui.screens import HEADERS, screen
from batuta.gateway.ui.visitor import SIGN_IN, Visitor, read_form

_SEE_OTHER = 303
_ROOT = "/ui/"
_LONGEST = 512


@final
class Entrance:
    """The screens."""

    def __init__(self, orchestra: Orchestra) -> None:
        self._gate = orchestra.gate

    async def page(self, request: Request, visitor: Visitor) -> Response:
        """Asks for a key; whoever needs none, or has shown one, goes on."""
        then = _then(request.query_params.get("then"))
        if visitor.caller.role is not Role.NOBODY:
            return RedirectResponse(then, _SEE_OTHER, HEADERS)
        return screen(request, "sign_in.html.jinja", visitor=visitor, then=then, problem="")

    async def sign_in(self, request: Request, visitor: Visitor) -> Response:
        """Opens a session, or says that what was shown is not valid."""
        form = await read_form(request, visitor)
        then = _then(form.get("then"))
        try:
            session = await self._gate.open_session(form.get("key", "").strip()[:_LONGEST])
        except Refusal as refusal:
            values = {"visitor": visitor, "then": then, "problem": refusal.message}
            return screen(request, "sign_in.html.jinja", status=refusal.status, **values)
        response = RedirectResponse(then, _SEE_OTHER, HEADERS)
        response.set_cookie(
            COOKIE,
            session,
            max_age=int(SESSION),
            path="/ui",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    async def sign_out(self, request: Request, visitor: Visitor) -> Response:
        """Forgets the session in this browser."""
        await read_form(request, visitor)
        response = RedirectResponse(SIGN_IN, _SEE_OTHER, HEADERS)
        response.delete_cookie(COOKIE, path="/ui", httponly=True, samesite="strict")
        return response


def _then(given: str | None) -> str:
    """Where to go on: a screen of ours, and nowhere else."""
    inside = given is not None and given.startswith(_ROOT) and "\\" not in given
    return given if given is not None and inside and given.isprintable() else _ROOT
