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
from batuta.gateway.caller import ADMIN, LOCAL, NOBODY, Caller, Role
from batuta.gateway.refusal import Refusal
from batuta.store import Store
from batuta.store.keys import Key
from batuta.store.mint import Mint, key_id, same

FRESH = 10.0
"""Seconds for which a key that was looked up is believed without another look."""
SESSION = 12 * 3600.0
"""Seconds that a web page's session lasts."""
_REMEMBERED = 10_000
_LEAST = 16
_SESSION = "session"


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found for a key, and until when it is believed."""

    key: Key | None
    until: float


@final
class Gate:
    """Tells who asks. Without a store it lets everybody in as the local tenant.

    Once there ever was a key, or if there is an admin's token, everybody needs one.
    """

    def __init__(
        self,
        store: Store | None = None,
        mint: Mint | None = None,
        admin: str = "",
        *,
        fresh: float = FRESH,
    ) -> None:
        """Asks nothing yet.

        Args:
            store: where keys are kept; it belongs to whoever gives it.
            mint: hashes keys.
            admin: the admin's token; empty: there is no admin.
            fresh: seconds for which what was looked up is believed.

        Raises:
            ConfigError: the admin's token can be guessed.
        """
        if admin and len(admin) < _LEAST:
            raise ConfigError(f"the admin's token needs at least {_LEAST} characters")
        self._store = store
        self._mint = mint
        self._admin = hashlib.sha256(admin.encode()).digest() if admin else None
        self._fresh = fresh
        self._keyed = bool(admin)
        self._asked = float("-inf")
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._turn = anyio.Lock(fast_acquire=True)

    @property
    def mint(self) -> Mint | None:
        """What makes keys here."""
        return self._mint

    async def keyed(self) -> bool:
        """Whether a key is needed.

        Raises:
            StoreError: the database fails.
        """
        if self._keyed or self._store is None or self._mint is None:
            return self._keyed
        if self._asked + self._fresh < monotonic():
            async with self._turn:  # of a hundred requests one looks
                if self._asked + self._fresh < monotonic():
                    self._keyed = await self._store.keys.any()
                    self._asked = monotonic()
        return self._keyed

    @property
    def known_to_be_keyed(self) -> bool:
        """What `keyed` found when it was last asked."""
        return self._keyed

    async def admit(self, shown: str | None, session: str | None = None) -> Caller:
        """Who asks; `NOBODY` if a key is needed and nothing was shown.

        Args:
            shown: a key or the admin's token.
            session: a session that `open_session` gave; it counts if nothing was shown.

        Raises:
            Refusal: what was shown is not valid here.
            StoreError: the database fails, and the key is not remembered.
        """
        if not await self.keyed():
            return LOCAL
        if shown is None:
            return NOBODY if session is None else await self._of_session(session)
        if self._is_admin(shown):
            return ADMIN
        return self._caller(await self._find(shown))

    async def restore(self, tenant: str, key: str | None) -> Caller:
        """Who asked for what is played later: the caller of that key as it is now.

        Raises:
            Refusal: the key is not valid any more.
            StoreError: the database fails.
        """
        if key is None or self._store is None:
            return Caller(tenant)
        return self._caller(await self._store.keys.find(key))

    async def open_session(self, shown: str) -> str:
        """What a browser may show in place of a key or of the admin's token.

        Raises:
            Refusal: it is not valid.
            StoreError: the database fails.
        """
        until = int(time() + SESSION)
        if self._is_admin(shown):
            return self._session("admin", until, self._admin or b"")
        key = await self._find(shown)
        self._caller(key)
        assert key is not None  # noqa: S101 - it has a caller
        return self._session(key.id, until, key.digest)

    def forget(self, key: str | None = None) -> None:
        """Looks that key up again when it is next shown; None: every key."""
        gone = [d for d, known in self._known.items() if key is None or _is(known, key)]
        for digest in gone:
            del self._known[digest]
        self._asked = float("-inf")

    def _is_admin(self, shown: str) -> bool:
        given = hashlib.sha256(shown.encode("utf-8", "surrogatepass")).digest()
        return self._admin is not None and hmac.compare_digest(given, self._admin)

    async def _find(self, shown: str) -> Key | None:
        """The key of that text, remembered by its whole hash."""
        name = key_id(shown)
        if name is None or self._mint is None or self._store is None:
            return None
        digest = self._mint.digest(shown)
        known = self._known.get(digest)
        if known is not None and known.until > monotonic():
            return known.key if known.key and _fits(known.key, digest) else None
        async with self._turn:  # of a hundred requests one looks it up
            known = self._known.get(digest)
            if known is None or known.until <= monotonic():
                key = await self._store.keys.find(name)
                valid = key is not None and _fits(key, digest)
                known = _Known(key if valid else None, monotonic() + self._fresh)
                self._remember(digest, known)
        return known.key

    def _remember(self, digest: bytes, known: _Known) -> None:
        self._known[digest] = known
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def _caller(self, key: Key | None) -> Caller:
        """Whose key it is.

        Raises:
            Refusal: there is none, or it is not valid any more.
        """
        state = "wrong" if key is None else key.state(time())
        if key is None or state != "active":
            raise invalid_key(
                "The API key is not valid here."
                if key is None
                else f"The API key has {'been revoked' if state == 'revoked' else state}."
            )
        tenant = key.tenant
        return Caller(tenant.name, Role.KEY, key.id, key.policy, tenant.per_day, tenant.per_month)

    async def _of_session(self, text: str) -> Caller:
        """Whose session it is; nobody's if it is over, or its key was revoked or rotated."""
        name, _, rest = text.partition(".")
        until = rest.partition(".")[0]
        if not until.isascii() or not until.isdigit() or int(until[:12]) < time():
            return NOBODY
        if name == "admin":
            genuine = self._admin is not None and self._agrees(text, name, until, self._admin)
            return ADMIN if genuine else NOBODY
        key = await self._store.keys.find(name) if self._store is not None else None
        if key is None or not self._agrees(text, name, until, key.digest):
            return NOBODY
        return self._caller(key) if key.state(time()) == "active" else NOBODY

    def _agrees(self, text: str, name: str, until: str, proof: bytes) -> bool:
        return hmac.compare_digest(text.encode(), self._session(name, int(until), proof).encode())

    def _session(self, name: str, until: int, proof: bytes) -> str:
        """`proof` changes with the key, so a session ends with the key's text."""
        if self._mint is None:
            raise Refusal(403, "permission_denied", "This server has no sessions.")
        signature = self._mint.sign(_SESSION, f"{name}.{until}.{proof.hex()}")
        return f"{name}.{until}.{signature}"


def invalid_key(message: str) -> Refusal:
    """Nobody we know."""
    return Refusal(401, "invalid_api_key", message, headers={"www-authenticate": "Bearer"})


def need_key() -> Refusal:
    """Nothing was shown."""
    return invalid_key("An API key is needed: send 'Authorization: Bearer <key>'.")


def _fits(key: Key, digest: bytes) -> bool:
    """Whether that is the hash of the key's text, or of the one before while it is taken."""
    old = key.old_until is not None and key.old_until > time()
    return same(digest, key.digest) or (old and same(digest, key.old_digest))


def _is(known: _Known, key: str) -> bool:
    return known.key is not None and known.key.id == key
