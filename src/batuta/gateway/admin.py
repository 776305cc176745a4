"""/v1/admin: keys, tenants and spending, for the holder of the admin's token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from time import time
from typing import Any, NoReturn, final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from batuta.gateway.models import Orchestra
from batuta.gateway.refusal import Refusal, not_found, wrong_value
from batuta.gateway.reply import ReaderGone, read_fields
from batuta.gateway.runs import json_response
from batuta.gateway.wire.fields import Fields
from batuta.store import Store
from batuta.store.keys import Key, Tenant, key_json, tenant_json
from batuta.store.mint import Mint
from batuta.store.policy import Policy, policy_json, read_policy
from batuta.store.spend import spent, spent_json

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_LONGEST = 10 * 365 * 86400.0
_CREATE = {"name", "tenant", "limits", "expires_in"}
_CHANGE = {"name", "limits", "expires_in"}
_GRACE = 3600.0


@final
class AdminRoutes:
    """What `batuta keys` does, over HTTP; a revoked key is dead here at once."""

    def __init__(self, orchestra: Orchestra) -> None:
        self._orchestra = orchestra

    def routes(self) -> list[Route]:
        """Who may come here was checked before anything is routed."""
        key = "/v1/admin/keys/{id}"
        return [
            Route("/v1/admin/keys", self.list, methods=["GET"]),
            Route("/v1/admin/keys", self.create, methods=["POST"]),
            Route(key, self.one, methods=["GET"]),
            Route(key, self.change, methods=["PATCH"]),
            Route(f"{key}/revoke", self.revoke, methods=["POST"]),
            Route(f"{key}/rotate", self.rotate, methods=["POST"]),
            Route("/v1/admin/tenants", self.tenants, methods=["GET"]),
            Route("/v1/admin/tenants/{name}", self.budget, methods=["PUT"]),
            Route("/v1/admin/spend", self.spend, methods=["GET"]),
        ]

    async def list(self, request: Request) -> Response:
        """Every key (of `tenant`), never its text."""
        keys = await self._store.keys.list(request.query_params.get("tenant"))
        return json_response({"object": "list", "data": [key_entry(key) for key in keys]})

    async def one(self, request: Request) -> Response:
        """One key."""
        return json_response(key_entry(await self._key(request)))

    async def create(self, request: Request) -> Response:
        """A new key; its text is in this answer and nowhere else."""
        body = await _body(request, _CREATE)
        tenant, name = body.text("tenant") or "default", body.need_text("name")
        policy, expires = _limits(body, {}), _expiry(body)
        try:
            key, issued = await self._store.keys.create(
                self._mint, tenant, name, policy, expires=expires
            )
        except ValueError as error:
            _unusable("name", error)
        self._orchestra.gate.forget()
        return json_response({**key_entry(key), "key": issued.text}, 201)

    async def change(self, request: Request) -> Response:
        """Other limits, another name, another end; what is not named stays."""
        body, key = await _body(request, _CHANGE), await self._key(request)
        policy = _limits(body, policy_json(key.policy))
        lasting = "expires_in" in body.names and body.get("expires_in") is None
        changed = await self._store.keys.change(
            key.id, policy, name=body.text("name"), expires=_expiry(body), lasting=lasting
        )
        self._orchestra.gate.forget(key.id)
        return json_response(key_entry(changed or key))

    async def revoke(self, request: Request) -> Response:
        """The end of a key."""
        key = await self._key(request)
        revoked = await self._store.keys.revoke(key.id)
        self._orchestra.gate.forget(key.id)
        return json_response(key_entry(revoked or key))

    async def rotate(self, request: Request) -> Response:
        """A new text for a key; the old one is taken for `grace_s` more."""
        body, key = await _body(request, {"grace_s"}), await self._key(request)
        given = body.number("grace_s", 0, _LONGEST)
        try:
            rotated = await self._store.keys.rotate(
                self._mint, key.id, _GRACE if given is None else given
            )
        except ValueError as error:
            raise Refusal(409, "conflict", f"{error}.") from None
        if rotated is None:
            raise not_found(f"The key '{key.id}'")
        self._orchestra.gate.forget(key.id)
        changed, issued = rotated
        return json_response({**key_entry(changed), "key": issued.text})

    async def tenants(self, _: Request) -> Response:
        """Every tenant and its budget."""
        found = await self._store.keys.tenants()
        return json_response({"object": "list", "data": [tenant_entry(one) for one in found]})

    async def budget(self, request: Request) -> Response:
        """A tenant's budget: both parts, null for none."""
        body = await _body(request, {"per_day", "per_month"})
        try:
            policy = read_policy({name: body.get(name) for name in body.names})
            tenant = await self._store.keys.budget(
                request.path_params["name"], policy.per_day, policy.per_month
            )
        except ValueError as error:
            _unusable("per_day", error)
        self._orchestra.gate.forget()
        return json_response(tenant_entry(tenant))

    async def spend(self, request: Request) -> Response:
        """The ledger added up; `by`, `tenant`, `since` and `until` as `batuta keys spend`."""
        query = request.query_params
        by = [name for name in query.get("by", "day,tenant").split(",") if name]
        for name in ("since", "until"):
            if name in query and not _DAY.fullmatch(query[name]):
                raise wrong_value(name, "it must be a day like 2026-11-21.")
        try:
            found = await spent(
                self._store.database,
                by,
                tenant=query.get("tenant"),
                since=query.get("since"),
                until=query.get("until"),
            )
        except ValueError as error:
            _unusable("by", error)
        return json_response({"object": "list", "data": [spent_json(by, one) for one in found]})

    async def _key(self, request: Request) -> Key:
        name: str = request.path_params["id"]
        key = await self._store.keys.find(name)
        if key is None:
            raise not_found(f"The key '{name}'")
        return key

    @property
    def _store(self) -> Store:
        return store_of(self._orchestra)

    @property
    def _mint(self) -> Mint:
        return mint_of(self._orchestra)


