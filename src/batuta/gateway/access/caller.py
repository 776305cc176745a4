"""Finds the caller of a request from a key, a token or a session, with its permissions.

That an administrator reads what others asked is told to the audit trail.
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
    shown_key: str | None = None
    """The id of the key itself, also where a user has made it."""
    user: str | None = None
    """The id of the user's own entry, of somebody who signs in by an identity provider."""
    permissions: KeyPermissions = _NO_LIMITS
    """The key's limits."""
    per_day: Decimal | None = None
    """Dollars a day of the tenant."""
    per_month: Decimal | None = None
    administrator: str | None = None
    """The id of the entry of an administrator who signed in by an identity provider."""

    @property
    def actor(self) -> str:
        """Return the name of the caller in the audit trail."""
        if self.administrator is not None or self.user is not None:
            return f"user:{self.administrator or self.user}"
        return self.role.value if self.key is None else f"key:{self.key}"

    @property
    def watched_key(self) -> str | None:
        """The id of the entry that must be valid while something is shown to the caller."""
        return self.shown_key or self.administrator

    @property
    def visible_tenant(self) -> str | None:
        """The tenant whose runs and responses may be read; None: everybody's."""
        return None if self.role is CallerRole.ADMIN else self.tenant


LOCAL = Caller()
NOBODY = Caller(tenant="", role=CallerRole.NOBODY)
ADMIN = Caller(tenant="", role=CallerRole.ADMIN)


def caller_of(scope: Scope) -> Caller:
    """Return the caller that the middleware found for this request."""
    found = scope.get(_SCOPE_KEY)
    return found if isinstance(found, Caller) else LOCAL


def actor_of(request: Request) -> str:
    """Return who makes the request, as the audit trail calls them."""
    return caller_of(request.scope).actor


def set_caller(scope: Scope, caller: Caller) -> None:
    """Write down who asks, for `caller_of`."""
    scope[_SCOPE_KEY] = caller


CACHE_SECONDS = 10.0
"""Seconds for which a key that was looked up is believed without another look."""
SESSION_SECONDS = 12 * 3600.0
"""Seconds that a web page's session lasts."""
_MAX_CACHED_KEYS = 10_000
_MIN_TOKEN_LENGTH = 16
_SESSION_PURPOSE = "session"
ADMIN_SIGNER = "admin"
"""A session that the admin's token opened bears this name."""
_SIGNATURE_LENGTH = 64
_UNTIL = re.compile(r"[0-9]{1,12}")
"""Seconds since the epoch, as sessions are signed with them."""


