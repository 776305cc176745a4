"""The spent share of each budget, for the bars on the usage screen and on the screen of keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from batuta.gateway.serving.reserved_budget import describe_held
from batuta.store import Store
from batuta.store.keys import ApiKey, Tenant
from batuta.store.ledger import Bucket, usd_to_nano, utc_day
from batuta.store.spend_report import report_spending

WARN_PERCENT = 80
"""Minimum spent percentage at which a budget's bar shows a warning."""
_WHOLE = 100

Spent = Mapping[tuple[str, str], Decimal]
"""Dollars by account (`key:ID`, `tenant:NAME`) and period (`day`, `month`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetBar:
    """The spending of one budget in the current day or month."""

    name: str
    period: str
    """`day` or `month`, in UTC."""
    spent: Decimal
    """Dollars, with calls of unknown price counted at the assumed price."""
    cap: Decimal
    """The budget in dollars."""
    account: str = ""
    """`key:ID` or `tenant:NAME`."""
    held: str = ""
    """The part reserved by running requests, in words; empty if nothing is, or it was not read."""

    @property
    def share(self) -> float:
        """The spent percentage, at most 100; 100 for a budget of 0 dollars."""
        return min(float(_WHOLE * self.spent / self.cap), _WHOLE) if self.cap else _WHOLE

    @property
    def state(self) -> str:
        """`good`, `warn` if little is left, or `bad` if nothing is left."""
        return "bad" if self.share >= _WHOLE else "warn" if self.share >= WARN_PERCENT else "good"


async def sum_accounts(store: Store, now: float, tenant: str | None) -> Spent:
    """Return the spending of each key and each tenant today and this month, in UTC.

    `tenant` restricts this to one tenant; None means all.
    """
    spent: dict[tuple[str, str], Decimal] = {}
    day = utc_day(now)
    for period, since in (("day", day), ("month", f"{day[:7]}-01")):
        for kind in ("key", "tenant"):
            found = await report_spending(store.database, (kind,), tenant=tenant, since=since)
            for each in found:
                spent[f"{kind}:{each.group[0]}", period] = each.cost.usd + each.assumed_usd
    return spent


async def add_held(store: Store, bars: Sequence[BudgetBar], now: float) -> list[BudgetBar]:
    """Return the bars with the amounts that running requests have reserved."""
    day = utc_day(now)
    buckets = [
        Bucket(bar.account, day if bar.period == "day" else day[:7], usd_to_nano(bar.cap))
        for bar in bars
    ]
    found = await store.budgets.budget_status(buckets)
    return [
        replace(bar, held=describe_held(status)) for bar, status in zip(bars, found, strict=True)
    ]


def key_bars(key: ApiKey, spent: Spent) -> list[BudgetBar]:
    """Return a bar for each budget of the key."""
    policy = key.permissions
    return list(_make_bars(key.name, f"key:{key.id}", (policy.per_day, policy.per_month), spent))


def tenant_bars(tenant: Tenant, spent: Spent) -> list[BudgetBar]:
    """Return a bar for each budget of the tenant."""
    caps = tenant.per_day, tenant.per_month
    return list(_make_bars(tenant.name, f"tenant:{tenant.name}", caps, spent))


def _make_bars(
    name: str, account: str, caps: Sequence[Decimal | None], spent: Spent
) -> Iterable[BudgetBar]:
    for period, cap in zip(("day", "month"), caps, strict=True):
        if cap is not None:
            used = spent.get((account, period), Decimal(0))
            yield BudgetBar(name=name, period=period, spent=used, cap=cap, account=account)
