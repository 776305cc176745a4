"""Sign-in with an identity provider: OpenID Connect, authorization code flow with PKCE.

authlib and joserfc implement the protocol and the signatures. This module chooses the parameters,
keeps the flow's state in one signed cookie, and maps claims to a user of this server.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from time import monotonic, time
from typing import Any, cast, final

import anyio
import orjson

from batuta.clients.http_target import NO_KEY, HttpTarget, Secret
from batuta.clients.transport import HttpTransport
from batuta.core.formatting import as_sentence
from batuta.distribution import install_hint
from batuta.errors import ClientError, ConfigError
from batuta.gateway.errors import APIError
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions

FLOW_SECONDS = 600
"""Seconds that a person may spend at the identity provider."""
_KNOWN_SECONDS = 3600.0
"""Seconds for which the provider's endpoints and keys are cached."""
_REFRESH_SECONDS = 60.0
"""Seconds after which the keys are read again for a token that cannot be verified."""
_PATIENCE_SECONDS = 10.0
"""Seconds within which the provider's endpoints and keys must be read (two requests), or a token
obtained. Other sign-ins wait while the endpoints and keys are read."""
_RETRY_SECONDS = 5.0
"""Seconds after a failure to read the provider within which no request tries again."""
_PURPOSE = "oidc"
_ISSUER = re.compile(r"https://|http://(127\.0\.0\.1|localhost|\[::1\])([:/]|$)")
_ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
"""Accepted signatures: public-key algorithms only, neither `none` nor shared secrets."""
_LEEWAY = 60
"""Tolerated clock difference to the provider, in seconds."""
_MAX_TOKEN = 16_384
"""Maximum number of characters of an ID token."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcOptions:
    """The identity provider, and the roles of its users on this server."""

    issuer: str
    client_id: str
    client_secret: Secret = NO_KEY
    """Empty for a public client, which only PKCE protects."""
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    label: str = "single sign-on"
    """The provider's name on the sign-in screen."""
    redirect_uri: str = ""
    """The callback URL, as registered with the provider."""
    role_claim: str = "groups"
    """The claim with a person's groups; their verified e-mail address also counts."""
    admins: frozenset[str] = frozenset()
    """Groups or verified e-mail addresses of administrators."""
    users: frozenset[str] = frozenset()
    """Groups or verified e-mail addresses that may sign in, besides `admins`; empty: all users of
    the provider."""
    tenant: str = "default"
    """The tenant of users."""
    limits: KeyPermissions = field(default_factory=KeyPermissions)
    """Permissions of a new user; the admin can change them later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcUser:
    """A person authenticated by the identity provider."""

    identity: str
    """A hash of issuer and subject, unique to this person at this provider."""
    name: str
    """The verified e-mail address, else the subject; at most 100 characters."""
    is_admin: bool


@dataclass(frozen=True, slots=True)
class SignInStart:
    """The provider's URL to redirect to, and the cookie with the flow's state."""

    url: str
    cookie: str


@dataclass(frozen=True, slots=True)
class _Provider:
    """The provider's discovery document and its signing keys, and when they were read."""

    document: Mapping[str, Any]
    keys: Any
    read_at: float


