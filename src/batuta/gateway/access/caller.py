"""Finds the caller of a request, and the caller's permissions, from a key, a token or a session.

A user of an identity provider has an entry among the keys. This module also records in the audit
trail when an administrator reads a run, or anybody exports one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from time import monotonic, time
from typing import final

import anyio
from starlette.requests import Request
from starlette.types import Scope

from batuta.errors import ConfigError
from batuta.gateway.access.failed_sign_ins import FailedSignIns
from batuta.gateway.access.key_watch import KeyWatch, check_key, invalid_key
from batuta.gateway.errors import APIError
from batuta.store import Store
from batuta.store.audit import AuditEntry
from batuta.store.deleted import forgotten_among, remember_deleted
from batuta.store.key_hasher import KeyHasher, digests_equal, parse_key_id
from batuta.store.key_permissions import KeyPermissions
from batuta.store.keys import ApiKey

_SCOPE_KEY = "batuta.caller"
_NO_LIMITS = KeyPermissions()


class CallerRole(StrEnum):
    """The role of a caller on this server."""

    LOCAL = "local"
    """Any caller of a server without keys, which serves only the loopback."""
    KEY = "key"
    """The holder of a key, or a user who has signed in."""
    ADMIN = "admin"
    """The holder of the admin token, or an administrator who has signed in: creates keys and reads
    all runs, but starts none."""
    NOBODY = "nobody"
    """A caller without a key or a valid session on a server that needs one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request: its tenant, its key and its permissions."""

    tenant: str = "local"
    """The tenant that is charged, and whose runs and responses the caller may read; empty for the
    roles `ADMIN` and `NOBODY`."""
    role: CallerRole = CallerRole.LOCAL
    key: str | None = None
    """The id of the key; if a user created the key, the id of that user's entry. None: no key."""
    shown_key: str | None = None
    """The id of the key, or of the user's entry, by which the caller was identified, if any."""
    user: str | None = None
    """The id of the user's entry, if the user signs in with an identity provider."""
    permissions: KeyPermissions = _NO_LIMITS
    """The key's limits."""
    per_day: Decimal | None = None
    """The tenant's budget in dollars per day; None: no limit."""
    per_month: Decimal | None = None
    administrator: str | None = None
    """The id of the entry of an administrator who signed in with an identity provider."""

    @property
    def actor(self) -> str:
        """The caller's name in the audit trail."""
        if self.administrator is not None or self.user is not None:
            return f"user:{self.administrator or self.user}"
        return self.role.value if self.key is None else f"key:{self.key}"

    @property
    def watched_key(self) -> str | None:
        """The id of the key or user entry that must stay valid while a stream is shown, if any."""
        return self.shown_key or self.administrator

    @property
    def visible_tenant(self) -> str | None:
        """The tenant whose runs and responses may be read; None: all tenants."""
        return None if self.role is CallerRole.ADMIN else self.tenant


LOCAL = Caller()
NOBODY = Caller(tenant="", role=CallerRole.NOBODY)
ADMIN = Caller(tenant="", role=CallerRole.ADMIN)


def caller_of(scope: Scope) -> Caller:
    """Return the caller that the middleware found for this request; `LOCAL` if it found none."""
    found = scope.get(_SCOPE_KEY)
    return found if isinstance(found, Caller) else LOCAL


def actor_of(request: Request) -> str:
    """Return the name of the request's caller in the audit trail."""
    return caller_of(request.scope).actor


def set_caller(scope: Scope, caller: Caller) -> None:
    """Set the caller that `caller_of` returns for this request."""
    scope[_SCOPE_KEY] = caller


