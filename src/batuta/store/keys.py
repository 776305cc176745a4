"""Tenants, which own keys, runs and budgets, and their API keys, in the database."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from time import time
from typing import Any, final

import orjson
from sqlalchemy import Connection, func, insert, select, tuple_, update

from batuta.errors import StoreError
from batuta.store.audit import AuditEntry, append_entry
from batuta.store.codec import format_cursor, parse_cursor, sql_text
from batuta.store.database import Database, insert_statement
from batuta.store.deleted import in_pages
from batuta.store.key_hasher import IssuedKey, KeyHasher
from batuta.store.key_permissions import KeyPermissions, permissions_json, read_permissions
from batuta.store.models import KEYS, TENANTS

_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """The owner of runs, responses and money."""

    name: str
    created: float
    """Seconds since the epoch."""
    per_day: Decimal | None = None
    """Maximum dollars per day (UTC) of all keys of the tenant together; None: no limit."""
    per_month: Decimal | None = None
    """Maximum dollars per month (UTC) of all keys of the tenant together; None: no limit."""


def check_tenant_name(tenant: str) -> None:
    """Check that a tenant may have the name.

    Raises:
        ValueError: it may not; the message has the rule.
    """
    if not _NAME_PATTERN.fullmatch(tenant):
        raise ValueError(
            f"{tenant!r} cannot name a tenant: use 1 to 64 of A-Z a-z 0-9 . _ @ -, and begin with "
            "a letter or digit"
        )


def ensure_tenant(connection: Connection, tenant: str, now: float) -> None:
    """Create the tenant if it does not exist."""
    new = insert_statement(connection.dialect.name, TENANTS).values(name=tenant, created=now)
    connection.execute(new.on_conflict_do_nothing())


def tenant_json(tenant: Tenant) -> dict[str, Any]:
    """Return the tenant's name and budget as JSON values, with dollars as strings."""
    day, month = tenant.per_day, tenant.per_month
    return {
        "name": tenant.name,
        "per_day": None if day is None else f"{day:f}",
        "per_month": None if month is None else f"{month:f}",
    }


_MAX_NAME_CHARACTERS = 200
SYSTEM = "system"
"""The actor in the audit trail if none is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A stored key (without its text), or the entry of a user who signs in (see `identity`)."""

    id: str
    tenant: Tenant
    name: str
    """The purpose of the key, or the name of the user."""
    permissions: KeyPermissions
    created: float
    """Seconds since the epoch, as are the other times."""
    digest: bytes
    """The keyed hash of the key's text."""
    expires: float | None = None
    """When the key expires; None: never."""
    revoked: float | None = None
    """When the key was revoked; None: it was not."""
    old_digest: bytes | None = None
    """The hash of the text before the last rotation; None: that text is not accepted."""
    old_until: float | None = None
    """Until when the text before the last rotation is accepted, if `old_digest` is set."""
    identity: str | None = None
    """Identity of a user at the identity provider, if this is the user's entry; None: a key."""
    role: str | None = None
    """`user` or `admin`, for a user's entry; None for a key."""
    user: str | None = None
    """The id of the entry of the user who created this key; None: no user created it."""
    owner: ApiKey | None = None
    """The entry with the id `user`; None if there is no such id or entry.

    The entry's limits and budget apply too, and the key is revoked while the entry is not active.
    """

    @property
    def cursor(self) -> str:
        """The position after this key in a list: `ApiKeyStore.list(after=...)`."""
        return format_cursor(self.created, self.id)

    def __repr__(self) -> str:
        return f"ApiKey(id={self.id!r}, tenant={self.tenant.name!r}, name={self.name!r})"

    def state(self, now: float) -> str:
        """Return `active`, `revoked` or `expired`.

        A key that a user created is revoked, too, while the user's entry is not active.
        """
        if self.revoked is not None:
            return "revoked"
        if self.user is not None and (self.owner is None or self.owner.state(now) != "active"):
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"


ChangePermissions = Callable[[KeyPermissions], KeyPermissions | None]
"""Returns a key's new permissions for the stored ones; None: they stay."""


