"""The text of a new key, carried over a redirect to be shown once by whichever server answers.

A page that is the direct answer to a form repeats the action when it is reloaded. So the answer is
a redirect, and the text waits in the browser that asked for it, in a signed cookie that no script
can read and that the next page removes.
"""

from __future__ import annotations

import hmac
import re
from time import time

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from batuta.gateway.http.body import cookie_value
from batuta.gateway.http.middleware import SESSION_COOKIE
from batuta.gateway.ui.rendering import PAGE_HEADERS
from batuta.store import Store
from batuta.store.key_hasher import IssuedKey, KeyHasher, digests_equal, parse_key_id
from batuta.store.keys import ApiKey

_COOKIE = "batuta_issued"
_PURPOSE = "issued key"
_SECONDS = 60
_COOKIE_PATTERN = re.compile(r"([0-9]{1,12})\.([A-Za-z0-9_-]{1,200})\.([0-9a-f]{64})")
_SEE_OTHER = 303


def redirect_with_key(
    request: Request, screen: str, issued: IssuedKey, hasher: KeyHasher
) -> Response:
    """Leads to the screen, which shows the key's text once."""
    until = int(time()) + _SECONDS
    value = f"{until}.{issued.text}.{_sign_text(request, until, issued.text, hasher)}"
    response = RedirectResponse(screen, _SEE_OTHER, PAGE_HEADERS)
    secure = request.url.scheme == "https"
    # Without an age, browsers do not write the cookie to their disk.
    response.set_cookie(
        _COOKIE, value, path=screen, secure=secure, httponly=True, samesite="strict"
    )
    return response


async def find_issued_key(
    request: Request, store: Store, hasher: KeyHasher | None
) -> tuple[ApiKey, str] | None:
    """Return the key that this browser's session has just made, and its text."""
    match = _COOKIE_PATTERN.fullmatch(cookie_value(request.scope, _COOKIE) or "")
    if match is None or hasher is None or int(match[1]) < time():
        return None
    text, name = match[2], parse_key_id(match[2])
    genuine = hmac.compare_digest(match[3], _sign_text(request, int(match[1]), text, hasher))
    key = await store.keys.find(name) if genuine and name is not None else None
    return (key, text) if key and digests_equal(hasher.digest(text), key.digest) else None


def forget_issued_key(request: Request, response: Response, screen: str) -> Response:
    """Make the browser forget the key's text with this response."""
    if cookie_value(request.scope, _COOKIE) is not None:
        response.delete_cookie(_COOKIE, path=screen, httponly=True, samesite="strict")
    return response


def _sign_text(request: Request, until: int, text: str, hasher: KeyHasher) -> str:
    """Sign the text for the visitor's own session."""
    session = cookie_value(request.scope, SESSION_COOKIE) or ""
    return hasher.sign(_PURPOSE, f"{session}.{until}.{text}")
