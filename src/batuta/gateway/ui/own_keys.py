"""The keys of a user who signs in by an identity provider, and the one-time display of a new key.

If a form were answered with a page, reloading the page would repeat the action. The answer is
therefore a redirect. The key's text travels in a signed cookie that scripts cannot read and that
the next page removes.
"""

from __future__ import annotations

import hmac
import re
from time import time
from typing import final

from starlette.requests import Request
from starlette.responses import Response

from batuta.gateway.access.caller import Authenticator
from batuta.gateway.errors import not_found, require_part
from batuta.gateway.http.body import cookie_value
from batuta.gateway.http.middleware import SESSION_COOKIE
from batuta.gateway.ui.rendering import redirect_to, render_page
from batuta.gateway.ui.session import OWN_KEYS_SCREEN, WebSession, came_by_https, read_form
from batuta.store import Store
from batuta.store.key_hasher import IssuedKey, KeyHasher, digests_equal, parse_key_id
from batuta.store.keys import ApiKey, ApiKeyStore

_COOKIE = "batuta_issued"
_PURPOSE = "issued key"
_SECONDS = 60
"""Seconds for which the cookie with a new key is accepted."""
_COOKIE_PATTERN = re.compile(r"([0-9]{1,12})\.([A-Za-z0-9_-]{1,200})\.([0-9a-f]{64})")


def redirect_with_key(
    request: Request, screen: str, issued: IssuedKey, hasher: KeyHasher
) -> Response:
    """Redirect to the screen, which shows the key's text once."""
    until = int(time()) + _SECONDS
    value = f"{until}.{issued.text}.{_sign_text(request, until, issued.text, hasher)}"
    response = redirect_to(screen)
    # Without a max-age it is a session cookie; a browser that restores its tabs may keep it longer,
    # so the signature holds for a minute only.
    response.set_cookie(
        _COOKIE,
        value,
        path=screen,
        secure=came_by_https(request),
        httponly=True,
        samesite="strict",
    )
    return response


async def find_issued_key(
    request: Request, store: Store, hasher: KeyHasher | None
) -> tuple[ApiKey, str] | None:
    """Return the key that this session has just created or rotated, with its text, else None."""
    match = _COOKIE_PATTERN.fullmatch(cookie_value(request.scope, _COOKIE) or "")
    if match is None or hasher is None or int(match[1]) < time():
        return None
    text, name = match[2], parse_key_id(match[2])
    genuine = hmac.compare_digest(match[3], _sign_text(request, int(match[1]), text, hasher))
    key = await store.keys.find(name) if genuine and name is not None else None
    return (key, text) if key and digests_equal(hasher.digest(text), key.digest) else None


def forget_issued_key(request: Request, response: Response, screen: str) -> Response:
    """Delete the cookie with the key's text in this response."""
    if cookie_value(request.scope, _COOKIE) is not None:
        response.delete_cookie(_COOKIE, path=screen, httponly=True, samesite="strict")
    return response


def _sign_text(request: Request, until: int, text: str, hasher: KeyHasher) -> str:
    """Return a signature of the expiry and the key's text, bound to the visitor's session."""
    session = cookie_value(request.scope, SESSION_COOKIE) or ""
    return hasher.sign(_PURPOSE, f"{session}.{until}.{text}")


MAX_OWN_KEYS = 20
"""Maximum number of active keys of a user; they share the user's limits and budget."""
_SHOWN_KEYS = 100
"""Maximum number of a user's keys that are shown, including revoked keys."""


@final
class OwnKeyPages:
    """Serves /ui/own-keys, which exists only for visitors with a user entry."""

    def __init__(self, store: Store | None, authenticator: Authenticator) -> None:
        self._optional_store = store
        self._authenticator = authenticator

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show the user's keys; a key that was just created is shown with its text, once.

        Raises:
            APIError: the visitor has no user entry, or the server has no store.
        """
        user, hasher = _user_of(session), self._authenticator.key_hasher
        issued = await find_issued_key(request, self._store, hasher)
        if issued is not None and issued[0].user != user:
            issued = None
        response = await self._render(request, session, issued=issued)
        return forget_issued_key(request, response, OWN_KEYS_SCREEN[0])

    async def create(self, request: Request, session: WebSession) -> Response:
        """Create a key, whose text is shown on the next page and never again.

        If the key cannot be created, the keys are shown with the reason.

        Raises:
            APIError: the visitor has no user entry, the form is not from one of our pages, or the
                server keeps or makes no keys.
        """
        user = _user_of(session)
        form = await read_form(request, session)
        hasher = require_part(self._authenticator.key_hasher, "This server makes no keys.")
        try:
            _, issued = await self._keys.create(
                hasher,
                session.caller.tenant,
                form.get("name", "").strip(),
                user=user,
                most_of_user=MAX_OWN_KEYS,
                by=session.caller.actor,
            )
        except ValueError as error:
            return await self._render(request, session, problem=str(error), status=400)
        return redirect_with_key(request, OWN_KEYS_SCREEN[0], issued, hasher)

    async def revoke(self, request: Request, session: WebSession) -> Response:
        """Revoke one of the user's keys.

        Raises:
            APIError: the visitor has no user entry or no such key, or the form is not from one of
                our pages.
        """
        user, keys = _user_of(session), self._keys
        await read_form(request, session)
        key = await keys.find(request.path_params["id"])
        if key is None or key.user != user:
            raise not_found("The key")
        await keys.revoke(key.id, by=session.caller.actor)
        self._authenticator.forget(key.id)
        return redirect_to(OWN_KEYS_SCREEN[0])

    @property
    def _keys(self) -> ApiKeyStore:
        return self._store.keys

    @property
    def _store(self) -> Store:
        return require_part(self._optional_store, "This server keeps no keys.")

    async def _render(
        self,
        request: Request,
        session: WebSession,
        *,
        issued: tuple[ApiKey, str] | None = None,
        problem: str = "",
        status: int = 200,
    ) -> Response:
        own = await self._keys.list_of_user(_user_of(session), _SHOWN_KEYS)
        now = time()
        return render_page(
            request,
            "own_keys.html.jinja",
            status=status,
            session=session,
            keys=[(key, key.state(now)) for key in own],
            issued=issued,
            problem=problem,
        )


def _user_of(session: WebSession) -> str:
    """Return the id of the visitor's user entry.

    Raises:
        APIError: the visitor has no user entry.
    """
    if session.caller.user is None:
        raise not_found(f"The screen {OWN_KEYS_SCREEN[0]}")
    return session.caller.user
