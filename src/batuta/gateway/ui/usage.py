"""The usage screen: a visitor's spending by day, system, worker and key, from the ledger."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import final

from starlette.requests import Request
from starlette.responses import Response

from batuta.core import Cost
from batuta.gateway.errors import invalid_value, require_part
from batuta.gateway.ui.rendering import render_page
from batuta.gateway.ui.session import WebSession
from batuta.store import Store
from batuta.store.ledger import utc_day
from batuta.store.spend_report import SpendGroup, report_spending
from batuta.usage import ZERO_COST

SPANS = (7, 14, 30)
"""Days that may be looked at."""
LONGEST_TABLE = 20
"""Rows of a table; what is further down is said in one."""
_DAY = 86_400.0
_TABLES = (("model", "System"), ("worker", "Worker or conductor"), ("key", "Key"))
_ADMIN_TABLES = (("tenant", "Tenant"), *_TABLES)


@dataclass(frozen=True, slots=True)
class DailyCost:
    """The spending of a day."""

    day: str
    cost: Cost
    share: float
    """Its dollars as a share of the dearest day's, in per cent."""


@dataclass(frozen=True, slots=True)
class SpendTable:
    """Spending by one column, the highest first."""

    name: str
    rows: Sequence[tuple[str, SpendGroup]]
    others: int
    """Groups that are not shown."""


@final
class UsagePage:
    """The screen; a tenant sees its own spending and nobody else's."""

    def __init__(self, store: Store | None) -> None:
        self._kept = store

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show the latest days: each day, and who and what spent the most."""
        store = require_part(self._kept, "This server keeps no runs.")
        said = request.query_params.get("days") or str(SPANS[1])
        if said not in {str(days) for days in SPANS}:
            raise invalid_value("days", f"it is one of {', '.join(map(str, SPANS))}.")
        tenant = session.tenant
        days = latest_days(time.time(), int(said))
        tables = _ADMIN_TABLES if tenant is None else _TABLES
        by_day = await report_spending(store.database, ("day",), tenant=tenant, since=days[0])
        return render_page(
            request,
            "usage.html.jinja",
            session=session,
            days=daily_costs(days, by_day),
            span=int(said),
            spans=SPANS,
            tables=[await self._table(store, each, tenant, days[0]) for each in tables],
        )

    async def _table(
        self, store: Store, column: tuple[str, str], tenant: str | None, since: str
    ) -> SpendTable:
        group, title = column
        found = await report_spending(store.database, (group,), tenant=tenant, since=since)
        dearest = sorted(found, key=lambda each: -each.cost.usd)
        rows: list[tuple[str, SpendGroup]] = []
        for each in dearest[:LONGEST_TABLE]:
            name = each.group[0] or "–"
            key = await store.keys.find(name) if group == "key" else None
            rows.append((name if key is None else key.name, each))
        return SpendTable(title, rows, len(dearest[LONGEST_TABLE:]))


def latest_days(now: float, count: int) -> list[str]:
    """Return the latest days, the oldest first."""
    return [utc_day(now - _DAY * back) for back in reversed(range(count))]


def daily_costs(days: Sequence[str], spent: Sequence[SpendGroup]) -> list[DailyCost]:
    """Return the spending of each of these days, beside the dearest one's."""
    found = {each.group[0]: each.cost for each in spent}
    costs = [found.get(day, ZERO_COST) for day in days]
    most = max(cost.usd for cost in costs) or Decimal(1)
    return [
        DailyCost(day, cost, float(100 * cost.usd / most))
        for day, cost in zip(days, costs, strict=True)
    ]
