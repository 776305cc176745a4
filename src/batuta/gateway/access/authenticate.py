"""The gate: from what a request shows - a key, the admin's token, a session - to who asks."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic, time
from typing import final

import anyio

from batuta.errors import ConfigError
from batuta.gateway.access.caller import ADMIN, LOCAL, NOBODY, Caller, CallerRole
from batuta.gateway.errors import APIError
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher, digests_equal, parse_key_id
from batuta.store.keys import ApiKey

CACHE_SECONDS = 10.0
"""Seconds for which a key that was looked up is believed without another look."""
SESSION_SECONDS = 12 * 3600.0
"""Seconds that a web page's session lasts."""
_MAX_CACHED_KEYS = 10_000
_MIN_TOKEN_LENGTH = 16
_SESSION_PURPOSE = "session"


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
    ) -> None:
        """Asks nothing yet.

        Args:
            store: where keys are kept; it belongs to whoever gives it.
            key_hasher: hashes keys.
            admin: the admin's token; empty: there is no admin.
            cache_seconds: seconds for which what was looked up is believed.

        Raises:
            ConfigError: the admin's token can be guessed.
        """
        if admin and len(admin) < _MIN_TOKEN_LENGTH:
            raise ConfigError(f"the admin's token needs at least {_MIN_TOKEN_LENGTH} characters")
        self._store = store
        self._key_hasher = key_hasher
        self._admin = hashlib.sha256(admin.encode()).digest() if admin else None
        self._cache_seconds = cache_seconds
        self._needs_key = bool(admin)
        self._checked_at = float("-inf")
        self._cache: OrderedDict[bytes, _CachedKey] = OrderedDict()
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
        """Who asked for what is played later: the caller of that key as it is now.

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

    def forget(self, key: str | None = None) -> None:
        """Looks that key up again when it is next shown; None: every key."""
        gone = [d for d, known in self._cache.items() if key is None or _is_key(known, key)]
        for digest in gone:
            del self._cache[digest]
        self._checked_at = float("-inf")

    def _is_admin(self, credential: str) -> bool:
        given = hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()
        return self._admin is not None and hmac.compare_digest(given, self._admin)

    async def _find_key(self, credential: str) -> ApiKey | None:
        """The key of that text, remembered by its whole hash."""
        name = parse_key_id(credential)
        if name is None or self._key_hasher is None or self._store is None:
            return None
        digest = self._key_hasher.digest(credential)
        known = self._cache.get(digest)
        if known is not None and known.until > monotonic():
            return known.key if known.key and _matches_digest(known.key, digest) else None
        async with self._lock:  # of a hundred requests one looks it up
            known = self._cache.get(digest)
            if known is None or known.until <= monotonic():
                key = await self._store.keys.find(name)
                valid = key is not None and _matches_digest(key, digest)
                known = _CachedKey(key if valid else None, monotonic() + self._cache_seconds)
                self._remember(digest, known)
        return known.key

    def _remember(self, digest: bytes, known: _CachedKey) -> None:
        self._cache[digest] = known
        while len(self._cache) > _MAX_CACHED_KEYS:
            self._cache.popitem(last=False)

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
        tenant = key.tenant
        return Caller(
            tenant=tenant.name,
            role=CallerRole.KEY,
            key=key.id,
            permissions=key.policy,
            per_day=tenant.per_day,
            per_month=tenant.per_month,
        )

    async def _caller_of_session(self, text: str) -> Caller:
        """Whose session it is; nobody's if it is over, or its key was revoked or rotated."""
        name, _, rest = text.partition(".")
        until = rest.partition(".")[0]
        if not until.isascii() or not until.isdigit() or int(until[:12]) < time():
            return NOBODY
        if name == "admin":
            genuine = self._admin is not None and self._is_signed_by(text, name, until, self._admin)
            return ADMIN if genuine else NOBODY
        key = await self._store.keys.find(name) if self._store is not None else None
        if key is None or not self._is_signed_by(text, name, until, key.digest):
            return NOBODY
        return self._caller_of_key(key) if key.state(time()) == "active" else NOBODY

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
    return known.key is not None and known.key.id == key