@final
class OidcClient:
    """The client of one identity provider."""

    def __init__(
        self,
        options: OidcOptions,
        http: HttpTransport,
        hasher: KeyHasher,
        clock: Callable[[], float] = monotonic,
        *,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        """Check the options; the provider is first read at a sign-in.

        Args:
            options: the settings.
            http: sends requests to the provider.
            hasher: signs the cookie.
            clock: measures the age of cached endpoints and keys.
            patience: see `_PATIENCE_SECONDS`.

        Raises:
            ConfigError: the extra is not installed, the issuer neither uses TLS nor is on this
                machine, or the redirect URI is not the callback of this server.
        """
        if not all(find_spec(name) for name in ("authlib", "joserfc")):
            hint = install_hint("oidc")
            raise ConfigError(f"sign-in with an identity provider needs an extra: {hint}")
        if not _ISSUER.match(options.issuer):
            raise ConfigError("oidc.issuer must begin with https://")
        if not options.redirect_uri.endswith("/ui/oidc/callback"):
            raise ConfigError("oidc.redirect_uri must end with /ui/oidc/callback")
        self.options = options
        self._http = http
        self._hasher = hasher
        self._clock = clock
        self._patience = patience
        self._provider: _Provider | None = None
        self._retry_at = clock()
        """The provider is not read before this time."""
        self._lock = anyio.Lock(fast_acquire=True)

    async def start_sign_in(self, then: str) -> SignInStart:
        """Start a sign-in with a new state, nonce and PKCE verifier, kept in the cookie.

        Args:
            then: the page to open after the sign-in.

        Raises:
            APIError: the provider cannot be reached, or its description is not valid.
        """
        security: Any = importlib.import_module("authlib.common.security")
        parameters: Any = importlib.import_module("authlib.oauth2.rfc6749.parameters")
        pkce: Any = importlib.import_module("authlib.oauth2.rfc7636")
        provider = await self._load_provider()
        flow: dict[str, str] = {
            name: security.generate_token(48) for name in ("state", "nonce", "verifier")
        }
        url: str = parameters.prepare_grant_uri(
            provider.document["authorization_endpoint"],
            self.options.client_id,
            "code",
            self.options.redirect_uri,
            list(self.options.scopes),
            flow["state"],
            nonce=flow["nonce"],
            code_challenge=pkce.create_s256_code_challenge(flow["verifier"]),
            code_challenge_method="S256",
        )
        return SignInStart(url, self._sign_flow({**flow, "then": then}))

    async def finish_sign_in(
        self, query: Mapping[str, str], cookie: str | None
    ) -> tuple[OidcUser, str]:
        """Return the authenticated person, and the page to open after the sign-in.

        Raises:
            APIError: the sign-in was started in another browser or has expired, the provider
                refused, cannot be reached or is another one, its token is not valid (the message
                does not quote it), or the person may not sign in here.
        """
        flow = self._read_flow(cookie or "")
        if not hmac.compare_digest(query.get("state", "").encode(), flow["state"].encode()):
            raise _sign_in_error("this sign-in was not started in this browser: start again")
        issuer = query.get("iss")
        if issuer is not None and issuer != self.options.issuer:
            raise _sign_in_error("the answer came from another provider")
        code = query.get("code")
        if query.get("error") or not code:
            raise _sign_in_error("the identity provider refused")
        claims = await self._fetch_claims(code, flow)
        return self._user_of(claims), flow["then"]

    async def _fetch_claims(self, code: str, flow: Mapping[str, str]) -> Mapping[str, Any]:
        """Exchange the code for an ID token and return the verified claims of the token."""
        provider, options = await self._load_provider(), self.options
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": options.redirect_uri,
            "client_id": options.client_id,
            "code_verifier": flow["verifier"],
        }
        if options.client_secret:
            fields["client_secret"] = options.client_secret.reveal()
        target = HttpTarget(url=provider.document["token_endpoint"], key=options.client_secret)
        try:
            with anyio.fail_after(self._patience):
                answer = await self._http.post_form(target, fields)
        except (ClientError, TimeoutError) as error:
            _LOG.warning("the identity provider gave no token: %s", error or "it took too long")
            raise _sign_in_error("the identity provider gave no token") from None
        token = cast("dict[str, Any]", answer).get("id_token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or len(token) > _MAX_TOKEN:
            raise _sign_in_error("the identity provider gave no token")
        return await self._check_token(token, flow["nonce"])

    async def _check_token(self, token: str, nonce: str) -> Mapping[str, Any]:
        core: Any = importlib.import_module("authlib.oidc.core")
        jwt: Any = importlib.import_module("joserfc.jwt")
        wrong: tuple[type[Exception], ...] = (
            importlib.import_module("joserfc.errors").JoseError,
            *(ValueError, KeyError, TypeError),
        )
        options, failure = self.options, "the token is not valid"
        for attempt in range(2):  # the second attempt uses keys that are at most a minute old
            provider = await self._load_provider(fresh=attempt > 0)
            try:
                find_key = _key_finder(provider.keys)
                read = jwt.decode(token, find_key, algorithms=list(_ALGORITHMS))
                required = {
                    "iss": {"essential": True, "value": options.issuer},
                    "aud": {"essential": True, "value": options.client_id},
                }
                params = {"nonce": nonce, "client_id": options.client_id}
                claims: Any = core.CodeIDToken(read.claims, read.header, required, params)
                claims.validate(now=int(time()), leeway=_LEEWAY)
            except wrong as error:
                failure = type(error).__name__
                continue
            return dict(read.claims)
        _LOG.warning("an ID token was refused: %s", failure)
        raise _sign_in_error("the identity provider's token is not valid")

    def _user_of(self, claims: Mapping[str, Any]) -> OidcUser:
        """Return the user of the claims.

        Raises:
            APIError: the claims name no user, or the user may not sign in here.
        """
        options, subject = self.options, claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise _sign_in_error("the identity provider's token names no user")
        email = _verified_email(claims)
        # At many providers people enter their own e-mail address, so only a verified one counts.
        given = email if options.role_claim == "email" else claims.get(options.role_claim)
        groups = cast("list[Any]", given) if isinstance(given, list) else [given]
        known = {name for name in (*groups, email) if isinstance(name, str) and name}
        is_admin = bool(known & options.admins)
        if options.users and not is_admin and not known & options.users:
            raise APIError(403, "permission_denied", "You may not sign in here.")
        identity = hashlib.sha256(f"{options.issuer}\0{subject}".encode()).hexdigest()
        return OidcUser(identity=identity, name=(email or subject)[:100], is_admin=is_admin)

    async def _load_provider(self, *, fresh: bool = False) -> _Provider:
        """Return the provider's endpoints and keys; read them again when they are old.

        Args:
            fresh: whether they count as old after a minute instead of an hour.

        Raises:
            APIError: the provider cannot be reached, its description is not valid, or the last
                attempt to read it failed less than `_RETRY_SECONDS` ago.
        """
        async with self._lock:
            known, now = self._provider, self._clock()
            most = _REFRESH_SECONDS if fresh else _KNOWN_SECONDS
            if known is not None and now - known.read_at < most:
                return known
            if now < self._retry_at:
                raise _provider_unavailable()
            try:
                with anyio.fail_after(self._patience):
                    self._provider = await self._read_provider(now)
            except (ClientError, ConfigError, ValueError, KeyError, TypeError, OSError) as error:
                _LOG.warning("the identity provider cannot be read: %s", type(error).__name__)
                self._retry_at = self._clock() + _RETRY_SECONDS
                raise _provider_unavailable() from None
            return self._provider

    async def _read_provider(self, now: float) -> _Provider:
        url = self.options.issuer.rstrip("/") + "/.well-known/openid-configuration"
        document = await self._http.get(HttpTarget(url=url))
        if document["issuer"] != self.options.issuer:
            raise ValueError("another issuer")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            self._check_endpoint(document[name])
        keys = _import_keys(await self._http.get(HttpTarget(url=document["jwks_uri"])))
        return _Provider(document, keys, now)

    def _check_endpoint(self, url: object) -> None:
        """Refuse an endpoint that is less safe than the issuer: one receives the client's secret.

        Raises:
            ConfigError: the endpoint is not a URL of a server.
            TypeError: the endpoint is not a string.
            ValueError: the endpoint does not use TLS although the issuer does.
        """
        if not isinstance(url, str):
            raise TypeError("an endpoint that is not a string")
        HttpTarget(url=url)
        if self.options.issuer.startswith("https:") and not url.startswith("https:"):
            raise ValueError("an endpoint without TLS")

    def _sign_flow(self, flow: dict[str, str]) -> str:
        text = orjson.dumps({**flow, "until": int(time()) + FLOW_SECONDS}).hex()
        return f"{text}.{self._hasher.sign(_PURPOSE, text)}"

    def _read_flow(self, cookie: str) -> dict[str, str]:
        """Return the flow's state from the cookie.

        Raises:
            APIError: the cookie is missing, expired or not signed by this server.
        """
        text, _, signature = cookie.partition(".")
        genuine = hmac.compare_digest(
            signature.encode(), self._hasher.sign(_PURPOSE, text).encode()
        )
        flow: dict[str, Any] = orjson.loads(bytes.fromhex(text)) if genuine else {}
        if not genuine or flow["until"] < time():
            raise _sign_in_error("this sign-in has expired, or was started elsewhere: start again")
        return flow


def _verified_email(claims: Mapping[str, Any]) -> str:
    """Return the verified e-mail address; empty if there is none."""
    email = claims.get("email")
    return email if isinstance(email, str) and claims.get("email_verified") is True else ""


def _import_keys(document: Any) -> Any:
    """Return the signing keys of the provider's document, without keys that cannot be used.

    Raises:
        KeyError: the document has no keys.
        TypeError: the document or its list of keys has another type.
        ValueError: no key can be used.
    """
    jwk: Any = importlib.import_module("joserfc.jwk")
    wrong: type[Exception] = importlib.import_module("joserfc.errors").JoseError
    keys: list[Any] = []
    for given in document["keys"]:
        try:
            if given["kty"] != "oct":  # no shared secrets
                keys.append(jwk.import_key(given))
        except (wrong, ValueError, KeyError, TypeError, AttributeError) as error:
            _LOG.info("a key of the identity provider is left out: %s", type(error).__name__)
    if not keys:
        raise ValueError("no keys")
    return jwk.KeySet(keys)


def _key_finder(keys: Any) -> Callable[[Any], Any]:
    """Return a function that finds the key of a token: by its `kid`, else the only fitting key.

    A provider with one key may omit `kid` (RFC 7515). The library decides which keys fit the
    token's algorithm; if several fit, the token is refused.
    """
    registry: Any = importlib.import_module("joserfc.jws").JWSRegistry

    def find(token: Any) -> Any:
        header = token.headers()
        if header.get("kid") is not None:
            return keys
        fitting = [key for key in keys if registry.filter_algorithms(key, [header["alg"]])]
        if len(fitting) != 1:
            raise ValueError(f"a token without `kid`, and {len(fitting)} fitting keys")
        return fitting[0]

    return find


def _provider_unavailable() -> APIError:
    return APIError(503, "overloaded", "The identity provider cannot be reached or read now.")


def _sign_in_error(reason: str) -> APIError:
    return APIError(401, "invalid_api_key", as_sentence(reason))
