"""The admin's screen of API keys and budgets: creates, limits, rotates and revokes keys."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, cast, final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from batuta.gateway.access.caller import Authenticator
from batuta.gateway.errors import invalid_value, not_found, require_part
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.ui.budget_bars import key_bars, sum_accounts, tenant_bars
from batuta.gateway.ui.own_keys import find_issued_key, forget_issued_key, redirect_with_key
from batuta.gateway.ui.rendering import redirect_to, render_page
from batuta.gateway.ui.session import KEYS_SCREEN, WebSession, read_form
from batuta.gateway.ui.usage import DailyCost, daily_costs
from batuta.gateway.ui.usage_activity import latest_days
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from batuta.store.keys import ApiKey, ApiKeyStore, Tenant
from batuta.store.spend_report import SpendGroup, report_spending

SPEND_DAYS = 14
"""Number of days whose spending is shown."""
PAGE_SIZE = 50
"""Maximum number of keys, and of tenants, on a page."""
GRACE_SECONDS = 24 * 3600.0
"""Seconds for which the old text of a rotated key stays valid."""
_DAY = 86400.0
_MONEY_FIELDS = ("max_cost", "per_day", "per_month", "session_max_cost")
_INTEGER_FIELDS = ("rpm", "tpm", "concurrency", "session_max_turns")
_NAME_FIELDS = ("models", "workers_allow", "workers_deny", "tags", "tools")
LIMIT_FIELDS = (
    ("models", "Systems", "all; batuta-mini worker/*"),
    ("max_cost", "$ a request", "no limit"),
    ("per_day", "$ a day", "no limit"),
    ("per_month", "$ a month", "no limit"),
    ("session_max_cost", "$ a session", "no limit"),
    ("session_max_turns", "Turns a session", "no limit"),
    ("rpm", "Requests a minute", "no limit"),
    ("tpm", "Tokens a minute", "no limit"),
    ("concurrency", "Concurrent runs", "no limit"),
    ("workers_allow", "Only these workers", "all; ids or tag:local"),
    ("workers_deny", "Not these workers", "ids or tag:region:us"),
    ("tags", "Tags of its questions", "none; used by plan rules"),
    ("tools", "Server tools", "all; web_search or none"),
    ("min_confidence", "Minimum confidence", "any; 0.9"),
)
"""The limits in a form: field, label and placeholder."""
_LABELS = {name: label for name, label, _ in LIMIT_FIELDS}


@dataclass(frozen=True, slots=True)
class SpendSummary:
    """The spending of the latest `SPEND_DAYS` days."""

    days: list[DailyCost]
    tenants: list[SpendGroup]
    """Spending by tenant, the highest first; at most `PAGE_SIZE` tenants."""
    others: int
    """Number of further tenants with calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """The keys and tenants of one page, and the query strings of neighbouring pages, if any."""

    keys: list[ApiKey]
    tenants: list[Tenant]
    tenant: str
    """The tenant whose keys are shown; empty for all tenants."""
    older: str | None
    newest: str | None
    later_tenants: str | None
    is_first_tenant: bool