CACHE_SECONDS = 10.0
"""Seconds for which a looked-up key is cached."""
SESSION_SECONDS = 12 * 3600.0
"""Seconds for which a web page's session lasts."""
_MAX_CACHED_KEYS = 10_000
_MIN_TOKEN_LENGTH = 16
_SESSION_PURPOSE = "session"
ADMIN_SIGNER = "admin"
"""The signer id in sessions opened with the admin token."""
_SIGNATURE_LENGTH = 64
_UNTIL = re.compile(r"[0-9]{1,12}")
"""A session's expiry in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class _CachedKey:
    """The result of a key lookup (None: invalid), and when it expires from the cache."""

    key: ApiKey | None
    until: float


@final
class Authenticator:
    """Identifies callers. As long as no key is needed, every caller is the local tenant.

    A key is needed if the store has any key (even a revoked one), or if there is an admin token or
    single sign-on. Once a key is needed, this stays so until the process ends.
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
        """Connect the store of keys.

        Args:
            store: stores the keys; the caller closes it.
            key_hasher: hashes keys and signs sessions; None: this server has no keys.
            admin: the admin token; empty: there is no admin token.
            cache_seconds: seconds for which lookups are cached.
            has_sign_in: whether people sign in with an identity provider; then a key is needed.

        Raises:
            ConfigError: the admin token is too short.
        """
        if admin and len(admin) < _MIN_TOKEN_LENGTH:
            raise ConfigError(f"the admin token needs at least {_MIN_TOKEN_LENGTH} characters")
        self._store = store
        self.key_hasher = key_hasher
        """Hashes keys and signs sessions; None if this server has no keys."""
        self._admin = hashlib.sha256(admin.encode()).digest() if admin else None
        self._cache_seconds = cache_seconds
        self._needs_key = bool(admin) or has_sign_in
        self._checked_at = float("-inf")
        self._cache: OrderedDict[bytes, _CachedKey] = OrderedDict()
        self._invalid: OrderedDict[bytes, _CachedKey] = OrderedDict()
        """The cache of invalid keys, separate so that guesses do not evict valid keys."""
        self._invalidations = 0
        """Number of calls of `forget`; a lookup during which it is called is not cached."""
        self._lock = anyio.Lock(fast_acquire=True)
        self.failed_sign_ins = FailedSignIns(store)
        """Records failed sign-ins; very many failures make few records."""
        self.key_watch = KeyWatch(store, self.forget)
        """Cancels the work of keys that are no longer valid."""

    async def needs_key(self) -> bool:
        """Return True if a key is needed.

        Raises:
            StoreError: the database fails.
        """
        if self._needs_key or self._store is None or self.key_hasher is None:
            return self._needs_key
        if self._checked_at + self._cache_seconds < monotonic():
            async with self._lock:  # concurrent requests share one lookup
                if self._checked_at + self._cache_seconds < monotonic():
                    self._needs_key = await self._store.keys.has_keys()
                    self._checked_at = monotonic()
        return self._needs_key

    @property
    def is_known_to_need_key(self) -> bool:
        """The latest result of `needs_key`; at first, whether the settings alone require a key."""
        return self._needs_key

    async def authenticate(self, credential: str | None, session: str | None = None) -> Caller:
        """Return the caller.

        The caller is `NOBODY` if a key is needed and neither a credential nor a valid session was
        sent.

        Args:
            credential: a key or the admin token; None: none was sent.
            session: a session from `open_session`; used only without a credential.

        Raises:
            APIError: the credential is not valid, or a session was sent to a server without a
                `key_hasher`.
            StoreError: the database is needed and fails; a cached key does not need it.
        """
        if not await self.needs_key():
            return LOCAL
        if credential is None:
            return NOBODY if session is None else await self._caller_of_session(session)
        if self._is_admin(credential):
            return ADMIN
        return self._caller_of_key(await self._find_key(credential))

    async def restore_caller(self, tenant: str, key: str | None) -> Caller:
        """Return the caller of a stored request, with the key's current permissions.

        Without a key or a store the caller has no limits.

        Raises:
            APIError: the key is no longer valid.
            StoreError: the database fails.
        """
        if key is None or self._store is None:
            return Caller(tenant=tenant)
        return self._caller_of_key(await self._store.keys.find(key))

    async def open_session(self, credential: str) -> str:
        """Open a session, which a browser sends instead of a key or the admin token.

        Raises:
            APIError: the credential is not valid, or this server has no keys.
            StoreError: the database fails, and the key is not cached.
        """
        if self._is_admin(credential):
            return self._new_session(ADMIN_SIGNER, self._admin or b"")
        key = await self._find_key(credential)
        self._caller_of_key(key)
        assert key is not None  # noqa: S101 - `_caller_of_key` has checked it
        return self._new_session(key.id, key.digest)

    def open_user_session(self, user: ApiKey) -> str:
        """Open a session for a user who signed in with an identity provider.

        Raises:
            APIError: the user's entry is no longer valid, or this server has no keys.
        """
        self._caller_of_key(user)
        return self._new_session(user.id, user.digest)

    @staticmethod
    def signer_id(session: str) -> str:
        """Return the session's owner: `ADMIN_SIGNER`, or the id of a key or user entry."""
        return session.partition(".")[0]

    async def close_session(self, text: str) -> None:
        """End the session early, on every server that uses the database.

        Do nothing without a store, or if the session is not valid.

        Raises:
            APIError: this server has no keys.
            StoreError: the database fails.
        """
        if self._store is not None and await self._caller_of_session(text) is not NOBODY:
            name = _session_name(text)
            await self._store.database.run_write(lambda conn: remember_deleted(conn, [name]))

    async def _is_closed(self, text: str) -> bool:
        if self._store is None:
            return False
        name = _session_name(text)
        return bool(
            await self._store.database.run_read(lambda conn: forgotten_among(conn, [name], ()))
        )

    def forget(self, key: str | None = None) -> None:
        """Drop the key from the cache, so that it is looked up again; None: drop every key.

        All keys that were found to be invalid are dropped too, and the keys of running work are
        checked now.
        """
        stale = [d for d, known in self._cache.items() if key is None or _depends_on(known, key)]
        for digest in stale:
            del self._cache[digest]
        self._invalid.clear()
        self._invalidations += 1
        self._checked_at = float("-inf")
        self.key_watch.look_again()

    def _is_admin(self, credential: str) -> bool:
        if self._admin is None:
            return False
        given = hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()
        return hmac.compare_digest(given, self._admin)

    async def _find_key(self, credential: str) -> ApiKey | None:
        """Return the key with this secret, cached by its hash; None if there is none.

        The key may be expired or revoked; see `check_key`.
        """
        name = parse_key_id(credential)
        if name is None or self.key_hasher is None or self._store is None:
            return None
        digest = self.key_hasher.digest(credential)
        known = self._cache.get(digest) or self._invalid.get(digest)
        if known is not None and known.until > monotonic():
            return known.key if known.key and _matches_digest(known.key, digest) else None
        async with self._lock:  # concurrent requests share one lookup
            known = self._cache.get(digest) or self._invalid.get(digest)
            if known is None or known.until <= monotonic():
                invalidations, until = self._invalidations, monotonic() + self._cache_seconds
                key = await self._store.keys.find(name)
                valid = key is not None and _matches_digest(key, digest)
                known = _CachedKey(key if valid else None, until)
                if invalidations == self._invalidations:  # else the result may be out of date
                    self._remember(digest, known)
        return known.key

    def _remember(self, digest: bytes, known: _CachedKey) -> None:
        kept, other = self._cache, self._invalid
        if known.key is None:
            kept, other = other, kept
        other.pop(digest, None)
        kept[digest] = known
        while len(kept) > _MAX_CACHED_KEYS:
            kept.popitem(last=False)

    def _caller_of_key(self, key: ApiKey | None) -> Caller:
        """Return the caller with this key.

        Raises:
            APIError: the key does not exist or is no longer valid.
        """
        key = check_key(key)
        tenant, owner = key.tenant, key.owner or key
        return Caller(
            tenant=tenant.name,
            role=CallerRole.KEY,
            key=owner.id,
            shown_key=key.id,
            permissions=owner.permissions,
            user=owner.id if owner.identity is not None else None,
            per_day=tenant.per_day,
            per_month=tenant.per_month,
        )

    async def _caller_of_session(self, text: str) -> Caller:
        """Return the caller of a session; `NOBODY` if it is forged or over, or its key changed."""
        found = await self._signer_of_session(text)
        return NOBODY if found is NOBODY or await self._is_closed(text) else found

    async def _signer_of_session(self, text: str) -> Caller:
        """Return the owner of a genuine session, or `NOBODY`; a sign-out is not checked here."""
        name, _, rest = text.partition(".")
        until = rest.partition(".")[0]
        if not _UNTIL.fullmatch(until) or int(until) < time():
            return NOBODY
        if name == ADMIN_SIGNER:
            genuine = self._admin is not None and self._is_signed_by(text, self._admin)
            return ADMIN if genuine else NOBODY
        key = await self._store.keys.find(name) if self._store is not None else None
        if key is None or not self._is_signed_by(text, key.digest):
            return NOBODY
        if key.state(time()) != "active":
            return NOBODY
        if key.role == "admin":
            return replace(ADMIN, administrator=key.id)
        return self._caller_of_key(key)

    def _is_signed_by(self, text: str, proof: bytes) -> bool:
        unsigned = text[:-_SIGNATURE_LENGTH]
        return hmac.compare_digest(text.encode(), self._sign_session(unsigned, proof).encode())

    def _new_session(self, name: str, proof: bytes) -> str:
        """Return a new signed session; each sign-in has its own, which ends separately."""
        until = int(time() + SESSION_SECONDS)
        return self._sign_session(f"{name}.{until}.{secrets.token_hex(8)}", proof)

    def _sign_session(self, unsigned: str, proof: bytes) -> str:
        """Return the session with its signature.

        The signature depends on `proof`, the digest of the key or admin token, so that changing
        the key or token ends the session.

        Raises:
            APIError: this server has no keys.
        """
        if self.key_hasher is None:
            raise APIError(403, "permission_denied", "This server has no sessions.")
        signature = self.key_hasher.sign(_SESSION_PURPOSE, f"{unsigned}.{proof.hex()}")
        return unsigned + signature


