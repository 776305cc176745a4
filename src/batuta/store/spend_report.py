"""Exact spending from the ledger, by day, tenant, key, model, worker, session and more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, literal, select

from batuta.core import Cost
from batuta.store.codec import sql_text
from batuta.store.database import Database
from batuta.store.hours import hour_of
from batuta.store.models import LEDGER, RUNS

SPEND_GROUPS = {
    "day": LEDGER.c.day,
    "hour": hour_of(LEDGER.c.at).label("hour"),
    "month": func.substr(LEDGER.c.day, 1, 7).label("month"),
    "tenant": LEDGER.c.tenant,
    "key": LEDGER.c.key,
    "model": LEDGER.c.model,
    "kind": LEDGER.c.kind,
    "worker": LEDGER.c.name.label("worker"),
    "session": RUNS.c.session,
}
"""Columns by which spending can be grouped.

`worker` is the name of the conductor or tool in lines of these kinds, and empty in lines of lost
runs and cancelled calls. `session` is None for a run without a session and for a run that is not
stored any more. Hours, days and months are in UTC.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendGroup:
    """The spending of one group."""

    group: tuple[str | None, ...]
    """The values of the group, in the order of the requested names; None: no key or session."""
    runs: int
    """Number of runs; a lease that was lost with its process counts as one."""
    calls: int
    input_tokens: int
    output_tokens: int
    estimated_calls: int
    """The part of `calls` with estimated tokens."""
    cost: Cost
    """Dollars, and the number of calls of unknown price, including lost runs."""
    assumed_usd: Decimal
    """Dollars that budgets count besides the cost, for unpriced, cancelled or lost calls."""


async def report_spending(
    database: Database,
    by: Sequence[str] = ("day",),
    *,
    tenant: str | None = None,
    since: str | None = None,
    until: str | None = None,
    only: Mapping[str, Collection[str]] | None = None,
) -> list[SpendGroup]:
    """Return the groups, ordered by their values.

    Args:
        database: the store's database.
        by: names to group by; see `SPEND_GROUPS`.
        tenant: only that tenant's spending; None: all.
        since: the first day, as `2026-11-21`; None: no limit.
        until: the last day, in the same form; None: no limit.
        only: allowed values by a name of `SPEND_GROUPS`; a name without values allows all. None:
            everything is allowed.

    Raises:
        ValueError: a name of `by` or `only` is not in `SPEND_GROUPS`.
    """
    chosen = {name: values for name, values in (only or {}).items() if values}
    for name in (*by, *chosen):
        if name not in SPEND_GROUPS:
            raise ValueError(f"spending cannot be grouped by {name}: use {', '.join(SPEND_GROUPS)}")
    within = [
        test
        for value, test in (
            (tenant, LEDGER.c.tenant == sql_text(tenant or "")),
            (since, LEDGER.c.day >= sql_text(since or "")),
            (until, LEDGER.c.day <= sql_text(until or "")),
        )
        if value is not None
    ]
    within += [
        SPEND_GROUPS[name].in_([sql_text(value) for value in values])
        for name, values in chosen.items()
    ]

    def report(connection: Connection) -> list[SpendGroup]:
        columns = [SPEND_GROUPS[name] for name in by]
        sums = _sum_query(columns, connection.dialect.name)
        counted = func.count(LEDGER.c.run_id.distinct()).label("runs")
        runs = select(*columns, counted).group_by(*columns)
        if "session" in {*by, *chosen}:
            lines = LEDGER.outerjoin(RUNS, RUNS.c.id == LEDGER.c.run_id)
            sums, runs = sums.select_from(lines), runs.select_from(lines)
        return _sum_groups(
            connection.execute(sums.where(*within)).mappings(),
            connection.execute(runs.where(*within)).mappings(),
            by,
        )

    return await database.run_read(report)


def _sum_query(columns: Sequence[ColumnElement[Any]], dialect: str) -> Select[Any]:
    """Return the query that sums each group.

    For SQLite, each group has a row for each distinct amount of dollars, with the number of ledger
    lines of this amount as `lines`.
    """
    sums = [func.sum(LEDGER.c[name]).label(name) for name in _SUM_COLUMNS]
    if dialect != "sqlite":  # PostgreSQL's NUMERIC sums exactly
        money = [func.sum(LEDGER.c[name]).label(name) for name in _MONEY_COLUMNS]
        return select(*columns, *money, literal(1).label("lines"), *sums).group_by(*columns)
    # SQLite would sum as floats, so it only counts equal amounts; `_sum_groups` adds the amounts.
    money = [LEDGER.c[name] for name in _MONEY_COLUMNS]
    return select(*columns, *money, func.count().label("lines"), *sums).group_by(*columns, *money)


_MONEY_COLUMNS = ("usd", "assumed_usd")
_SUM_COLUMNS = ("calls", "input_tokens", "output_tokens", "estimated_calls", "unpriced_calls")


def _sum_groups(
    rows: Iterable[Mapping[Any, Any]], counted: Iterable[Mapping[Any, Any]], by: Sequence[str]
) -> list[SpendGroup]:
    """Return the groups, with the rows of each summed as decimals."""
    runs = {tuple(row[name] for name in by): int(row["runs"]) for row in counted}
    sums: dict[tuple[str | None, ...], dict[str, Any]] = {}
    for row in rows:
        group = tuple(row[name] for name in by)
        total = sums.setdefault(
            group, {"usd": Decimal(0), "assumed_usd": Decimal(0), **dict.fromkeys(_SUM_COLUMNS, 0)}
        )
        for name in _MONEY_COLUMNS:
            total[name] += row[name] * row["lines"]
        for name in _SUM_COLUMNS:
            total[name] += int(row[name])
    return [
        SpendGroup(
            group=group,
            runs=runs.get(group, 0),  # a run deleted between the two queries changes its group
            calls=total["calls"],
            input_tokens=total["input_tokens"],
            output_tokens=total["output_tokens"],
            estimated_calls=total["estimated_calls"],
            cost=Cost(total["usd"], total["unpriced_calls"]),
            assumed_usd=total["assumed_usd"],
        )
        for group, total in sorted(sums.items(), key=lambda item: tuple(n or "" for n in item[0]))
    ]


def spend_group_json(groups: Sequence[str], item: SpendGroup) -> dict[str, Any]:
    """Return the group as JSON values, with money as strings."""
    return {
        **dict(zip(groups, item.group, strict=True)),
        "runs": item.runs,
        "calls": item.calls,
        "input_tokens": item.input_tokens,
        "output_tokens": item.output_tokens,
        "estimated_calls": item.estimated_calls,
        "usd": f"{item.cost.usd:f}",
        "unpriced_calls": item.cost.unpriced_calls,
        "assumed_usd": f"{item.assumed_usd:f}",
    }
