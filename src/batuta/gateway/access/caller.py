"""Who asks: found from a key, a token or a session; and what such a caller may do."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from time import monotonic, time
from typing import final

import anyio
from starlette.types import Scope

from batuta.errors import ConfigError
from batuta.gateway.errors import APIError
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher, digests_equal, parse_key_id
from batuta.store.key_permissions import KeyPermissions
from batuta.store.keys import ApiKey

_SCOPE_KEY = "batuta.caller"
_NO_LIMITS = KeyPermissions()


class CallerRole(StrEnum):
    """What somebody is to the server."""

    LOCAL = "local"
    """Anybody, where there are no keys: such a server serves the loopback only."""
    KEY = "key"
    """The holder of a key."""
    ADMIN = "admin"
    """The holder of the admin's token: makes keys and reads all runs, and starts none."""
    NOBODY = "nobody"
    """No key was sent where one is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The tenant that a request is counted to, and whose runs and responses it may see."""

    tenant: str = "local"
    role: CallerRole = CallerRole.LOCAL
    key: str | None = None
    """The id of the key, or of the user who has made it."""
    user: str | None = None
    """The id of the user's own entry, of somebody who signs in by an identity provider."""
    permissions: KeyPermissions = _NO_LIMITS
    """The key's limits."""
    per_day: Decimal | None = None
    """Dollars a day of the tenant."""
    per_month: Decimal | None = None

    @property
    def visible_tenant(self) -> str | None:
        """The tenant whose runs and responses may be read; None: everybody's."""
        return None if self.role is CallerRole.ADMIN else self.tenant


LOCAL = Caller()
NOBODY = Caller(tenant="", role=CallerRole.NOBODY)
ADMIN = Caller(tenant="", role=CallerRole.ADMIN)


def caller_of(scope: Scope) -> Caller:
    """Who asks; the middleware that checks keys has written it down."""
    found = scope.get(_SCOPE_KEY)
    return found if isinstance(found, Caller) else LOCAL


def set_caller(scope: Scope, caller: Caller) -> None:
    """Writes down who asks, for `caller_of`."""
    scope[_SCOPE_KEY] = caller


CACHE_SECONDS = 10.0
"""Seconds for which a key that was looked up is believed without another look."""
SESSION_SECONDS = 12 * 3600.0
"""Seconds that a web page's session lasts."""
_MAX_CACHED_KEYS = 10_000
_MIN_TOKEN_LENGTH = 16
_SESSION_PURPOSE = "session"
_UNTIL = re.compile(r"[0-9]{1,12}")
"""Seconds since the epoch, as sessions are signed with them."""


@dataclass(frozen=True, slots=True)
class _CachedKey:
    """What was found for a key, and until when it is believed."""

    key: ApiKey | None
    until: float