@dataclass(frozen=True, slots=True)
class _KeyChange:
    """A change of a key, with its entry in the audit trail."""

    action: str
    values: dict[str, Any]
    """The new values by column."""
    details: dict[str, Any]


@final
class ApiKeyStore:
    """The keys and the users' entries in the database.

    All methods raise StoreError if the database fails; those that return an ApiKey also if its
    stored permissions cannot be read.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        hasher: KeyHasher,
        tenant: str,
        name: str,
        permissions: KeyPermissions | None = None,
        *,
        expires: float | None = None,
        user: str | None = None,
        most_of_user: int | None = None,
        by: str = SYSTEM,
    ) -> tuple[ApiKey, IssuedKey]:
        """Create a key; its text is only in the returned `IssuedKey`.

        Args:
            hasher: generates the text.
            tenant: the owner of the key.
            name: its purpose, as shown in lists; white space becomes single spaces.
            permissions: what it may do; None: no limits.
            expires: seconds since the epoch; None: never.
            user: the id of the entry of the user who creates the key; the limits of this entry
                apply too. None: no user.
            most_of_user: maximum number of active keys of that user; None: no maximum.
            by: the actor, for the audit trail.

        Raises:
            ValueError: the tenant's or the key's name is invalid, or the user has too many keys.
            StoreError: the tenant was deleted at the same moment.
        """
        check_tenant_name(tenant)
        name = _key_name(name)
        issued, now = hasher.issue(), time()
        values = {
            "id": issued.id,
            "tenant": tenant,
            "name": name,
            "digest": issued.digest,
            "policy": orjson.dumps(permissions_json(permissions or KeyPermissions())).decode(),
            "created": now,
            "expires": expires,
            "user": user,
        }

        def make(connection: Connection) -> None:
            ensure_tenant(connection, tenant, now)  # first, as a write locks the SQLite file
            if user is not None and most_of_user is not None:
                _check_key_count(connection, user, most_of_user, now)
            connection.execute(insert(KEYS).values(values))
            details = {"name": values["name"], "expires": expires, **_limits_for_audit(permissions)}
            append_entry(
                connection,
                AuditEntry(
                    actor=by,
                    action="key.created",
                    subject=issued.id,
                    tenant=tenant,
                    details=details,
                ),
            )

        await self._database.run_write(make)
        return await self._get(issued.id), issued

    async def has_keys(self) -> bool:
        """Return True if any key or user's entry is stored, active or not."""
        return bool(await self._database.fetch_rows(select(KEYS.c.id).limit(1)))

    async def find(self, key_id: str) -> ApiKey | None:
        """Return the key of that id with its owner; None: there is none."""
        rows = await self._database.fetch_rows(_SELECT_KEYS.where(KEYS.c.id == sql_text(key_id)))
        if not rows:
            return None
        key = _key_from_row(rows[0])
        return key if key.user is None else replace(key, owner=await self.find(key.user))

    async def find_all(self, ids: Collection[str]) -> dict[str, ApiKey]:
        """Return the keys with these ids that exist, by id."""
        found = await self._with_owners(await self._read_keys(ids))
        return {key.id: key for key in found}

    async def _read_keys(self, ids: Collection[str]) -> Sequence[ApiKey]:
        """Return the keys and entries with these ids that exist, without owners."""
        found: list[ApiKey] = []
        for page in in_pages(sorted(ids)):
            query = _SELECT_KEYS.where(KEYS.c.id.in_([sql_text(key_id) for key_id in page]))
            found += map(_key_from_row, await self._database.fetch_rows(query))
        return found

    async def enter_user(
        self,
        hasher: KeyHasher,
        identity: str,
        name: str,
        *,
        tenant: str,
        is_admin: bool,
        permissions: KeyPermissions,
    ) -> ApiKey:
        """Return the entry of a user who has just signed in; create it the first time.

        Later calls update the name and the role; tenant and permissions stay, and a revoked entry
        stays revoked.

        Args:
            hasher: generates the entry's text, which is never shown.
            identity: the user's identity at the identity provider.
            name: the user's name, as shown in lists; the first 200 characters are stored, and
                "user" if it is empty.
            tenant: the tenant of a new user.
            is_admin: whether the identity provider now says that the user is an administrator.
            permissions: the permissions of a new user.

        Raises:
            ValueError: the tenant's name is invalid.
            StoreError: the entry's tenant was deleted at the same moment.
        """
        check_tenant_name(tenant)
        issued, now, role = hasher.issue(), time(), "admin" if is_admin else "user"
        values = {
            "id": issued.id,
            "tenant": tenant,
            "name": _one_line(name)[:_MAX_NAME_CHARACTERS] or "user",
            "digest": issued.digest,
            "policy": orjson.dumps(permissions_json(permissions)).decode(),
            "created": now,
            "identity": identity,
            "role": role,
        }

        def enter(connection: Connection) -> str:
            ensure_tenant(connection, tenant, now)
            new = insert_statement(connection.dialect.name, KEYS).values(values)
            again = {"role": role, "name": values["name"]}
            new = new.on_conflict_do_update(index_elements=["identity"], set_=again)
            connection.execute(new)
            query = select(KEYS.c.id, KEYS.c.tenant).where(KEYS.c.identity == identity)
            entry_id, entry_tenant = connection.execute(query).one()
            entry = AuditEntry(
                actor=f"user:{entry_id}",
                action="user.entered",
                subject=entry_id,
                tenant=entry_tenant,
                details={"role": role},
            )
            append_entry(connection, entry)
            return entry_id

        return await self._get(await self._database.run_write(enter))

    async def list_of_user(self, user: str, limit: int) -> list[ApiKey]:
        """Return at most `limit` keys of that user, newest first, but revoked keys last."""
        order = KEYS.c.revoked.is_not(None), KEYS.c.created.desc(), KEYS.c.id.desc()
        query = _SELECT_KEYS.where(KEYS.c.user == sql_text(user)).order_by(*order).limit(limit)
        found = [_key_from_row(row) for row in await self._database.fetch_rows(query)]
        owner = await self.find(user)
        return [replace(key, owner=owner) for key in found]

    async def list(
        self, tenant: str | None = None, *, limit: int | None = None, after: str | None = None
    ) -> list[ApiKey]:
        """Return the keys and users' entries, newest first.

        Args:
            tenant: only those of that tenant; None: all.
            limit: maximum number; None: all.
            after: the `cursor` of the last key of the previous page; None: the first page.

        Raises:
            ValueError: `after` is not a cursor.
        """
        query = _SELECT_KEYS.order_by(KEYS.c.created.desc(), KEYS.c.id.desc()).limit(limit)
        if tenant is not None:
            query = query.where(KEYS.c.tenant == sql_text(tenant))
        if after is not None:
            query = query.where(tuple_(KEYS.c.created, KEYS.c.id) < parse_cursor(after))
        found = [_key_from_row(row) for row in await self._database.fetch_rows(query)]
        return [*await self._with_owners(found)]

    async def _with_owners(self, found: Sequence[ApiKey]) -> Sequence[ApiKey]:
        """Return the keys, with `owner` filled in if a user created the key."""
        users = {key.user for key in found if key.user is not None}
        owners = {owner.id: owner for owner in await self._read_keys(users)}
        return [
            key if key.user is None else replace(key, owner=owners.get(key.user)) for key in found
        ]

    async def change(
        self,
        key_id: str,
        permissions: KeyPermissions | ChangePermissions | None = None,
        *,
        name: str | None = None,
        expires: float | None = None,
        never_expires: bool = False,
        by: str = SYSTEM,
    ) -> ApiKey | None:
        """Change a key's permissions, name or expiry; return the key, or None if there is none.

        Args:
            key_id: the key.
            permissions: the new permissions, or a function of the stored ones, which nobody else
                can change meanwhile; None: unchanged.
            name: the new name; None: unchanged.
            expires: when the key expires, in seconds since the epoch; None: unchanged.
            never_expires: whether to remove the expiry, unless `expires` is given.
            by: the actor, for the audit trail.

        Raises:
            ValueError: the name is invalid.
        """
        values: dict[str, Any] = {}
        if name is not None:
            values["name"] = _key_name(name)
        if expires is not None or never_expires:
            values["expires"] = expires

        def decide(key: ApiKey) -> _KeyChange | None:
            new = permissions(key.permissions) if callable(permissions) else permissions
            if new is not None:
                values["policy"] = orjson.dumps(permissions_json(new)).decode()
            details = {"changed": sorted(values), **_limits_for_audit(new)}
            return _KeyChange("key.changed", values, details) if values else None

        return await self._change(key_id, decide, by)

    async def revoke(self, key_id: str, *, by: str = SYSTEM) -> ApiKey | None:
        """Revoke the key, unless it is revoked, and return it; None if it does not exist."""

        def decide(key: ApiKey) -> _KeyChange | None:
            if key.revoked is not None:
                return None
            return _KeyChange("key.revoked", {"revoked": time(), "old_digest": None}, {})

        return await self._change(key_id, decide, by)

    async def rotate(
        self, hasher: KeyHasher, key_id: str, grace: float, *, by: str = SYSTEM
    ) -> tuple[ApiKey, IssuedKey] | None:
        """Give the key a new text; the old text is accepted for `grace` more seconds.

        The text before the old one is refused from now on. The id stays the same, and so do
        budgets, limits, spending and expiry.

        Returns:
            The key and its new text; None if the key does not exist.

        Raises:
            ValueError: the key was revoked.
        """
        issued = hasher.issue(key_id)

        def decide(key: ApiKey) -> _KeyChange:
            if key.revoked is not None:
                raise ValueError(f"the key {key_id} was revoked: create a new key")
            values = {
                "digest": issued.digest,
                "old_digest": key.digest if grace > 0 else None,
                "old_until": time() + grace if grace > 0 else None,
            }
            return _KeyChange("key.rotated", values, {"grace_s": grace})

        changed = await self._change(key_id, decide, by)
        return None if changed is None else (changed, issued)

    async def tenants(
        self, name: str | None = None, *, limit: int | None = None, after: str | None = None
    ) -> list[Tenant]:
        """Return the tenants, ordered by name.

        Args:
            name: only the tenant of that name; None: all.
            limit: maximum number; None: all.
            after: the name of the last tenant of the previous page; None: the first page.
        """
        query = select(TENANTS).order_by(TENANTS.c.name).limit(limit)
        if name is not None:
            query = query.where(TENANTS.c.name == sql_text(name))
        if after is not None:
            query = query.where(TENANTS.c.name > sql_text(after))
        return [Tenant(**row) for row in await self._database.fetch_rows(query)]

    async def set_tenant_budget(
        self,
        tenant: str,
        per_day: Decimal | None,
        per_month: Decimal | None,
        *,
        by: str = SYSTEM,
    ) -> Tenant:
        """Set the tenant's budget and return the tenant; create it if it does not exist.

        Args:
            tenant: the name of the tenant.
            per_day: maximum dollars per day; None: no limit.
            per_month: maximum dollars per month; None: no limit.
            by: the actor, for the audit trail.

        Raises:
            ValueError: the tenant's name is invalid, or a budget is not a finite number from 0 up.
        """
        check_tenant_name(tenant)
        KeyPermissions(per_day=per_day, per_month=per_month)  # raises for invalid amounts
        values = {"per_day": per_day, "per_month": per_month}

        def set_budget(connection: Connection) -> Tenant:
            named = TENANTS.c.name == tenant
            changed = 0
            while not changed:  # another process may delete the tenant between the two statements
                ensure_tenant(connection, tenant, time())
                changed = connection.execute(update(TENANTS).where(named).values(values)).rowcount
            # Read in this transaction: after it another process may delete the tenant.
            found = Tenant(**connection.execute(select(TENANTS).where(named)).mappings().one())
            details = {name: None if usd is None else f"{usd:f}" for name, usd in values.items()}
            append_entry(
                connection,
                AuditEntry(
                    actor=by, action="tenant.budget", subject=tenant, tenant=tenant, details=details
                ),
            )
            return found

        return await self._database.run_write(set_budget)

    async def _change(
        self, key_id: str, decide: Callable[[ApiKey], _KeyChange | None], by: str
    ) -> ApiKey | None:
        """Change the key and record that in one transaction; return None if it does not exist.

        `decide` gets the stored key without its owner, and returns None to change nothing.
        """
        named = KEYS.c.id == sql_text(key_id)

        def change(connection: Connection) -> None:
            # A write first: it locks the row, or the SQLite file, so that no other change of the
            # key comes between reading and writing.
            connection.execute(update(KEYS).where(named).values(created=KEYS.c.created))
            row = connection.execute(_SELECT_KEYS.where(named)).mappings().first()
            key = None if row is None else _key_from_row(dict(row))
            if key is None or (decided := decide(key)) is None:
                return
            connection.execute(update(KEYS).where(named).values(decided.values))
            entry = AuditEntry(
                actor=by,
                action=decided.action,
                subject=key_id,
                tenant=key.tenant.name,
                details=decided.details,
            )
            append_entry(connection, entry)

        await self._database.run_write(change)
        return await self.find(key_id)

    async def _get(self, key_id: str) -> ApiKey:
        """Return the key that was just written; raise StoreError if it was deleted since."""
        key = await self.find(key_id)
        if key is None:
            raise StoreError(
                f"the key {key_id} was deleted with its tenant at the same moment: try again"
            )
        return key


