"""/v1/admin, for administrators: keys, tenants, spending, activity, refusals, audit trail."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from time import time
from typing import Any, TypeVar, final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from batuta.gateway.access.caller import Authenticator, actor_of
from batuta.gateway.admin.paging import MAX_PAGE, check_query, list_page, parse_limit
from batuta.gateway.errors import APIError, invalid_value, not_found, require_part
from batuta.gateway.http.body import Fields, json_response, read_fields
from batuta.gateway.serving.deletions import Deletions
from batuta.gateway.serving.models import Catalogue
from batuta.store import Store
from batuta.store.activity import activity_json, report_activity
from batuta.store.audit import AuditRecord
from batuta.store.hours import DAY_SECONDS, day_start
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions, permissions_json, read_permissions
from batuta.store.keys import ApiKey, Tenant, check_tenant_name, key_json, tenant_json
from batuta.store.spend_report import report_spending, spend_group_json

_SEQUENCE_PATTERN = re.compile(r"[0-9]{1,18}")
_DAY_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MAX_SECONDS = 10 * 365 * 86400.0
_CREATE_FIELDS = {"name", "tenant", "limits", "expires_in"}
_CHANGE_FIELDS = {"name", "limits", "expires_in"}
_GRACE_SECONDS = 3600.0
_Found = TypeVar("_Found")


@final
class AdminRoutes:
    """Keys, tenants, spending, activity, refusals and the audit trail over HTTP.

    A key that is revoked here is refused immediately by this process, and by other replicas within
    `caller.CACHE_SECONDS`. Each route raises `APIError` if its request is invalid, what it names
    does not exist, a key to rotate was revoked, or the server has no store; and `StoreError` if the
    database fails.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        store: Store | None,
        authenticator: Authenticator,
        deletions: Deletions,
    ) -> None:
        self._catalogue = catalogue
        self._optional_store = store
        self._authenticator = authenticator
        self._deletions = deletions

    def routes(self) -> list[Route]:
        """Return the routes; the middleware has checked that the caller may use them."""
        key = "/v1/admin/keys/{id}"
        return [
            Route("/v1/admin/keys", self.list, methods=["GET"]),
            Route("/v1/admin/keys", self.create, methods=["POST"]),
            Route(key, self.get, methods=["GET"]),
            Route(key, self.change, methods=["PATCH"]),
            Route(f"{key}/revoke", self.revoke, methods=["POST"]),
            Route(f"{key}/rotate", self.rotate, methods=["POST"]),
            Route("/v1/admin/tenants", self.tenants, methods=["GET"]),
            Route("/v1/admin/tenants/{name}", self.set_budget, methods=["PUT"]),
            Route("/v1/admin/tenants/{name}", self.delete_tenant, methods=["DELETE"]),
            Route("/v1/admin/spend", self.spend, methods=["GET"]),
            Route("/v1/admin/activity", self.activity, methods=["GET"]),
            Route("/v1/admin/refusals", self.refusals, methods=["GET"]),
            Route("/v1/admin/audit", self.audit, methods=["GET"]),
        ]

    async def list(self, request: Request) -> Response:
        """Return a page of the keys and users' entries, newest first, without secrets.

        The query's `tenant` selects those of one tenant.
        """
        query = request.query_params
        check_query(query, "tenant", "limit", "after")
        limit = parse_limit(query, MAX_PAGE)
        try:
            found = await self._store.keys.list(
                query.get("tenant"), limit=limit + 1, after=query.get("after")
            )
        except ValueError:
            raise invalid_value("after", "it is not a cursor of this list.") from None
        return json_response(list_page(found, limit, key_entry, lambda key: key.cursor))

    async def get(self, request: Request) -> Response:
        """Return one key."""
        check_query(request.query_params)
        return json_response(key_entry(await self._find_key(request)))

    async def create(self, request: Request) -> Response:
        """Create a key; its secret is only in this response."""
        body = await _read_body(request, _CREATE_FIELDS)
        tenant, name = body.text("tenant") or "default", body.need_text("name")
        policy, expires = self._parse_permissions(body), _parse_expiry(body)
        with _refuse_values("tenant"):
            check_tenant_name(tenant)
        with _refuse_values("name"):
            key, issued = await self._store.keys.create(
                self._key_hasher, tenant, name, policy, expires=expires, by=actor_of(request)
            )
        self._authenticator.forget()
        return json_response({**key_entry(key), "key": issued.text}, 201)

    async def change(self, request: Request) -> Response:
        """Change a key's limits, name or expiry; absent fields change nothing.

        If `expires_in` is null, the key never expires.
        """
        body, key = await _read_body(request, _CHANGE_FIELDS), await self._find_key(request)
        lasting = "expires_in" in body.names and body.get("expires_in") is None
        with _refuse_values("name"):
            changed = await self._store.keys.change(
                key.id,
                lambda before: self._parse_permissions(body, before),
                name=body.text("name"),
                expires=_parse_expiry(body),
                never_expires=lasting,
                by=actor_of(request),
            )
        self._authenticator.forget(key.id)
        return json_response(key_entry(_need_found(changed, key.id)))

    async def revoke(self, request: Request) -> Response:
        """Revoke a key."""
        key = await self._find_key(request)
        revoked = await self._store.keys.revoke(key.id, by=actor_of(request))
        self._authenticator.forget(key.id)
        return json_response(key_entry(_need_found(revoked, key.id)))

    async def rotate(self, request: Request) -> Response:
        """Give a key a new secret; the old one stays valid `grace_s` seconds (default: 3600)."""
        body, key = await _read_body(request, {"grace_s"}), await self._find_key(request)
        given = body.number("grace_s", 0, _MAX_SECONDS)
        try:
            rotated = await self._store.keys.rotate(
                self._key_hasher,
                key.id,
                _GRACE_SECONDS if given is None else given,
                by=actor_of(request),
            )
        except ValueError as error:
            raise APIError(409, "conflict", f"{error}.") from None
        self._authenticator.forget(key.id)
        changed, issued = _need_found(rotated, key.id)
        return json_response({**key_entry(changed), "key": issued.text})

    async def tenants(self, request: Request) -> Response:
        """Return a page of the tenants with their budgets, by name."""
        query = request.query_params
        check_query(query, "limit", "after")
        limit = parse_limit(query, MAX_PAGE)
        found = await self._store.keys.tenants(limit=limit + 1, after=query.get("after"))
        return json_response(list_page(found, limit, tenant_entry, lambda tenant: tenant.name))

    async def set_budget(self, request: Request) -> Response:
        """Replace a tenant's budgets per day and month; a null or missing one is removed.

        A tenant that does not exist is created.
        """
        body = await _read_body(request, {"per_day", "per_month"})
        with _refuse_values("per_day"):
            per_day = read_permissions({"per_day": body.get("per_day")}).per_day
        with _refuse_values("per_month"):
            per_month = read_permissions({"per_month": body.get("per_month")}).per_month
        with _refuse_values("name"):
            tenant = await self._store.keys.set_tenant_budget(
                request.path_params["name"], per_day, per_month, by=actor_of(request)
            )
        self._authenticator.forget()
        return json_response(tenant_entry(tenant))

    async def delete_tenant(self, request: Request) -> Response:
        """Delete a tenant with its keys and data; the ledger and the audit trail stay."""
        name: str = request.path_params["name"]
        if not await self._deletions.delete_tenant(self._store, name, by=actor_of(request)):
            raise not_found(f"The tenant '{name}'")
        return json_response({"name": name, "object": "tenant", "deleted": True})

    async def spend(self, request: Request) -> Response:
        """Return the sums of the ledger.

        `by`, `tenant`, `since` and `until` are the options of `batuta keys spend`.
        """
        query = request.query_params
        check_query(query, "by", "tenant", "since", "until")
        by = [name for name in query.get("by", "day,tenant").split(",") if name]
        for name in ("since", "until"):
            _read_day(query, name)
        with _refuse_values("by"):
            found = await report_spending(
                self._store.database,
                by,
                tenant=query.get("tenant"),
                since=query.get("since"),
                until=query.get("until"),
            )
        return json_response(
            {"object": "list", "data": [spend_group_json(by, group) for group in found]}
        )

    async def activity(self, request: Request) -> Response:
        """Return counts, durations, failures and tokens of runs, grouped by the query's `by`.

        `since` and `until` are the first and the last day (UTC).
        """
        query = request.query_params
        check_query(query, "by", "tenant", "since", "until")
        by = [name for name in query.get("by", "day").split(",") if name]
        until = _read_day(query, "until")
        with _refuse_values("by"):
            found = await report_activity(
                self._store.database,
                by,
                tenant=query.get("tenant"),
                since=_read_day(query, "since") or 0.0,
                until=None if until is None else until + DAY_SECONDS,
            )
        data = [activity_json(by, group) for group in found]
        return json_response({"object": "list", "data": data})

    async def refusals(self, request: Request) -> Response:
        """Return the numbers of requests refused with status 429, grouped by the query's `by`.

        `since` is the first day (UTC).
        """
        query = request.query_params
        check_query(query, "by", "tenant", "since")
        by = [name for name in query.get("by", "day,tenant,code").split(",") if name]
        since = _read_day(query, "since") or 0.0
        with _refuse_values("by"):
            found = await self._store.refusals.report(by, tenant=query.get("tenant"), since=since)
        rows = [
            {**dict(zip(by, row.group, strict=True)), "requests": row.requests} for row in found
        ]
        return json_response({"object": "list", "data": rows})

    async def audit(self, request: Request) -> Response:
        """Return a page of the audit trail, newest first.

        The query's `action` selects the records of an action, such as `key.created`, or of all
        actions with a prefix that ends with a full stop, such as `key.`.
        """
        query = request.query_params
        check_query(query, "limit", "after", "action")
        limit, after = parse_limit(query, MAX_PAGE), query.get("after")
        if after is not None and not _SEQUENCE_PATTERN.fullmatch(after):
            raise invalid_value("after", "it is not a cursor of this list.")
        found = await self._store.audit.list(
            limit + 1,
            before=None if after is None else int(after),
            action=query.get("action", ""),
        )
        return json_response(list_page(found, limit, audit_entry, lambda record: str(record.seq)))

    async def _find_key(self, request: Request) -> ApiKey:
        key_id: str = request.path_params["id"]
        return _need_found(await self._store.keys.find(key_id), key_id)

    def _parse_permissions(
        self, body: Fields, before: KeyPermissions | None = None
    ) -> KeyPermissions | None:
        """Return the limits `before`, updated by the body's; None if the body has no `limits`."""
        given = body.object("limits")
        if given is None:
            return None
        old = {} if before is None else permissions_json(before)
        with _refuse_values("limits"):
            found = read_permissions({**old, **{name: given.get(name) for name in given.names}})
            self._catalogue.known_names.check_permissions(found, before)
        return found

    @property
    def _store(self) -> Store:
        return require_part(self._optional_store, "This server keeps no keys.")

    @property
    def _key_hasher(self) -> KeyHasher:
        return require_part(self._authenticator.key_hasher, "This server makes no keys.")


