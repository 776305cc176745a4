"""Keys and budgets, for the admin: made, limited, rotated and revoked; what was spent with them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from batuta.core import Cost
from batuta.core.usage import FREE
from batuta.gateway.admin import mint_of, store_of
from batuta.gateway.models import Orchestra
from batuta.gateway.refusal import not_found
from batuta.gateway.ui.screens import HEADERS, screen
from batuta.gateway.ui.visitor import KEYS, Visitor, read_form
from batuta.store import Store
from batuta.store.keys import Key, Keys
from batuta.store.ledger import day_of
from batuta.store.mint import Issued, Mint
from batuta.store.policy import Policy
from batuta.store.spend import Spent, spent

DAYS = 14
"""Days whose spending is shown."""
GRACE = 24 * 3600.0
"""Seconds for which a rotated key's old text is taken."""
_SEE_OTHER = 303
_DAY = 86400.0
_MONEY = ("max_cost", "per_day", "per_month")
_WHOLE = ("rpm", "tpm", "concurrency")
_NAMES = ("models", "workers_allow", "workers_deny")


@dataclass(frozen=True, slots=True)
class Spending:
    """What was spent in the latest days."""

    days: list[tuple[str, Cost, float]]
    """Each day, its dollars, and these as a share of the dearest day's, in per cent."""
    tenants: list[Spent]
    """By tenant, who spent most first."""


@final
class Keyring:
    """The screens; nobody but the admin sees that there are any."""

    def __init__(self, orchestra: Orchestra) -> None:
        self._orchestra = orchestra

    async def page(self, request: Request, visitor: Visitor) -> Response:
        """Every key, every tenant's budget, and what was spent."""
        return await self._page(request, visitor)

    async def create(self, request: Request, visitor: Visitor) -> Response:
        """A new key; its text is shown on this page and never again."""
        form = await self._form(request, visitor)
        try:
            key, issued = await self._keys.create(
                self._mint,
                form.get("tenant", "").strip(),
                form.get("name", "").strip(),
                policy_of(form),
                expires=_expiry(form.get("days", "")),
            )
        except ValueError as error:
            return await self._page(request, visitor, problem=str(error), form=form, status=400)
        self._orchestra.gate.forget()
        return await self._page(request, visitor, issued=(key, issued))

    async def change(self, request: Request, visitor: Visitor) -> Response:
        """Revokes or rotates a key, or gives it other limits."""
        form = await self._form(request, visitor)
        key_id: str = request.path_params["id"]
        match request.path_params["what"]:
            case "revoke":
                found = await self._keys.revoke(key_id)
            case "rotate":
                return await self._rotate(request, visitor, key_id)
            case "limits":
                try:
                    found = await self._keys.change(key_id, policy_of(form))
                except ValueError as error:
                    return await self._page(request, visitor, problem=str(error), status=400)
            case _:
                found = None
        if found is None:
            raise not_found("The key")
        self._orchestra.gate.forget(key_id)
        return RedirectResponse(KEYS[0], _SEE_OTHER, HEADERS)

    async def budget(self, request: Request, visitor: Visitor) -> Response:
        """A tenant's budget, of all its keys together."""
        form = await self._form(request, visitor)
        try:
            day, month = (_money(name, form.get(name, "")) for name in ("per_day", "per_month"))
            await self._keys.budget(form.get("tenant", ""), day, month)
        except ValueError as error:
            return await self._page(request, visitor, problem=str(error), status=400)
        self._orchestra.gate.forget()
        return RedirectResponse(KEYS[0], _SEE_OTHER, HEADERS)

    async def _rotate(self, request: Request, visitor: Visitor, key_id: str) -> Response:
        try:
            rotated = await self._keys.rotate(self._mint, key_id, GRACE)
        except ValueError as error:
            return await self._page(request, visitor, problem=str(error), status=400)
        if rotated is None:
            raise not_found("The key")
        self._orchestra.gate.forget(key_id)
        return await self._page(request, visitor, issued=rotated)

    async def _page(
        self,
        request: Request,
        visitor: Visitor,
        *,
        issued: tuple[Key, Issued] | None = None,
        problem: str = "",
        form: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        self._check(visitor)
        now = time.time()
        keys = await self._keys.list()
        return screen(
            request,
            "keys.html.jinja",
            status=status,
            visitor=visitor,
            keys=[(key, key.state(now)) for key in reversed(keys)],
            tenants=await self._keys.tenants(),
            spending=await self._spending(now),
            issued=issued,
            problem=problem,
            form=form or {},
            now=now,
        )

    async def _spending(self, now: float) -> Spending:
        """What was spent in the latest days, by day and by tenant."""
        days = [day_of(now - _DAY * back) for back in reversed(range(DAYS))]
        database = self._store.database
        by_day = await spent(database, ("day",), since=days[0])
        by_tenant = await spent(database, ("tenant",), since=days[0])
        found = {each.group[0]: each.cost for each in by_day}
        costs = [found.get(day, FREE) for day in days]
        most = max(cost.usd for cost in costs) or Decimal(1)
        bars = [
            (day, cost, float(100 * cost.usd / most)) for day, cost in zip(days, costs, strict=True)
        ]
        return Spending(bars, sorted(by_tenant, key=lambda each: -each.cost.usd))

    async def _form(self, request: Request, visitor: Visitor) -> dict[str, str]:
        self._check(visitor)
        return await read_form(request, visitor)

    def _check(self, visitor: Visitor) -> None:
        """Nothing, for the admin; others see what is seen where there is nothing.

        Raises:
            Refusal: somebody else.
        """
        if not visitor.admin:
            raise not_found(f"The screen {KEYS[0]}")

    @property
    def _store(self) -> Store:
        return store_of(self._orchestra)

    @property
    def _keys(self) -> Keys:
        return self._store.keys

    @property
    def _mint(self) -> Mint:
        return mint_of(self._orchestra)


def policy_of(form: Mapping[str, str]) -> Policy:
    """The limits in a form; an empty field is no limit.

    Raises:
        ValueError: a field cannot be used.
    """
    values: dict[str, Any] = {name: _money(name, form.get(name, "")) for name in _MONEY}
    for name in _WHOLE:
        text = form.get(name, "").strip()
        if text and not (text.isascii() and text.isdigit()):
            raise ValueError(f"{name} must be a whole number: {text[:40]}")
        values[name] = int(text[:18]) if text else None
    for name in _NAMES:
        values[name] = tuple(form.get(name, "").replace(",", " ").split())
    return Policy(**values)


def _money(name: str, text: str) -> Decimal | None:
    if not text.strip():
        return None
    try:
        return Decimal(text.strip())
    except InvalidOperation:
        raise ValueError(f"{name} is not a number of dollars: {text[:40]}") from None


def _expiry(text: str) -> float | None:
    """When a key of so many days ends; None: never."""
    if not text.strip():
        return None
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days < 36500:  # noqa: PLR2004 - a hundred years
        raise ValueError(f"the days until a key expires must be a number above 0: {text[:40]}")
    return time.time() + days * _DAY
