"""The usage screen: spending by day, tenant, system, worker, key and session, from the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from typing import final

from starlette.requests import Request
from starlette.responses import Response

from batuta.core import Cost
from batuta.gateway.errors import invalid_value, require_part
from batuta.gateway.ui.budget_bars import (
    BudgetBar,
    add_held,
    key_bars,
    sum_accounts,
    tenant_bars,
)
from batuta.gateway.ui.rendering import render_page
from batuta.gateway.ui.run_view import COLOURS
from batuta.gateway.ui.session import WebSession
from batuta.gateway.ui.usage_activity import UsageSpan, read_activity
from batuta.store import Store
from batuta.store.savings import list_savings, sum_savings
from batuta.store.spend_report import SpendGroup, report_spending
from batuta.usage import ZERO_COST

SPANS = (1, 7, 14, 30)
"""The selectable numbers of days; 1 means the latest 24 hours, shown by hour."""
LONGEST_TABLE = 20
"""Maximum number of rows of a table."""
MOST_CHOSEN = 50
"""Maximum number of values that can be selected in a column."""
MOST_BARS = 200
"""Maximum number of keys whose budgets are shown."""
MOST_HELD = 40
"""Maximum number of budgets shown with the amount that running requests have reserved."""
_TABLES = (
    ("model", "System"),
    ("worker", "Worker or conductor"),
    ("key", "Key"),
    ("session", "Session"),
)
_ADMIN_TABLES = (("tenant", "Tenant"), *_TABLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyCost:
    """The spending of a day or an hour, drawn as a bar."""

    day: str
    """The day or hour in UTC, as `2026-11-21` or `2026-11-21T14`."""
    cost: Cost
    share: float
    """The height of the bar, in per cent of the highest bar."""
    pieces: tuple[tuple[int, float, float], ...] = ()
    """The segments of the bar from bottom to top: colour, lower end and height in per cent."""


@dataclass(frozen=True, slots=True)
class SpendTable:
    """Spending by one column, whose title is `name`, the highest first."""

    name: str
    rows: Sequence[tuple[str, SpendGroup]]
    """The shown groups, each after its display name."""
    others: int
    """Number of groups that are not among the rows."""
    _: KW_ONLY
    column: str
    """The query parameter that selects values of the column."""
    choices: Sequence[tuple[str, str]]
    """The selectable values with their display names."""


@final
class UsagePage:
    """Serves /ui/usage; a tenant sees only its own spending."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show the spending of the latest days, the largest spenders, and the budgets.

        Raises:
            APIError: there is no store, or a query parameter is invalid.
        """
        store = require_part(self._store, "This server keeps no runs.")
        days_asked = request.query_params.get("days") or str(SPANS[2])
        if days_asked not in {str(days) for days in SPANS}:
            raise invalid_value("days", f"it must be one of {', '.join(map(str, SPANS))}.")
        tenant, now = session.tenant, time.time()
        tables = _ADMIN_TABLES if tenant is None else _TABLES
        only = _read_choice(request, [column for column, _ in tables])
        span = UsageSpan.of(int(days_asked), now)
        within = {**only, span.unit: span.marks}
        spent = await report_spending(
            store.database, (span.unit, "model"), tenant=tenant, since=span.first_day, only=within
        )
        shown = [
            await _spend_table(store, each, tenant, since=span.first_day, only=within)
            for each in tables
        ]
        return render_page(
            request,
            "usage.html.jinja",
            session=session,
            days=daily_costs(span.marks, spent),
            systems=_coloured_systems(spent),
            saving=await sum_savings(store.database, tenant=tenant, since=span.since),
            sessions=await list_savings(
                store.database, LONGEST_TABLE, tenant=tenant, since=span.since
            ),
            span=span,
            spans=SPANS,
            tables=shown,
            only=only,
            bars=await _list_bars(store, now, tenant),
            activity=await read_activity(store, span, tenant, models=only["model"]),
        )


async def _spend_table(
    store: Store,
    column: tuple[str, str],
    tenant: str | None,
    *,
    since: str,
    only: Mapping[str, Sequence[str]],
) -> SpendTable:
    """Return the spending by a column, given as its name in the ledger and its title."""
    group, title = column
    database = store.database
    found = await report_spending(database, (group,), tenant=tenant, since=since, only=only)
    others = {name: values for name, values in only.items() if name != group}
    every = await report_spending(database, (group,), tenant=tenant, since=since, only=others)
    choices = [(value, await _name_of(store, group, value)) for value in _order_values(every)]
    ordered = sorted(found, key=lambda each: -each.cost.usd)
    rows = [
        (await _name_of(store, group, each.group[0] or ""), each)
        for each in ordered[:LONGEST_TABLE]
    ]
    return SpendTable(title, rows, len(ordered[LONGEST_TABLE:]), column=group, choices=choices)


def _read_choice(request: Request, columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the values selected in each column; an empty list selects all.

    Raises:
        APIError: too many values of a column are selected.
    """
    only = {name: [v for v in request.query_params.getlist(name) if v] for name in columns}
    for name, values in only.items():
        if len(values) > MOST_CHOSEN:
            raise invalid_value(name, f"select at most {MOST_CHOSEN} values.")
    return only