def _key_name(name: str) -> str:
    """Return the name as it is stored; raise ValueError if it is blank or too long."""
    line = _one_line(name)
    if not line or len(line) > _MAX_NAME_CHARACTERS:
        raise ValueError(f"a key needs a name of 1 to {_MAX_NAME_CHARACTERS} characters")
    return line


def _one_line(name: str) -> str:
    """Return the name as one line; in a list a second line could pass for another key."""
    return " ".join(sql_text(name).split())


def _limits_for_audit(permissions: KeyPermissions | None) -> dict[str, Any]:
    """Return the limits that are set, as the audit trail has them; empty for None."""
    if permissions is None:
        return {}
    return {"limits": {name: one for name, one in permissions_json(permissions).items() if one}}


def _check_key_count(connection: Connection, user: str, most: int, now: float) -> None:
    """Raise ValueError if the user has `most` or more active keys; lock the user's entry.

    In PostgreSQL a second transaction waits for the lock, and then counts the first one's key too.
    """
    connection.execute(select(KEYS.c.id).where(KEYS.c.id == user).with_for_update())
    unexpired = KEYS.c.expires.is_(None) | (KEYS.c.expires > now)
    own = KEYS.c.user == user, KEYS.c.revoked.is_(None), unexpired
    if connection.execute(select(func.count()).where(*own)).scalar_one() >= most:
        raise ValueError(f"you may have {most} active keys: revoke one first")