@final
class KeyPages:
    """Serves /ui/keys, which exists only for the admin."""

    def __init__(
        self, catalogue: Catalogue, store: Store | None, authenticator: Authenticator
    ) -> None:
        self._catalogue = catalogue
        self._optional_store = store
        self._authenticator = authenticator

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show a page of the keys, a page of the tenants' budgets, and the spending.

        A key that was just created or rotated is shown with its text, once.

        Raises:
            APIError: the visitor is not the admin, the server has no store, or the cursor in the
                URL is invalid.
        """
        self._check(session)
        hasher = self._authenticator.key_hasher
        issued = await find_issued_key(request, self._store, hasher)
        response = await self._render(request, session, issued=issued)
        return forget_issued_key(request, response, KEYS_SCREEN[0])

    async def create(self, request: Request, session: WebSession) -> Response:
        """Create a key, whose text is shown on the next page and never again.

        If a field is invalid, the form is shown again with the reason.

        Raises:
            APIError: the visitor is not the admin, the form is not from one of our pages, or the
                server keeps or makes no keys.
        """
        form = await self._form(request, session)
        try:
            _, issued = await self._keys.create(
                self._key_hasher,
                form.get("tenant", "").strip(),
                form.get("name", "").strip(),
                self._parse_permissions(form),
                expires=_parse_expiry(form.get("days", "")),
                by=session.caller.actor,
            )
        except ValueError as error:
            return await self._render(request, session, problem=str(error), form=form, status=400)
        self._authenticator.forget()
        return redirect_with_key(request, KEYS_SCREEN[0], issued, self._key_hasher)

    async def change(self, request: Request, session: WebSession) -> Response:
        """Revoke or rotate a key, or change its limits.

        If a limit is invalid or the key cannot be rotated, the page is shown with the reason.

        Raises:
            APIError: the key or the action does not exist, the visitor is not the admin, the form
                is not from one of our pages, or the server keeps or makes no keys.
        """
        form = await self._form(request, session)
        key_id: str = request.path_params["id"]
        match request.path_params["what"]:
            case "revoke":
                found = await self._keys.revoke(key_id, by=session.caller.actor)
            case "rotate":
                return await self._rotate(request, session, key_id)
            case "limits":
                before = await self._keys.find(key_id)
                try:
                    policy = self._parse_permissions(form, before)
                    found = await self._keys.change(key_id, policy, by=session.caller.actor)
                except ValueError as error:
                    return await self._render(request, session, problem=str(error), status=400)
            case _:
                found = None
        if found is None:
            raise not_found("The key")
        self._authenticator.forget(key_id)
        return redirect_to(KEYS_SCREEN[0])

    async def budget(self, request: Request, session: WebSession) -> Response:
        """Set a tenant's budget, which all keys of the tenant share.

        If a field is invalid, the page is shown with the reason.

        Raises:
            APIError: the visitor is not the admin, the form is not from one of our pages, or the
                server keeps no keys.
        """
        form = await self._form(request, session)
        try:
            day, month = (
                _parse_dollars(name, form.get(name, "")) for name in ("per_day", "per_month")
            )
            await self._keys.set_tenant_budget(
                form.get("tenant", ""), day, month, by=session.caller.actor
            )
        except ValueError as error:
            return await self._render(request, session, problem=str(error), status=400)
        self._authenticator.forget()
        return redirect_to(KEYS_SCREEN[0])

    async def _rotate(self, request: Request, session: WebSession, key_id: str) -> Response:
        try:
            rotated = await self._keys.rotate(
                self._key_hasher, key_id, GRACE_SECONDS, by=session.caller.actor
            )
        except ValueError as error:
            return await self._render(request, session, problem=str(error), status=400)
        if rotated is None:
            raise not_found("The key")
        self._authenticator.forget(key_id)
        return redirect_with_key(request, KEYS_SCREEN[0], rotated[1], self._key_hasher)

    def _parse_permissions(
        self, form: Mapping[str, str], before: ApiKey | None = None
    ) -> KeyPermissions:
        """Return the limits in a form, after checking that their models and workers exist.

        Names that the key `before` already has are not checked.

        Raises:
            ValueError: a field is invalid, or names a model or worker that does not exist.
        """
        permissions = parse_permissions(form)
        old = None if before is None else before.permissions
        self._catalogue.known_names.check_permissions(permissions, old)
        return permissions

    async def _render(
        self,
        request: Request,
        session: WebSession,
        *,
        issued: tuple[ApiKey, str] | None = None,
        problem: str = "",
        form: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        now = time.time()
        shown = await self._page(request.query_params)
        return render_page(
            request,
            "keys.html.jinja",
            status=status,
            session=session,
            shown=shown,
            states=[key.state(now) for key in shown.keys],
            spending=await self._spend_summary(now),
            spent=await sum_accounts(self._store, now, None),
            key_bars=key_bars,
            tenant_bars=tenant_bars,
            issued=issued,
            problem=problem,
            form=form or {},
            form_values=form_values,
            limit_fields=LIMIT_FIELDS,
            now=now,
        )

    async def _page(self, query: Mapping[str, str]) -> _Page:
        """Return the page selected by the parameters `tenant`, `after` and `tenants_after`.

        Raises:
            APIError: `after` is not a cursor of the list.
        """
        tenant, after = query.get("tenant", "").strip(), query.get("after")
        tenants_after = query.get("tenants_after")
        try:
            keys = await self._keys.list(tenant or None, limit=PAGE_SIZE + 1, after=after)
        except ValueError:
            raise invalid_value("after", "it is not a cursor of this list.") from None
        tenants = await self._keys.tenants(tenant or None, limit=PAGE_SIZE + 1, after=tenants_after)
        kept = {"tenant": tenant} if tenant else {}
        older = (
            urlencode({**kept, "after": keys[PAGE_SIZE - 1].cursor}) if keys[PAGE_SIZE:] else None
        )
        later = None
        if tenants[PAGE_SIZE:]:
            later = urlencode({"tenants_after": tenants[PAGE_SIZE - 1].name})
        return _Page(
            keys=keys[:PAGE_SIZE],
            tenants=tenants[:PAGE_SIZE],
            tenant=tenant,
            older=older,
            newest=None if after is None else urlencode(kept),
            later_tenants=later,
            is_first_tenant=tenants_after is None,
        )

    async def _spend_summary(self, now: float) -> SpendSummary:
        days = latest_days(now, SPEND_DAYS)
        database = self._store.database
        by_day = await report_spending(database, ("day",), since=days[0])
        by_tenant = await report_spending(database, ("tenant",), since=days[0])
        ordered = sorted(by_tenant, key=lambda each: -each.cost.usd)
        return SpendSummary(
            daily_costs(days, by_day), ordered[:PAGE_SIZE], len(ordered[PAGE_SIZE:])
        )

    async def _form(self, request: Request, session: WebSession) -> dict[str, str]:
        self._check(session)
        return await read_form(request, session)

    def _check(self, session: WebSession) -> None:
        """Raise an error that the screen does not exist, unless the visitor is the admin."""
        if not session.is_admin:
            raise not_found(f"The screen {KEYS_SCREEN[0]}")

    @property
    def _store(self) -> Store:
        return require_part(self._optional_store, "This server keeps no keys.")

    @property
    def _keys(self) -> ApiKeyStore:
        return self._store.keys

    @property
    def _key_hasher(self) -> KeyHasher:
        return require_part(self._authenticator.key_hasher, "This server makes no keys.")


def form_values(permissions: KeyPermissions) -> dict[str, Any]:
    """Return the limits as values of the form's fields, without those that are None."""
    values = {name: value for name, value in asdict(permissions).items() if value is not None}
    return {
        name: " ".join(cast("tuple[str, ...]", v)) if isinstance(v, tuple) else v
        for name, v in values.items()
    }


