"""The visitor of a page, the visitor's screens, and the CSRF protection of forms."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import final
from urllib.parse import parse_qs, urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from batuta.errors import StoreError
from batuta.gateway.access.caller import Caller, CallerRole, caller_of, invalid_key
from batuta.gateway.errors import APIError, log_exception
from batuta.gateway.http.body import cookie_value
from batuta.gateway.http.middleware import SESSION_COOKIE
from batuta.gateway.ui.rendering import redirect_to, render_page
from batuta.store.key_hasher import KeyHasher

SCREENS = (
    ("/ui/", "Playground"),
    ("/ui/runs", "Runs"),
    ("/ui/usage", "Usage"),
    ("/ui/compare", "Compare"),
    ("/ui/pool", "Pool"),
    ("/ui/learning", "Learning"),
)
"""The screens in the navigation of every visitor who may use the page, as paths and names."""
KEYS_SCREEN = ("/ui/keys", "Keys")
AUDIT_SCREEN = ("/ui/audit", "Audit")
APPROVALS_SCREEN = ("/ui/approvals", "Approvals")
OWN_KEYS_SCREEN = ("/ui/own-keys", "Your keys")
SIGN_IN_PATH = "/ui/sign-in"
_MAX_FORM_BYTES = 256 * 1024
_MAX_FORM_FIELDS = 100
_TOKEN_PURPOSE = "form of the page"  # noqa: S105 - the purpose of the signature
TOKEN_FIELD = "token"  # noqa: S105 - a field's name
"""The form field with the page's token; scripts send the token in the header `x-token`."""


@dataclass(frozen=True, slots=True)
class WebSession:
    """The visitor of a page."""

    caller: Caller
    scope: Scope
    """The ASGI scope of the request, in which reads of stored data are counted."""
    token: str
    """The CSRF token in the forms of this visitor's pages; pages of other sites cannot know it.

    It is the visitor's proof, masked differently in each response: in a compressed page, a constant
    secret could be recovered from the page's length (BREACH).
    """

    @property
    def name(self) -> str:
        """`admin`, or the tenant of the visitor's key; empty for other visitors."""
        names = {CallerRole.ADMIN: "admin", CallerRole.KEY: self.caller.tenant}
        return names.get(self.caller.role, "")

    @property
    def is_admin(self) -> bool:
        """Return True if the visitor is the admin, who sees all keys and all tenants' runs."""
        return self.caller.role is CallerRole.ADMIN

    @property
    def is_operator(self) -> bool:
        """Return True for the admin, and for any visitor of a server without keys.

        A server without keys accepts connections from its own machine only.
        """
        return self.caller.role in {CallerRole.ADMIN, CallerRole.LOCAL}

    @property
    def tenant(self) -> str | None:
        """The tenant whose runs the visitor may see; None for all tenants."""
        return self.caller.visible_tenant

    @property
    def screens(self) -> tuple[tuple[str, str], ...]:
        """The screens in the visitor's navigation, as paths and names; empty before signing in."""
        if self.caller.role is CallerRole.NOBODY:
            return ()
        if self.is_admin:
            return (*SCREENS, KEYS_SCREEN, AUDIT_SCREEN, APPROVALS_SCREEN)
        return SCREENS if self.caller.user is None else (*SCREENS, OWN_KEYS_SCREEN)


