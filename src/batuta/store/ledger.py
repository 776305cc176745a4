"""The cost of a run as ledger lines, who pays it, and the totals that budgets are checked against.

The ledger is exact: `usd` of a run's lines adds up to `run.cost.usd` to the last digit. Budgets
count in billionths of a dollar, each run rounded up. Budgets count a call of unknown price at an
assumed price, so that they limit such calls too.

Functions with a `connection` argument work in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from functools import cache, lru_cache
from math import floor
from typing import Any, NamedTuple

import orjson
from sqlalchemy import (
    BigInteger,
    Connection,
    Executable,
    bindparam,
    delete,
    insert,
    select,
    update,
)

from batuta.core import Cost, Reply, Run, RunId, ServerCall, Usage
from batuta.errors import StoreError
from batuta.store.codec import sql_text
from batuta.store.database import insert_statement
from batuta.store.hours import DAY_SECONDS
from batuta.store.models import RESERVATIONS, SPENDING
from batuta.usage import ZERO_COST, ZERO_USAGE, usage_cost

NANO_PER_USD = Decimal(1_000_000_000)
_MAX_INTEGER = 2**63 - 1
_MAX_CAP_USD = _MAX_INTEGER / NANO_PER_USD
_MAX_RUN_USD = 2**53 / NANO_PER_USD
"""Maximum dollars for a run: nine million, so that sums of billionths do not overflow."""

CONDUCTOR_KIND = "conductor"
WORKER_KIND = "worker"
TOOL_KIND = "tool"
"""A server tool that a model called: the calls and dollars of the tool alone."""
LOST_KIND = "lost"
"""A run that was lost with its process: one unpriced call, counted as the whole reservation."""
CUT_KIND = "cut"
"""The amount reserved for cancelled calls, beyond their estimated cost."""

AccountPeriod = tuple[str, str]
"""An account, such as `tenant:NAME` or `key:ID`, and a day or month in UTC."""


class Bucket(NamedTuple):
    """A budget: the maximum spending of an account in a period."""

    account: str
    """`tenant:NAME`, `key:ID`, `explore:MODEL`, or `shadow` for comparisons of answers."""
    period: str
    """`2026-11-21` or `2026-11`, in UTC."""
    cap: int
    """Billionths of a dollar."""

    @property
    def account_period(self) -> AccountPeriod:
        """The account and the period, without the cap."""
        return self.account, self.period


PeriodCaps = tuple[int | None, int | None]
"""Caps of an account per day and per month, in billionths of a dollar; None: no limit."""


def restored_bucket(account: str, period: str, caps: Mapping[str, PeriodCaps]) -> Bucket:
    """Return the bucket of a stored reservation, with the account's current cap.

    An account that is not in `caps`, or has None there, has no limit.
    """
    day, month = caps.get(account, (None, None))
    cap = month if period == utc_month(period) else day
    return Bucket(account, period, _MAX_INTEGER if cap is None else cap)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Money that a run may spend, reserved until the run is settled."""

    id: str
    nano: int
    """Billionths of a dollar that are reserved in each bucket."""
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCharge:
    """The payer of a run."""

    tenant: str = "local"
    key: str | None = None
    """The key's id; None: no key."""
    at: float | None = None
    """Time of booking, in seconds since the epoch; None: the run's start."""
    reservation: Reservation | None = None
    """The reservation that the run ends; None: the run has none."""
    counted: Decimal | None = None
    """Minimum dollars that budgets count for the run: a cancelled call whose cost the provider
    never reported counts as the amount reserved for it. None: no minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """The cost of the conductor, a worker or a tool in a run, or the rest that budgets count."""

    kind: str
    """`CONDUCTOR_KIND`, `WORKER_KIND`, `TOOL_KIND` or `CUT_KIND`."""
    name: str
    """The name of the conductor, worker or tool; empty for `CUT_KIND`."""
    usage: Usage
    cost: Cost
    assumed_usd: Decimal
    """Dollars that budgets count besides the cost, for unpriced and cancelled calls."""


def ledger_lines(run: Run, counted: Decimal | None = None) -> tuple[LedgerLine, ...]:
    """Return a line for the conductor, each worker and each tool; the sum is the run's cost.

    Args:
        run: the run.
        counted: minimum dollars that budgets count for it; a further line has the difference.
    """
    unknown = run.header.limits.unknown
    totals: dict[tuple[str, str], tuple[Usage, Cost, Decimal]] = {
        (CONDUCTOR_KIND, run.header.conductor): (ZERO_USAGE, ZERO_COST, Decimal(0))
    }
    for kind, name, usage, cost in _iterate_calls(run):
        before = totals.get((kind, name), (ZERO_USAGE, ZERO_COST, Decimal(0)))
        extra = usage_cost(usage, unknown).usd if cost.unpriced_calls else Decimal(0)
        totals[kind, name] = (before[0] + usage, before[1] + cost, before[2] + extra)
    for worker, call in _iterate_tool_calls(run):
        usage, cost, extra = totals[WORKER_KIND, worker]
        left = Cost(cost.usd - call.cost.usd, cost.unpriced_calls - call.cost.unpriced_calls)
        totals[WORKER_KIND, worker] = (usage, left, extra)
        before = totals.get((TOOL_KIND, call.name), (ZERO_USAGE, ZERO_COST, Decimal(0)))
        made = before[0] + Usage(calls=1)
        totals[TOOL_KIND, call.name] = (made, before[1] + call.cost, before[2])
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
    """Return dollars, at most `_MAX_RUN_USD`, as billionths, rounded up."""
    return int((min(usd, _MAX_RUN_USD) * NANO_PER_USD).to_integral_value(ROUND_CEILING))


def usd_cap_to_nano(usd: Decimal) -> int:
    """Return a cap in dollars as billionths, rounded down, at most 2^63 - 1."""
    return int(min(usd, _MAX_CAP_USD) * NANO_PER_USD)


def nano_to_usd(nano: int) -> Decimal:
    """Return billionths as dollars."""
    return Decimal(nano) / NANO_PER_USD


def budgeted_nano(lines: Iterable[LedgerLine]) -> int:
    """Return the billionths of a dollar that budgets count for a run."""
    return usd_to_nano(_budgeted_usd(lines))


def _budgeted_usd(lines: Iterable[LedgerLine]) -> Decimal:
    return sum((line.cost.usd + line.assumed_usd for line in lines), Decimal(0))


def utc_day(at: float) -> str:
    """Return the day of a time in seconds since the epoch, as `2026-11-21`, in UTC."""
    return _format_day(floor(at / DAY_SECONDS))


@lru_cache(maxsize=64)
def _format_day(day: int) -> str:
    return datetime.fromtimestamp(day * DAY_SECONDS, UTC).strftime("%Y-%m-%d")


def utc_month(day: str) -> str:
    """Return the month of a day, as `2026-11`."""
    return day[:7]


def charged_accounts(tenant: str, key: str | None) -> tuple[str, ...]:
    """Return the accounts that pay for a run: the tenant's, and the key's if there is a key."""
    return (f"tenant:{tenant}",) if key is None else (f"tenant:{tenant}", f"key:{key}")


def charged_periods(line: Mapping[str, Any]) -> list[AccountPeriod]:
    """Return the accounts and periods to which a ledger line is charged."""
    periods = (line["day"], utc_month(line["day"]))
    accounts = charged_accounts(line["tenant"], line["key"])
    return [(account, period) for account in accounts for period in periods]


def ledger_rows(
    run: Run, lines: Iterable[LedgerLine], charge: RunCharge, at: float
) -> list[dict[str, Any]]:
    """Return the lines as rows of the ledger."""
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


def _iterate_calls(run: Run) -> Iterator[tuple[str, str, Usage, Cost]]:
    """Yield kind, name, usage and cost of every call."""
    for round_ in run.rounds:
        for draft in round_.conductor_drafts:
            yield CONDUCTOR_KIND, run.header.conductor, draft.usage, draft.cost
        for step in round_.steps:
            for attempt in step.attempts:
                yield WORKER_KIND, attempt.worker, attempt.failure.usage, attempt.failure.cost
            yield WORKER_KIND, step.worker, step.result.usage, step.result.cost


def _iterate_tool_calls(run: Run) -> Iterator[tuple[str, ServerCall]]:
    """Yield every call of a server tool, after the worker that made the call in its reply."""
    for step in run.steps:
        if isinstance(step.result, Reply):
            for call in step.result.server_calls:
                yield step.worker, call


JOBS_OWNER = "jobs"
"""Owner of the reservations of background jobs, which belong to no process."""
LEASE_PREFIX = "lease-"
"""Prefix of the ids of rows that belong to a process and not to a run; see `leases`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveRequest:
    """A request for a reservation."""

    run_id: RunId
    tenant: str
    key: str | None
    """The key's id; None: no key."""
    model: str
    reservation: Reservation
    lasting: bool
    """True for a job's reservation, which outlives this process."""
    at: float
    """Time of booking, in seconds since the epoch."""

    def row(self, owner: str, nano: int, expires: float) -> dict[str, Any]:
        """Return the row of the reservation; a job's belongs to no process.

        Args:
            owner: the id of the process that makes the reservation.
            nano: billionths of a dollar that the row reserves.
            expires: seconds since the epoch.
        """
        return {
            "id": self.reservation.id,
            "run_id": self.run_id,
            "tenant": self.tenant,
            "key": self.key,
            "model": self.model,
            "buckets": encode_periods(self.reservation.buckets),
            "nano": nano,
            "created": self.at,
            "owner": JOBS_OWNER if self.lasting else owner,
            "expires": expires,
        }