def parse_permissions(form: Mapping[str, str]) -> KeyPermissions:
    """Return the limits in a form; an empty field means no limit.

    Raises:
        ValueError: a field is invalid; the message begins with the field's label.
    """
    values: dict[str, Any] = {
        name: _parse_dollars(name, form.get(name, "")) for name in _MONEY_FIELDS
    }
    for name in _INTEGER_FIELDS:
        text = form.get(name, "").strip()
        if text and not (text.isascii() and text.isdigit() and int(text[:18])):
            raise ValueError(f"{_LABELS[name]}: {text[:40]!r} is not a whole number above 0")
        values[name] = int(text[:18]) if text else None
    for name in _NAME_FIELDS:
        values[name] = tuple(form.get(name, "").replace(",", " ").split())
    values["tags"] = tuple(tag.lower() for tag in values["tags"])
    values["min_confidence"] = _parse_probability(form.get("min_confidence", ""))
    return KeyPermissions(**values)


def _parse_probability(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        label = _LABELS["min_confidence"]
        raise ValueError(f"{label}: {text.strip()[:40]!r} is not a number from 0 to 1")
    return found


def _parse_dollars(name: str, text: str) -> Decimal | None:
    if not text.strip():
        return None
    try:
        amount = Decimal(text.strip())
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount < 0:
        raise ValueError(
            f"{_LABELS[name]}: {text.strip()[:40]!r} is not an amount of dollars; write 2.50, "
            "or nothing for no limit"
        )
    return amount


def _parse_expiry(text: str) -> float | None:
    """Return the time at which a key expires after that many days; None for an empty text.

    Raises:
        ValueError: the text is not a number of days above 0 and below a hundred years.
    """
    if not text.strip():
        return None
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days < 36500:  # noqa: PLR2004 - a hundred years
        raise ValueError(
            f"the days until a key expires must be above 0 and below 36500: {text[:40]}"
        )
    return time.time() + days * _DAY
