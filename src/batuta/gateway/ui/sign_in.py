"""Signing in with a key, the admin token or an identity provider, and signing out."""

from __future__ import annotations

from typing import final

from starlette.requests import Request
from starlette.responses import Response

from batuta.gateway.access.caller import ADMIN_SIGNER, SESSION_SECONDS, Authenticator, CallerRole
from batuta.gateway.access.oidc import FLOW_SECONDS, OidcClient
from batuta.gateway.errors import APIError, not_found, require_part
from batuta.gateway.http.body import cookie_value
from batuta.gateway.http.middleware import SESSION_COOKIE
from batuta.gateway.ui.rendering import redirect_to, render_page
from batuta.gateway.ui.session import SIGN_IN_PATH, WebSession, came_by_https, read_form
from batuta.store import Store
from batuta.store.audit import AuditEntry

_ROOT = "/ui/"
_MAX_KEY = 512
"""Maximum number of a key's characters that are read."""
_OIDC_PATH = "/ui/oidc"
_FLOW_COOKIE = "batuta_oidc"


@final
class SignInPages:
    """Serves the sign-in screen and the OpenID Connect flow."""

    def __init__(
        self, authenticator: Authenticator, store: Store | None, oidc: OidcClient | None
    ) -> None:
        self._authenticator = authenticator
        self._store = store
        self._identity_provider = oidc

    async def page(self, request: Request, session: WebSession) -> Response:
        """Ask for a key; redirect visitors who have signed in or need no key."""
        then = _safe_target(request.query_params.get("then"))
        if session.caller.role is not CallerRole.NOBODY:
            return redirect_to(then)
        return self._render(request, session, then)

    def _render(
        self,
        request: Request,
        session: WebSession,
        then: str,
        *,
        problem: str = "",
        status: int = 200,
    ) -> Response:
        values = {"session": session, "then": then, "problem": problem}
        oidc = self._identity_provider
        label = oidc.options.label if oidc else ""
        return render_page(request, "sign_in.html.jinja", status=status, label=label, **values)

    async def sign_in(self, request: Request, web_session: WebSession) -> Response:
        """Open a session and redirect to a screen, or show the form again with the error.

        Raises:
            APIError: the form is not from one of our pages.
            StoreError: the sign-in cannot be checked or recorded.
        """
        form = await read_form(request, web_session)
        then = _safe_target(form.get("then"))
        try:
            session = await self._authenticator.open_session(form.get("key", "").strip()[:_MAX_KEY])
        except APIError as refusal:
            await self._authenticator.failed_sign_ins.note(_address_of(request))
            return self._render(
                request, web_session, then, problem=refusal.message, status=refusal.status
            )
        await self._record(request, session)
        response = redirect_to(then)
        _set_session(request, response, session)
        return response

    async def start_oidc(self, request: Request, _: WebSession) -> Response:
        """Redirect the browser to the identity provider.

        Raises:
            APIError: the server has no identity provider, or the provider cannot be reached.
        """
        then = _safe_target(request.query_params.get("then"))
        start = await self._oidc.start_sign_in(then)
        response = redirect_to(start.url)
        # A strict cookie would not be sent when the provider redirects back here.
        response.set_cookie(
            _FLOW_COOKIE,
            start.cookie,
            FLOW_SECONDS,
            path=_OIDC_PATH,
            secure=self._oidc.options.redirect_uri.startswith("https:"),
            httponly=True,
            samesite="lax",
        )
        return response

    async def finish_oidc(self, request: Request, web_session: WebSession) -> Response:
        """Open a session for a visitor who returns from the identity provider.

        If the visitor is refused, the form is shown with the error.

        Raises:
            APIError: the server has no identity provider or keeps no keys.
            StoreError: the sign-in cannot be recorded.
        """
        store = require_part(self._store, "This server keeps no keys.")
        hasher = require_part(self._authenticator.key_hasher, "This server makes no keys.")
        oidc, kept = self._oidc, cookie_value(request.scope, _FLOW_COOKIE)
        try:
            user, then = await oidc.finish_sign_in(request.query_params, kept)
            entry = await store.keys.enter_user(
                hasher,
                user.identity,
                user.name,
                tenant=oidc.options.tenant,
                is_admin=user.is_admin,
                permissions=oidc.options.limits,
            )
            self._authenticator.forget(entry.id)
            session = self._authenticator.open_user_session(entry)
            await self._record(request, session)
        except APIError as refusal:
            await self._authenticator.failed_sign_ins.note(_address_of(request))
            response = self._render(
                request, web_session, _ROOT, problem=refusal.message, status=refusal.status
            )
        else:
            # After a redirect from another site, the browser would not send the strict cookie.
            response = render_page(
                request, "signed_in.html.jinja", session=web_session, then=_safe_target(then)
            )
            secure = oidc.options.redirect_uri.startswith("https:")
            _set_session(request, response, session, secure=secure)
        response.delete_cookie(_FLOW_COOKIE, path=_OIDC_PATH, httponly=True, samesite="lax")
        return response

    async def _record(self, request: Request, session: str) -> None:
        """Record the sign-in before the session is handed out."""
        if self._store is None:
            return
        signer = Authenticator.signer_id(session)
        key = None if signer == ADMIN_SIGNER else await self._store.keys.find(signer)
        person = key is not None and key.identity is not None
        actor = signer if key is None else f"{'user' if person else 'key'}:{signer}"
        tenant, address = "" if key is None else key.tenant.name, _address_of(request)
        entry = AuditEntry(
            actor=actor,
            action="sign_in",
            subject=signer,
            tenant=tenant,
            details={"address": address},
        )
        await self._store.audit.append(entry)

    @property
    def _oidc(self) -> OidcClient:
        if self._identity_provider is None:
            raise not_found("The screen")
        return self._identity_provider

    async def sign_out(self, request: Request, session: WebSession) -> Response:
        """End the session, which also invalidates copies of its cookie.

        Raises:
            APIError: the form is not from one of our pages.
        """
        await read_form(request, session)
        await self._authenticator.close_session(cookie_value(request.scope, SESSION_COOKIE) or "")
        response = redirect_to(SIGN_IN_PATH)
        response.delete_cookie(SESSION_COOKIE, path="/ui", httponly=True, samesite="strict")
        return response


def _address_of(request: Request) -> str:
    """Return the address of the connected client; behind a proxy, that of the proxy."""
    return request.client.host if request.client else "unknown"


def _set_session(
    request: Request, response: Response, session: str, *, secure: bool = False
) -> None:
    response.set_cookie(
        SESSION_COOKIE,
        session,
        int(SESSION_SECONDS),
        path="/ui",
        secure=secure or came_by_https(request),
        httponly=True,
        samesite="strict",
    )


def _safe_target(given: str | None) -> str:
    """Return the given target if it is one of our screens, else the start screen."""
    inside = given is not None and given.startswith(_ROOT) and "\\" not in given
    return given if given is not None and inside and given.isprintable() else _ROOT