def encode_periods(buckets: Iterable[Bucket]) -> str:
    """Return the accounts and periods as JSON, for a row."""
    return orjson.dumps([bucket.account_period for bucket in buckets]).decode()


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """The money that is spent and reserved in a budget."""

    bucket: Bucket
    spent: int
    """Billionths of a dollar."""
    reserved: int
    """Billionths of a dollar."""
    _: KW_ONLY
    holders: int = field(default=0, compare=False)
    """The number of unfinished runs with a reservation in this budget."""

    @property
    def remaining(self) -> int:
        """Billionths of a dollar that can still be reserved."""
        return max(0, self.bucket.cap - self.spent - self.reserved)


class BudgetFullError(Exception):
    """A bucket has too little money left; the transaction is rolled back."""

    def __init__(self, exhausted: BudgetStatus) -> None:
        super().__init__()
        self.exhausted = exhausted


def reserve_in_buckets(
    connection: Connection, sums: Mapping[Bucket, int], rows: list[dict[str, Any]]
) -> dict[Bucket, int]:
    """Reserve the sums, in sorted order of the buckets, and insert the reservations' rows.

    Returns:
        The billionths left in each bucket; the rows are locked until the transaction ends.

    Raises:
        BudgetFullError: a bucket has too little money left.
    """
    ordered = sorted(sums, key=lambda bucket: bucket.account_period)
    left = {bucket: reserve_in_bucket(connection, bucket, sums[bucket]) for bucket in ordered}
    connection.execute(_INSERT_RESERVATION, rows)
    return left