def _session_name(text: str) -> str:
    """Return the name under which an ended session is stored, which does not reveal the session."""
    return "session:" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def missing_key() -> APIError:
    """Return the error for a request without a key."""
    return invalid_key("An API key is needed: send 'Authorization: Bearer <key>'.")


def _matches_digest(key: ApiKey, digest: bytes) -> bool:
    """Return True if the digest is that of the key's secret or of its still valid old secret."""
    old = key.old_until is not None and key.old_until > time()
    return digests_equal(digest, key.digest) or (old and digests_equal(digest, key.old_digest))


def _depends_on(known: _CachedKey, key: str) -> bool:
    """Return True if the cached key has this id, or was created by the user of this entry."""
    return known.key is not None and key in {known.key.id, known.key.user}


async def record_reading(store: Store, caller: Caller, run_id: str, tenant: str) -> None:
    """Record an administrator's reading of a run in the audit trail, before the run is shown.

    Readings by other callers are not recorded.

    Raises:
        StoreError: the entry cannot be written; then the run must not be shown.
    """
    if caller.role is CallerRole.ADMIN:
        await store.audit.append(_entry_of_run("run.read", caller, run_id, tenant))


async def record_export(store: Store, caller: Caller, run_id: str, tenant: str) -> None:
    """Record the export of a run by any caller in the audit trail, before the run is sent.

    Raises:
        StoreError: the entry cannot be written; then the run must not be sent.
    """
    await store.audit.append(_entry_of_run("run.exported", caller, run_id, tenant))


def _entry_of_run(action: str, caller: Caller, run_id: str, tenant: str) -> AuditEntry:
    return AuditEntry(actor=caller.actor, action=action, subject=run_id, tenant=tenant)