@final
class Authenticator:
    """Tells who asks. Without a store it lets everybody in as the local tenant.

    Once there ever was a key, or if there is an admin's token, everybody needs one.
    """

    def __init__(
        self,
        store: Store | None = None,
        key_hasher: KeyHasher | None = None,
        admin: str = "",
        *,
        cache_seconds: float = CACHE_SECONDS,
        has_sign_in: bool = False,
    ) -> None:
        """Asks nothing yet.

        Args:
            store: where keys are kept; it belongs to whoever gives it.
            key_hasher: hashes keys.
            admin: the admin's token; empty: there is no admin.
            cache_seconds: seconds for which what was looked up is believed.
            has_sign_in: whether people sign in by an identity provider: then a key is needed.

        Raises:
            ConfigError: the admin's token can be guessed.
        """
        if admin and len(admin) < _MIN_TOKEN_LENGTH:
            raise ConfigError(f"the admin's token needs at least {_MIN_TOKEN_LENGTH} characters")
        self._store = store
        self._key_hasher = key_hasher
        self._admin = hashlib.sha256(admin.encode()).digest() if admin else None
        self._cache_seconds = cache_seconds
        self._needs_key = bool(admin) or has_sign_in
        self._checked_at = float("-inf")
        self._cache: OrderedDict[bytes, _CachedKey] = OrderedDict()
        self._wrong: OrderedDict[bytes, _CachedKey] = OrderedDict()
        """Apart, so that guesses do not push out keys that are good."""
        self._lock = anyio.Lock(fast_acquire=True)

    @property
    def key_hasher(self) -> KeyHasher | None:
        """What makes keys here."""
        return self._key_hasher

    async def needs_key(self) -> bool:
        """Whether a key is needed.

        Raises:
            StoreError: the database fails.
        """
        if self._needs_key or self._store is None or self._key_hasher is None:
            return self._needs_key
        if self._checked_at + self._cache_seconds < monotonic():
            async with self._lock:  # of a hundred requests one looks
                if self._checked_at + self._cache_seconds < monotonic():
                    self._needs_key = await self._store.keys.has_keys()
                    self._checked_at = monotonic()
        return self._needs_key

    @property
    def is_known_to_need_key(self) -> bool:
        """What `keyed` found when it was last asked."""
        return self._needs_key

    async def authenticate(self, credential: str | None, session: str | None = None) -> Caller:
        """Who asks; `NOBODY` if a key is needed and nothing was shown.

        Args:
            credential: a key or the admin's token.
            session: a session that `open_session` gave; it counts if nothing was shown.

        Raises:
            APIError: what was shown is not valid here.
            StoreError: the database fails, and the key is not remembered.
        """
        if not await self.needs_key():
            return LOCAL
        if credential is None:
            return NOBODY if session is None else await self._caller_of_session(session)
        if self._is_admin(credential):
            return ADMIN
        return self._caller_of_key(await self._find_key(credential))

    async def restore_caller(self, tenant: str, key: str | None) -> Caller:
        """Who asked for what is run later: the caller of that key as it is now.

        Raises:
            APIError: the key is not valid any more.
            StoreError: the database fails.
        """
        if key is None or self._store is None:
            return Caller(tenant=tenant)
        return self._caller_of_key(await self._store.keys.find(key))

    async def open_session(self, credential: str) -> str:
        """What a browser may show in place of a key or of the admin's token.

        Raises:
            APIError: it is not valid.
            StoreError: the database fails.
        """
        until = int(time() + SESSION_SECONDS)
        if self._is_admin(credential):
            return self._sign_session("admin", until, self._admin or b"")
        key = await self._find_key(credential)
        self._caller_of_key(key)
        assert key is not None  # noqa: S101 - it has a caller
        return self._sign_session(key.id, until, key.digest)

    def open_user_session(self, user: ApiKey) -> str:
        """The session of somebody whom an identity provider has named.

        Raises:
            APIError: their entry was revoked.
        """
        self._caller_of_key(user)
        return self._sign_session(user.id, int(time() + SESSION_SECONDS), user.digest)

    def forget(self, key: str | None = None) -> None:
        """Looks that key up again when it is next shown; None: every key."""
        gone = [d for d, known in self._cache.items() if key is None or _is_key(known, key)]
        for digest in gone:
            del self._cache[digest]
        self._wrong.clear()
        self._checked_at = float("-inf")

    def _is_admin(self, credential: str) -> bool:
        if self._admin is None:
            return False
        given = hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()
        return hmac.compare_digest(given, self._admin)

    async def _find_key(self, credential: str) -> ApiKey | None:
        """The key of that text, remembered by its whole hash."""
        name = parse_key_id(credential)
        if name is None or self._key_hasher is None or self._store is None:
            return None
        digest = self._key_hasher.digest(credential)
        known = self._cache.get(digest) or self._wrong.get(digest)
        if known is not None and known.until > monotonic():
            return known.key if known.key and _matches_digest(known.key, digest) else None
        async with self._lock:  # of a hundred requests one looks it up
            known = self._cache.get(digest) or self._wrong.get(digest)
            if known is None or known.until <= monotonic():
                key = await self._store.keys.find(name)
                valid = key is not None and _matches_digest(key, digest)
                known = _CachedKey(key if valid else None, monotonic() + self._cache_seconds)
                self._remember(digest, known)
        return known.key

    def _remember(self, digest: bytes, known: _CachedKey) -> None:
        kept, other = self._cache, self._wrong
        if known.key is None:
            kept, other = other, kept
        other.pop(digest, None)
        kept[digest] = known
        while len(kept) > _MAX_CACHED_KEYS:
            kept.popitem(last=False)

    def _caller_of_key(self, key: ApiKey | None) -> Caller:
        """Whose key it is.

        Raises:
            APIError: there is none, or it is not valid any more.
        """
        state = "wrong" if key is None else key.state(time())
        if key is None or state != "active":
            raise invalid_key(
                "The API key is not valid here."
                if key is None
                else f"The API key has {'been revoked' if state == 'revoked' else state}."
            )
        tenant, owner = key.tenant, key.owner or key
        return Caller(
            tenant=tenant.name,
            role=CallerRole.KEY,
            key=owner.id,
            permissions=owner.policy,
            user=owner.id if owner.identity is not None else None,
            per_day=tenant.per_day,
            per_month=tenant.per_month,
        )

    async def _caller_of_session(self, text: str) -> Caller:
        """Whose session it is; nobody's if it is over, or its key was revoked or rotated."""
        name, _, rest = text.partition(".")
        until = rest.partition(".")[0]
        if not _UNTIL.fullmatch(until) or int(until) < time():
            return NOBODY
        if name == "admin":
            genuine = self._admin is not None and self._is_signed_by(text, name, until, self._admin)
            return ADMIN if genuine else NOBODY
        key = await self._store.keys.find(name) if self._store is not None else None
        if key is None or not self._is_signed_by(text, name, until, key.digest):
            return NOBODY
        if key.state(time()) != "active":
            return NOBODY
        return ADMIN if key.role == "admin" else self._caller_of_key(key)

    def _is_signed_by(self, text: str, name: str, until: str, proof: bytes) -> bool:
        return hmac.compare_digest(
            text.encode(), self._sign_session(name, int(until), proof).encode()
        )

    def _sign_session(self, name: str, until: int, proof: bytes) -> str:
        """`proof` changes with the key, so a session ends with the key's text."""
        if self._key_hasher is None:
            raise APIError(403, "permission_denied", "This server has no sessions.")
        signature = self._key_hasher.sign(_SESSION_PURPOSE, f"{name}.{until}.{proof.hex()}")
        return f"{name}.{until}.{signature}"


def invalid_key(message: str) -> APIError:
    """Nobody we know."""
    return APIError(401, "invalid_api_key", message, headers={"www-authenticate": "Bearer"})


def missing_key() -> APIError:
    """Nothing was shown."""
    return invalid_key("An API key is needed: send 'Authorization: Bearer <key>'.")


def _matches_digest(key: ApiKey, digest: bytes) -> bool:
    """Whether that is the hash of the key's text, or of the one before while it is taken."""
    old = key.old_until is not None and key.old_until > time()
    return digests_equal(digest, key.digest) or (old and digests_equal(digest, key.old_digest))


def _is_key(known: _CachedKey, key: str) -> bool:
    return known.key is not None and key in {known.key.id, known.key.user}