def grow_reservation(connection: Connection, held: Reservation, nano: int) -> None:
    """Enlarge a reservation by `nano`; lock its row before the buckets, to avoid deadlocks.

    Raises:
        StoreError: the reservation has ended.
        BudgetFullError: a bucket has too little money left.
    """
    mine = RESERVATIONS.c.id == held.id
    more = update(RESERVATIONS).where(mine).values(nano=RESERVATIONS.c.nano + nano)
    if connection.execute(more).rowcount != 1:
        raise StoreError("the run's reservation has ended: it was not renewed in time")
    for bucket in sorted(held.buckets, key=lambda bucket: bucket.account_period):
        reserve_in_bucket(connection, bucket, nano)


def reserve_in_bucket(connection: Connection, bucket: Bucket, nano: int) -> int:
    """Reserve by the statement that also checks the cap; return the billionths left.

    Raises:
        BudgetFullError: the bucket has too little money left.
    """
    if nano <= bucket.cap:
        values = {
            "its_account": bucket.account,
            "its_period": bucket.period,
            "its_nano": nano,
            "its_cap": bucket.cap,
        }
        totals = connection.execute(_reserve_statement(connection.dialect.name), values).first()
        if totals is not None:
            return bucket.cap - totals[0] - totals[1]
    raise BudgetFullError(read_budget_status(connection, bucket))


@cache
def _reserve_statement(dialect: str) -> Executable:
    """Return the statement that reserves if the cap allows; cached, as building it is slow."""
    values = insert_statement(dialect, SPENDING).values(
        account=bindparam("its_account"),
        period=bindparam("its_period"),
        spent=0,
        reserved=bindparam("its_nano"),
    )
    total = SPENDING.c.reserved + values.excluded.reserved
    fits = SPENDING.c.spent + total <= bindparam("its_cap", type_=BigInteger)
    return values.on_conflict_do_update(
        index_elements=["account", "period"], set_={"reserved": total}, where=fits
    ).returning(SPENDING.c.spent, SPENDING.c.reserved)