@dataclass(frozen=True, slots=True)
class _CachedKey:
    """The result of looking up a key, and until when it is believed."""

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
        """Take what tells who calls.

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
        self._forgotten = 0
        """Times that keys were forgotten; a key that is being read then is not remembered."""
        self._lock = anyio.Lock(fast_acquire=True)
        self.failed_sign_ins = FailedSignIns(store)
        """Records them, so that a flood makes few records."""
        self.key_watch = KeyWatch(store, self.forget)
        """Ends what runs for keys that have ended."""

    @property
    def key_hasher(self) -> KeyHasher | None:
        """The maker of keys here."""
        return self._key_hasher

    async def needs_key(self) -> bool:
        """Return True if a key is needed."""
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
        """The latest result of `needs_key`."""
        return self._needs_key

    async def authenticate(self, credential: str | None, session: str | None = None) -> Caller:
        """Return the caller; `NOBODY` if a key is needed and none was shown.

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
        """Return the caller of a request that is run later, with the key's permissions of now.

        Raises:
            APIError: the key is not valid any more.
        """
        if key is None or self._store is None:
            return Caller(tenant=tenant)
        return self._caller_of_key(await self._store.keys.find(key))

    async def open_session(self, credential: str) -> str:
        """Open a session, which a browser shows in place of a key or of the admin's token.

        Raises:
            APIError: it is not valid.
        """
        if self._is_admin(credential):
            return self._new_session(ADMIN_SIGNER, self._admin or b"")
        key = await self._find_key(credential)
        self._caller_of_key(key)
        assert key is not None  # noqa: S101 - it has a caller
        return self._new_session(key.id, key.digest)

    def open_user_session(self, user: ApiKey) -> str:
        """Return the session of somebody whom an identity provider has named.

        Raises:
            APIError: their entry was revoked.
        """
        self._caller_of_key(user)
        return self._new_session(user.id, user.digest)

    @staticmethod
    def signer_id(session: str) -> str:
        """Return whose session it is: `ADMIN_SIGNER`, or the id of a key or of a user's entry."""
        return session.partition(".")[0]

    async def close_session(self, text: str) -> None:
        """End the session before its time, on every server of the database."""
        if self._store is not None and await self._caller_of_session(text) is not NOBODY:
            name = _session_name(text)
            await self._store.database.run_write(lambda one: remember_deleted(one, [name]))

    async def _is_closed(self, text: str) -> bool:
        """Tell whether somebody has signed out of the session."""
        if self._store is None:
            return False
        name = _session_name(text)
        return bool(
            await self._store.database.run_read(lambda one: forgotten_among(one, [name], ()))
        )

    def forget(self, key: str | None = None) -> None:
        """Look that key up again when it is next shown; None: every key."""
        gone = [d for d, known in self._cache.items() if key is None or _is_key(known, key)]
        for digest in gone:
            del self._cache[digest]
        self._wrong.clear()
        self._forgotten += 1
        self._checked_at = float("-inf")
        self.key_watch.look_again()

    def _is_admin(self, credential: str) -> bool:
        if self._admin is None:
            return False
        given = hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()
        return hmac.compare_digest(given, self._admin)

    async def _find_key(self, credential: str) -> ApiKey | None:
        """Return the key of that text, remembered by its whole hash."""
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
                forgotten, until = self._forgotten, monotonic() + self._cache_seconds
                key = await self._store.keys.find(name)
                valid = key is not None and _matches_digest(key, digest)
                known = _CachedKey(key if valid else None, until)
                if forgotten == self._forgotten:  # else what was read may be out of date
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
        """Return the caller to whom the key belongs.

        Raises:
            APIError: there is none, or it is not valid any more.
        """
        key = check_key(key)
        tenant, owner = key.tenant, key.owner or key
        return Caller(
            tenant=tenant.name,
            role=CallerRole.KEY,
            key=owner.id,
            shown_key=key.id,
            permissions=owner.policy,
            user=owner.id if owner.identity is not None else None,
            per_day=tenant.per_day,
            per_month=tenant.per_month,
        )

    async def _caller_of_session(self, text: str) -> Caller:
        """Return the caller of a session.

        Nobody if it is over, or its key was revoked or rotated.
        """
        found = await self._signer_of_session(text)
        return NOBODY if found is NOBODY or await self._is_closed(text) else found

    async def _signer_of_session(self, text: str) -> Caller:
        """Return whose session it was made as, or NOBODY if that one may have none now."""
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
        """Make a session; whoever signs in twice at once gets two, and each is ended by itself."""
        until = int(time() + SESSION_SECONDS)
        return self._sign_session(f"{name}.{until}.{secrets.token_hex(8)}", proof)

    def _sign_session(self, unsigned: str, proof: bytes) -> str:
        """Sign a session; `proof` changes with the key, so a session ends with the key's text."""
        if self._key_hasher is None:
            raise APIError(403, "permission_denied", "This server has no sessions.")
        signature = self._key_hasher.sign(_SESSION_PURPOSE, f"{unsigned}.{proof.hex()}")
        return unsigned + signature


def _session_name(text: str) -> str:
    """Return the name under which an ended session is remembered; it does not tell the session."""
    return "session:" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def missing_key() -> APIError:
    """Return the error of a request without a key."""
    return invalid_key("An API key is needed: send 'Authorization: Bearer <key>'.")


def _matches_digest(key: ApiKey, digest: bytes) -> bool:
    """Return True if that is the hash of the key's text, or of the earlier one while it lasts."""
    old = key.old_until is not None and key.old_until > time()
    return digests_equal(digest, key.digest) or (old and digests_equal(digest, key.old_digest))


def _is_key(known: _CachedKey, key: str) -> bool:
    return known.key is not None and key in {known.key.id, known.key.user}


async def record_reading(store: Store, caller: Caller, run_id: str, tenant: str) -> None:
    """Record it if the caller is an administrator, before the run is shown.

    Raises:
        StoreError: it cannot be recorded; then the run must not be shown.
    """
    if caller.role is CallerRole.ADMIN:
        await store.audit.append(_entry_of_run("run.read", caller, run_id, tenant))


async def record_export(store: Store, caller: Caller, run_id: str, tenant: str) -> None:
    """Record that a run is exported, whoever does it, before it is handed out.

    Raises:
        StoreError: it cannot be recorded; then the run must not be handed out.
    """
    await store.audit.append(_entry_of_run("run.exported", caller, run_id, tenant))


def _entry_of_run(action: str, caller: Caller, run_id: str, tenant: str) -> AuditEntry:
    return AuditEntry(actor=caller.actor, action=action, subject=run_id, tenant=tenant)
