"""Signing in with a key or the admin's token, and out."""

from __future__ import annotations

from typing import final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from batuta.gateway.access.authenticate import SESSION_SECONDS, Authenticator
from batuta.gateway.access.caller import CallerRole
from batuta.gateway.errors import APIError
from batuta.gateway.http.authentication import SESSION_COOKIE
from batuta.gateway.ui.rendering import PAGE_HEADERS, render_page
from batuta.gateway.ui.session import SIGN_IN_PATH, WebSession, read_form

_SEE_OTHER = 303
_ROOT = "/ui/"
_MAX_TARGET = 512


@final
class SignInPages:
    """The screens."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def page(self, request: Request, session: WebSession) -> Response:
        """Asks for a key; whoever needs none, or has shown one, goes on."""
        then = _safe_target(request.query_params.get("then"))
        if session.caller.role is not CallerRole.NOBODY:
            return RedirectResponse(then, _SEE_OTHER, PAGE_HEADERS)
        return render_page(request, "sign_in.html.jinja", session=session, then=then, problem="")

    async def sign_in(self, request: Request, web_session: WebSession) -> Response:
        """Opens a session, or says that what was shown is not valid."""
        form = await read_form(request, web_session)
        then = _safe_target(form.get("then"))
        try:
            session = await self._authenticator.open_session(
                form.get("key", "").strip()[:_MAX_TARGET]
            )
        except APIError as refusal:
            values = {"session": web_session, "then": then, "problem": refusal.message}
            return render_page(request, "sign_in.html.jinja", status=refusal.status, **values)
        response = RedirectResponse(then, _SEE_OTHER, PAGE_HEADERS)
        response.set_cookie(
            SESSION_COOKIE,
            session,
            max_age=int(SESSION_SECONDS),
            path="/ui",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    async def sign_out(self, request: Request, session: WebSession) -> Response:
        """Forgets the session in this browser."""
        await read_form(request, session)
        response = RedirectResponse(SIGN_IN_PATH, _SEE_OTHER, PAGE_HEADERS)
        response.delete_cookie(SESSION_COOKIE, path="/ui", httponly=True, samesite="strict")
        return response


def _safe_target(given: str | None) -> str:
    """Where to go on: a screen of ours, and nowhere else."""
    inside = given is not None and given.startswith(_ROOT) and "\\" not in given
    return given if given is not None and inside and given.isprintable() else _ROOT