_SELECT_KEYS = select(
    KEYS,
    TENANTS.c.created.label("tenant_created"),
    TENANTS.c.per_day.label("tenant_per_day"),
    TENANTS.c.per_month.label("tenant_per_month"),
).join(TENANTS, TENANTS.c.name == KEYS.c.tenant)


def _key_from_row(row: dict[str, Any]) -> ApiKey:
    values = dict(row)
    fields = {name: values.pop(f"tenant_{name}") for name in ("created", "per_day", "per_month")}
    values["tenant"] = Tenant(name=values["tenant"], **fields)
    values["permissions"] = _read_permissions(values["id"], values.pop("policy"))
    return ApiKey(**values)


def _read_permissions(key_id: str, text: str) -> KeyPermissions:
    """Read stored permissions; raise StoreError if that fails, which must not mean no limits."""
    try:
        return read_permissions(orjson.loads(text))
    except ValueError as error:
        raise StoreError(f"the limits of key {key_id} cannot be read: {error}") from None


def key_json(key: ApiKey) -> dict[str, Any]:
    """Return the fields of a key that lists show, as JSON values, with its state at this moment."""
    return {
        "id": key.id,
        "tenant": key.tenant.name,
        "name": key.name,
        "state": key.state(time()),
        "created": key.created,
        "expires": key.expires,
        "limits": permissions_json(key.permissions),
    }