def _need_found(found: _Found | None, key_id: str) -> _Found:
    """Return what was found of the key with this id.

    Raises:
        APIError: it is None, as there is no such key, or it was deleted at the same moment.
    """
    if found is None:
        raise not_found(f"The key '{key_id}'")
    return found


def key_entry(key: ApiKey) -> dict[str, Any]:
    """Return a key as an object of the API."""
    return {"object": "key", **key_json(key)}


def audit_entry(record: AuditRecord) -> dict[str, Any]:
    """Return a record of the audit trail as an object of the API."""
    return {"object": "audit.record", **record.as_json()}


def tenant_entry(tenant: Tenant) -> dict[str, Any]:
    """Return a tenant as an object of the API."""
    return {"object": "tenant", **tenant_json(tenant)}


async def _read_body(request: Request, known: set[str]) -> Fields:
    """Return the body, which may have only known fields.

    Raises:
        APIError: the body is not a JSON object, or a field is unknown: a misspelt limit must not be
            silently ignored.
    """
    body = await read_fields(request.scope, request.receive)
    body.check_names(known)
    return body


def _parse_expiry(body: Fields) -> float | None:
    """Return when the key expires, in seconds since the epoch; None if the body does not say."""
    seconds = body.number("expires_in", 0, _MAX_SECONDS)
    return None if seconds is None else time() + seconds


def _read_day(query: QueryParams, name: str) -> float | None:
    """Return the start of the day in a parameter, in seconds since the epoch; None if absent.

    Raises:
        APIError: the value is not a day.
    """
    if name not in query:
        return None
    try:
        if _DAY_PATTERN.fullmatch(query[name]):
            return day_start(query[name])
    except ValueError:
        pass
    raise invalid_value(name, "it must be a day such as 2026-11-21.")


@contextmanager
def _refuse_values(param: str) -> Generator[None]:
    """Raise APIError about the parameter if the block raises ValueError."""
    try:
        yield
    except ValueError as error:
        raise invalid_value(param, f"{error}.") from None