def store_of(orchestra: Orchestra) -> Store:
    """Where the keys are.

    Raises:
        Refusal: nothing is kept.
    """
    if orchestra.store is None:
        raise Refusal(404, "not_found", "This server keeps no keys.")
    return orchestra.store


def mint_of(orchestra: Orchestra) -> Mint:
    """What makes new keys.

    Raises:
        Refusal: none are made.
    """
    if orchestra.gate.mint is None:
        raise Refusal(404, "not_found", "This server makes no keys.")
    return orchestra.gate.mint


def key_entry(key: Key) -> dict[str, Any]:
    """A key as an object of the API."""
    return {"object": "key", **key_json(key)}


def tenant_entry(tenant: Tenant) -> dict[str, Any]:
    """A tenant as an object of the API."""
    return {"object": "tenant", **tenant_json(tenant)}


async def _body(request: Request, known: set[str]) -> Fields:
    """The body, which may have these fields and no others.

    Raises:
        Refusal: it has another one: a misspelt limit must not be a limit that is not there.
    """
    try:
        body = await read_fields(request.scope, request.receive)
    except ReaderGone:
        raise Refusal(400, "invalid_request", "The body broke off.") from None
    for name in body.names:
        if name not in known:
            message = f"Unknown parameter: '{name}'."
            raise Refusal(400, "unknown_parameter", message, param=name)
    return body


def _limits(body: Fields, before: Mapping[str, Any]) -> Policy | None:
    """The limits of the body over those from before; None if the body names none."""
    given = body.object("limits")
    if given is None:
        return None
    try:
        return read_policy({**before, **{name: given.get(name) for name in given.names}})
    except ValueError as error:
        _unusable("limits", error)


def _expiry(body: Fields) -> float | None:
    seconds = body.number("expires_in", 0, _LONGEST)
    return None if seconds is None or not isfinite(seconds) else time() + seconds


def _unusable(param: str, error: ValueError) -> NoReturn:
    raise wrong_value(param, f"{error}.") from None
