"""The keys that somebody has made who signs in by an identity provider."""

from __future__ import annotations

from time import time
from typing import final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from batuta.gateway.access.caller import Authenticator
from batuta.gateway.errors import not_found, require_part
from batuta.gateway.ui.issued_keys import find_issued_key, forget_issued_key, redirect_with_key
from batuta.gateway.ui.rendering import PAGE_HEADERS, render_page
from batuta.gateway.ui.session import OWN_KEYS_SCREEN, WebSession, read_form
from batuta.store import Store
from batuta.store.keys import ApiKey, ApiKeyStore

MAX_OWN_KEYS = 20
"""Keys of one user that are active at the same time; they share the user's limits and budget."""
_SHOWN_KEYS = 100
"""Most keys that are shown: a person who revokes and makes them in turn has many more."""
_SEE_OTHER = 303


@final
class OwnKeyPages:
    """The screen; for somebody without an entry of their own there is none."""

    def __init__(self, store: Store | None, authenticator: Authenticator) -> None:
        self._kept = store
        self._authenticator = authenticator

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show the user's keys; one that was just made is shown with its text, once."""
        user, hasher = _user_of(session), self._authenticator.key_hasher
        issued = await find_issued_key(request, self._store, hasher)
        if issued is not None and issued[0].user != user:
            issued = None
        response = await self._render(request, session, issued=issued)
        return forget_issued_key(request, response, OWN_KEYS_SCREEN[0])

    async def create(self, request: Request, session: WebSession) -> Response:
        """Make a key; its text is shown on the next page and never again."""
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
        """The end of one of the user's keys."""
        user, keys = _user_of(session), self._keys
        await read_form(request, session)
        key = await keys.find(request.path_params["id"])
        if key is None or key.user != user:
            raise not_found("The key")
        await keys.revoke(key.id, by=session.caller.actor)
        self._authenticator.forget(key.id)
        return RedirectResponse(OWN_KEYS_SCREEN[0], _SEE_OTHER, PAGE_HEADERS)

    @property
    def _keys(self) -> ApiKeyStore:
        return self._store.keys

    @property
    def _store(self) -> Store:
        return require_part(self._kept, "This server keeps no keys.")

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
    """The id of the visitor's own entry.

    Raises:
        APIError: the visitor has none.
    """
    if session.caller.user is None:
        raise not_found(f"The screen {OWN_KEYS_SCREEN[0]}")
    return session.caller.user