Handler = Callable[[Request, WebSession], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


@final
class SessionManager:
    """Identifies visitors by their session cookies, and protects their forms by CSRF tokens."""

    def __init__(self, hasher: KeyHasher | None = None) -> None:
        """Sign tokens with the server's secret, so that every replica accepts them.

        Args:
            hasher: signs with the server's secret; None uses a random secret of this process.
        """
        self._hasher = hasher or KeyHasher(secrets.token_bytes(32))

    def identify(self, request: Request) -> WebSession:
        """Return the visitor of the request."""
        session = cookie_value(request.scope, SESSION_COOKIE) or ""
        proof = self._hasher.sign(_TOKEN_PURPOSE, session.encode("utf-8", "replace").decode())
        return WebSession(caller_of(request.scope), request.scope, _mask_proof(proof))

    def identify_signed_in(self, request: Request) -> WebSession:
        """Return the visitor of the request, who must have signed in if keys are required.

        Raises:
            APIError: the visitor has not signed in.
        """
        visitor = self.identify(request)
        if visitor.caller.role is CallerRole.NOBODY:
            raise invalid_key(
                "You are not signed in any more: copy what you wrote, then reload the page."
            )
        return visitor

    def page_endpoint(self, handler: Handler, *, open_to_all: bool = False) -> Endpoint:
        """Return the handler as an endpoint that reports errors as pages.

        Args:
            handler: answers a visitor.
            open_to_all: whether visitors who have not signed in are answered too.
        """

        async def endpoint(request: Request) -> Response:
            visitor = self.identify(request)
            try:
                if visitor.caller.role is CallerRole.NOBODY and not open_to_all:
                    return _to_sign_in(request)
                return await handler(request, visitor)
            except APIError as refusal:
                return error_page(request, refusal, visitor)
            except StoreError as error:
                log_exception(error)
                refusal = APIError(503, "overloaded", "The store is not available; try again.")
                return error_page(request, refusal, visitor)

        return endpoint


def _to_sign_in(request: Request) -> Response:
    """Redirect to the sign-in screen, which leads back here if the request was a GET."""
    address = request.url.path
    if request.url.query:
        address += f"?{request.url.query}"
    again = f"?{urlencode({'then': address})}" if request.method == "GET" else ""
    return redirect_to(f"{SIGN_IN_PATH}{again}")


def error_page(request: Request, error: APIError, session: WebSession) -> Response:
    """Return the page that shows the error."""
    status = error.status
    return render_page(request, "refused.html.jinja", status=status, refusal=error, session=session)


def _mask_proof(proof: str) -> str:
    """Return the hexadecimal proof as a token: random bytes, then the proof XORed with them."""
    plain = bytes.fromhex(proof)
    mask = secrets.token_bytes(len(plain))
    return (mask + _mix_bytes(mask, plain)).hex()


def _unmask_proof(token: str) -> bytes | None:
    """Return the proof in a token; None if the token is malformed."""
    try:
        both = bytes.fromhex(token)
    except ValueError:
        return None
    half = len(both) // 2
    return _mix_bytes(both[:half], both[half:]) if len(both) == 2 * half else None


def _mix_bytes(mask: bytes, text: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(mask, text, strict=True))


def check_form_token(session: WebSession, token: str | None) -> None:
    """Check that the token proves that the request comes from one of our pages.

    Raises:
        APIError: the token is missing or wrong, as after a change of the secret or session.
    """
    proof = None if token is None else _unmask_proof(token)
    own = _unmask_proof(session.token)
    if proof is None or own is None or not hmac.compare_digest(proof, own):
        message = "This page is out of date: reload it, then try again."
        raise APIError(403, "permission_denied", message)


async def read_form(request: Request, session: WebSession) -> dict[str, str]:
    """Return the fields of a posted form, each with its last value, after checking its token.

    Raises:
        APIError: the form is not from one of our pages, malformed or too large.
    """
    return {name: values[-1] for name, values in (await read_form_lists(request, session)).items()}


async def read_form_lists(request: Request, session: WebSession) -> dict[str, list[str]]:
    """Return the fields of a posted form, each with all its values, after checking its token.

    Raises:
        APIError: the form is not from one of our pages, malformed or too large.
    """
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > _MAX_FORM_BYTES:
                raise APIError(413, "request_too_large", "The form is too large.")
    except ClientDisconnect:
        raise APIError(400, "invalid_request", "The form was not received completely.") from None
    try:
        found = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FORM_FIELDS)
    except ValueError:
        raise APIError(400, "invalid_request", "The form cannot be read.") from None
    tokens = found.pop(TOKEN_FIELD, None)
    check_form_token(session, tokens[-1] if tokens else None)
    return found


def came_by_https(request: Request) -> bool:
    """Return True if the browser that posted a form uses HTTPS.

    Behind a proxy the server itself gets HTTP, so the browser's `origin` header counts as well.
    """
    return request.headers.get("origin", "").startswith("https://") or (
        request.url.scheme == "https"
    )