def _order_values(groups: Sequence[SpendGroup]) -> list[str]:
    """Return the selectable values, those with the highest spending first."""
    ordered = sorted(groups, key=lambda each: -each.cost.usd)
    return [each.group[0] for each in ordered[:MOST_CHOSEN] if each.group[0]]


async def _name_of(store: Store, group: str, value: str) -> str:
    """Return the name of a key, else the value itself; a dash if the value is empty."""
    key = await store.keys.find(value) if group == "key" and value else None
    return value or "–" if key is None else key.name


async def _list_bars(store: Store, now: float, tenant: str | None) -> list[BudgetBar]:
    """Return the budgets of visible active keys and of the keys' tenants, the most spent first.

    Only the first `MOST_HELD` show the amounts that running requests have reserved.
    """
    spent = await sum_accounts(store, now, tenant)
    keys = await store.keys.list(tenant, limit=MOST_BARS)
    tenants = {key.tenant.name: key.tenant for key in keys}
    bars = [bar for each in tenants.values() for bar in tenant_bars(each, spent)]
    bars += [bar for key in keys if key.state(now) == "active" for bar in key_bars(key, spent)]
    ordered = sorted(bars, key=lambda bar: -bar.share)
    return [*await add_held(store, ordered[:MOST_HELD], now), *ordered[MOST_HELD:]]


def daily_costs(days: Sequence[str], spent: Sequence[SpendGroup]) -> list[DailyCost]:
    """Return the bars of the days or hours.

    `spent` is the spending by day or hour, optionally also by system.
    """
    found: dict[str, list[SpendGroup]] = {day: [] for day in days}
    for each in spent:
        found.setdefault(each.group[0] or "", []).append(each)
    costs = {day: sum((each.cost for each in found[day]), ZERO_COST) for day in days}
    most = max(cost.usd for cost in costs.values()) or Decimal(1)
    systems = _coloured_systems(spent)

    def share(usd: Decimal) -> float:
        return float(100 * usd / most)

    return [
        DailyCost(
            day=day,
            cost=cost,
            share=share(cost.usd),
            pieces=_stack_pieces(found[day], systems, share),
        )
        for day, cost in costs.items()
    ]


def _coloured_systems(spent: Sequence[SpendGroup]) -> list[str]:
    """Return the systems drawn in their own colours, the most expensive first."""
    totals: dict[str, Decimal] = {}
    for each in spent:
        if len(each.group) > 1:
            name = each.group[1] or "–"
            totals[name] = totals.get(name, Decimal(0)) + each.cost.usd
    return sorted(totals, key=lambda name: (-totals[name], name))[: COLOURS - 1]


def _stack_pieces(
    spent: Sequence[SpendGroup], systems: Sequence[str], share: Callable[[Decimal], float]
) -> tuple[tuple[int, float, float], ...]:
    """Return the segments of a bar; the last colour is for all systems not in `systems`."""
    usd = [Decimal(0)] * COLOURS
    for each in spent:
        name = each.group[1] if len(each.group) > 1 else None
        usd[systems.index(name or "–") if (name or "–") in systems else -1] += each.cost.usd
    pieces: list[tuple[int, float, float]] = []
    below = 0.0
    for colour, amount in enumerate(usd):
        if amount:
            pieces.append((colour, below, share(amount)))
            below += share(amount)
    return tuple(pieces)
