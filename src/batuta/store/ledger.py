"""The cost of a run, line by line, and who pays it. Pure.

The ledger is exact: `usd` of a run's lines adds up to `run.cost.usd` to the last digit. Budgets
count in billionths of a dollar, each run rounded up, and count a call whose price nobody knows
at an assumed one, so that a budget binds there too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from math import floor
from typing import Any

from batuta.core import Cost, Run, Usage
from batuta.store.codec import sql_text
from batuta.usage import ZERO_COST, ZERO_USAGE, usage_cost

NANO = Decimal(1_000_000_000)
_MAX_INTEGER = 2**63 - 1
_DAY_SECONDS = 86_400
_MAX_RUN_NANO = 2**53
"""Billionths that one run counts as at most: nine million dollars, far from overflowing sums."""

CONDUCTOR_KIND = "conductor"
WORKER_KIND = "worker"
LOST_KIND = "lost"
"""A run whose process died: what it cost is not known, and is counted as one unpriced call."""
CUT_KIND = "cut"
"""The amount reserved for calls that were cut off, beyond their estimated cost."""
LOST_LINE_NUMBER = -1
"""The line number of a lost run; if it is executed again after all it keeps its own lines."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A budget: what an account may spend in a period."""

    account: str
    """`tenant:<name>` or `key:<id>`."""
    period: str
    """`2026-11-21` or `2026-11`, in UTC."""
    cap: int
    """Billionths of a dollar."""


PeriodCaps = tuple[int | None, int | None]
"""The most an account may spend in a day and in a month, in billionths; None: no limit."""


def restored_bucket(account: str, period: str, caps: Mapping[str, PeriodCaps]) -> Bucket:
    """Return the bucket that was stored with a reservation, with the cap that it has now."""
    day, month = caps.get(account, (None, None))
    cap = month if period == utc_month(period) else day
    return Bucket(account, period, _MAX_INTEGER if cap is None else cap)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Money that a run may spend, set apart until the run is settled."""

    id: str
    nano: int
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCharge:
    """The payer of a run."""

    tenant: str = "local"
    key: str | None = None
    """The key's id."""
    at: float | None = None
    """Time of booking, in seconds since the epoch; None for the run's beginning."""
    reservation: Reservation | None = None
    counted: Decimal | None = None
    """Dollars that budgets count for it at least: a call that was cut off and whose provider never
    stated a cost counts as the amount reserved for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """The cost of one worker, or of the conductor, in a run."""

    kind: str
    name: str
    usage: Usage
    cost: Cost
    assumed_usd: Decimal
    """Dollars that budgets count beside the cost, for unpriced calls and for those cut off."""


def ledger_lines(run: Run, counted: Decimal | None = None) -> tuple[LedgerLine, ...]:
    """Return the conductor's line, then each worker's; their dollars add up to the run's.

    Args:
        run: what was run.
        counted: dollars that budgets count it as at least; what is missing to them has a line.
    """
    unknown = run.header.limits.unknown
    totals: dict[tuple[str, str], tuple[Usage, Cost, Decimal]] = {
        (CONDUCTOR_KIND, run.header.conductor): (ZERO_USAGE, ZERO_COST, Decimal(0))
    }
    for kind, name, usage, cost in _iterate_calls(run):
        before = totals.get((kind, name), (ZERO_USAGE, ZERO_COST, Decimal(0)))
        extra = usage_cost(usage, unknown).usd if cost.unpriced_calls else Decimal(0)
        totals[kind, name] = (before[0] + usage, before[1] + cost, before[2] + extra)
    lines = tuple(
        LedgerLine(kind=kind, name=name, usage=usage, cost=cost, assumed_usd=extra)
        for (kind, name), (usage, cost, extra) in totals.items()
    )
    missing = (counted or Decimal(0)) - _budgeted_usd(lines)
    if missing <= 0:
        return lines
    cut = LedgerLine(kind=CUT_KIND, name="", usage=ZERO_USAGE, cost=ZERO_COST, assumed_usd=missing)
    return (*lines, cut)


def usd_to_nano(usd: Decimal) -> int:
    """The dollars in billionths, rounded up."""
    return min(int((usd * NANO).to_integral_value(ROUND_CEILING)), _MAX_RUN_NANO)


def usd_cap_to_nano(usd: Decimal) -> int:
    """A cap in billionths, rounded down."""
    return min(int(usd * NANO), _MAX_INTEGER)


def nano_to_usd(nano: int) -> Decimal:
    """Billionths as dollars."""
    return Decimal(nano) / NANO


def budgeted_nano(lines: Iterable[LedgerLine]) -> int:
    """Return the billionths of a dollar that budgets count for a run."""
    return usd_to_nano(_budgeted_usd(lines))


def _budgeted_usd(lines: Iterable[LedgerLine]) -> Decimal:
    return sum((line.cost.usd + line.assumed_usd for line in lines), Decimal(0))


def utc_day(at: float) -> str:
    """The day in UTC."""
    return _format_day(floor(at / _DAY_SECONDS))


@lru_cache(maxsize=64)
def _format_day(day: int) -> str:
    return datetime.fromtimestamp(day * _DAY_SECONDS, UTC).strftime("%Y-%m-%d")


def utc_month(day: str) -> str:
    """The month of a day."""
    return day[:7]


def charged_accounts(tenant: str, key: str | None) -> tuple[str, ...]:
    """The accounts that a run of that key is counted to."""
    return (f"tenant:{tenant}",) if key is None else (f"tenant:{tenant}", f"key:{key}")


def ledger_rows(
    run: Run, lines: Iterable[LedgerLine], charge: RunCharge, at: float
) -> list[dict[str, Any]]:
    """The lines as rows of the ledger."""
    return [
        {
            "run_id": sql_text(run.id),
            "line": number,
            "tenant": charge.tenant,
            "key": charge.key,
            "at": at,
            "day": utc_day(at),
            "model": sql_text(run.header.model),
            "kind": line.kind,
            "name": sql_text(line.name),
            "calls": min(line.usage.calls, _MAX_INTEGER),
            "input_tokens": min(line.usage.input, _MAX_INTEGER),
            "output_tokens": min(line.usage.output, _MAX_INTEGER),
            "estimated_calls": min(line.usage.estimated, _MAX_INTEGER),
            "usd": line.cost.usd,
            "unpriced_calls": min(line.cost.unpriced_calls, _MAX_INTEGER),
            "assumed_usd": line.assumed_usd,
        }
        for number, line in enumerate(lines)
    ]


def lost_row(reservation: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a run that never came to its end, from its reservation's row."""
    return {
        "run_id": reservation["run_id"],
        "line": LOST_LINE_NUMBER,
        "tenant": reservation["tenant"],
        "key": reservation["key"],
        "at": reservation["created"],
        "day": utc_day(reservation["created"]),
        "model": reservation["model"],
        "kind": LOST_KIND,
        "name": "",
        "calls": 1,
        "input_tokens": 0,
        "output_tokens": 0,
        "estimated_calls": 0,
        "usd": Decimal(0),
        "unpriced_calls": 1,
        "assumed_usd": Decimal(0),
    }


def _iterate_calls(run: Run) -> Iterator[tuple[str, str, Usage, Cost]]:
    """Every call that was made, by whom."""
    for round_ in run.rounds:
        for draft in round_.conductor_drafts:
            yield CONDUCTOR_KIND, run.header.conductor, draft.usage, draft.cost
        for step in round_.steps:
            for attempt in step.attempts:
                yield WORKER_KIND, attempt.worker, attempt.failure.usage, attempt.failure.cost
            yield WORKER_KIND, step.worker, step.result.usage, step.result.cost