_INSERT_RESERVATION = insert(RESERVATIONS)


def settle_reservations(
    connection: Connection,
    reservations: tuple[str, ...],
    spent: Mapping[AccountPeriod, int],
    returned: Mapping[AccountPeriod, int] | None = None,
) -> None:
    """End reservations and add the spent amounts; an ended reservation is not released again.

    Args:
        connection: the caller's transaction.
        reservations: the ids of the reservations.
        spent: billionths by account and period.
        returned: amounts taken out of leases and no longer reserved, by account and period; None:
            none.
    """
    settle_rows(connection, take_rows(connection, reservations), spent, returned)


def take_rows(connection: Connection, reservations: tuple[str, ...]) -> list[dict[str, Any]]:
    """Delete the reservations with these ids, and return the deleted rows."""
    if not reservations:
        return []
    chosen = RESERVATIONS.c.id.in_(pad_ids(reservations))
    query = delete(RESERVATIONS).where(chosen).returning(RESERVATIONS)
    return [dict(row) for row in connection.execute(query).mappings()]


def settle_rows(
    connection: Connection,
    rows: list[dict[str, Any]],
    spent: Mapping[AccountPeriod, int],
    returned: Mapping[AccountPeriod, int] | None = None,
) -> None:
    """Release the amounts of deleted rows, and add the spent amounts; see `settle_reservations`."""
    changes = released_amounts(rows)
    for period, nano in (returned or {}).items():
        changes[period] = (0, changes.get(period, (0, 0))[1] - nano)
    for period, nano in spent.items():
        changes[period] = (nano, changes.get(period, (0, 0))[1])
    add_totals(connection, changes)


def pad_ids(ids: tuple[str, ...]) -> tuple[str, ...]:
    """Pad the ids to a power of two by repeating the last one.

    The database prepares and caches a separate statement for each number of ids.
    """
    size = 1 << (len(ids) - 1).bit_length()
    return ids + ids[-1:] * (size - len(ids))


def add_totals(connection: Connection, changes: dict[AccountPeriod, tuple[int, int]]) -> None:
    """Add (spent, reserved) to the totals, in sorted order to avoid deadlocks."""
    if not changes:
        return
    rows = [
        {"account": account, "period": period, "spent": spent, "reserved": reserved}
        for (account, period), (spent, reserved) in sorted(changes.items())
    ]
    connection.execute(_add_statement(connection.dialect.name), rows)


@cache
def _add_statement(dialect: str) -> Executable:
    """Return the statement that adds to the totals; cached, as building it is slow."""
    new = insert_statement(dialect, SPENDING)
    return new.on_conflict_do_update(
        index_elements=["account", "period"],
        set_={
            "spent": SPENDING.c.spent + new.excluded.spent,
            "reserved": SPENDING.c.reserved + new.excluded.reserved,
        },
    )


def read_budget_status(connection: Connection, bucket: Bucket) -> BudgetStatus:
    """Return the status of a tenant's or key's bucket."""
    query = select(SPENDING.c.spent, SPENDING.c.reserved).where(
        SPENDING.c.account == bucket.account, SPENDING.c.period == bucket.period
    )
    row = connection.execute(query).first()
    if row is None or not row[1]:
        return BudgetStatus(bucket, 0 if row is None else row[0], 0)
    return BudgetStatus(bucket, row[0], row[1], holders=_count_holders(connection, bucket))


def _count_holders(connection: Connection, bucket: Bucket) -> int:
    """Return the number of unfinished runs with a reservation in the bucket."""
    kind, _, name = bucket.account.partition(":")
    own = RESERVATIONS.c.tenant if kind == "tenant" else RESERVATIONS.c.key
    runs = ~RESERVATIONS.c.id.startswith(LEASE_PREFIX, autoescape=True)
    rows = connection.execute(select(RESERVATIONS.c.buckets).where(own == name, runs)).scalars()
    period = [bucket.account, bucket.period]
    return sum(period in orjson.loads(text) for text in rows)


def released_amounts(rows: list[dict[str, Any]]) -> dict[AccountPeriod, tuple[int, int]]:
    """Return the changes (spent, reserved) of totals that release the amounts of these rows."""
    changes: dict[AccountPeriod, tuple[int, int]] = {}
    for row in rows:
        for account, period in orjson.loads(row["buckets"]):
            changes[account, period] = (0, changes.get((account, period), (0, 0))[1] - row["nano"])
    return changes
