"""The running totals that budgets are checked against, and what is reserved of them.

All of it happens inside other people's transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from typing import Any

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

from batuta.core import RunId
from batuta.errors import StoreError
from batuta.store.ledger import Bucket, Reservation, lost_row
from batuta.store.models import LEDGER, RESERVATIONS, SPENDING
from batuta.store.upsert import insert_statement

JOBS_OWNER = "jobs"
"""Owner of reservations that no process renews."""
LEASE_PREFIX = "lease-"
"""Beginning of the ids of rows that a process holds and not a run: see `leases`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveRequest:
    """A reservation that somebody waits for."""

    run_id: RunId
    tenant: str
    key: str | None
    model: str
    wanted: Reservation
    lasting: bool
    """True if it outlives this process."""
    at: float

    def row(self, owner: str, nano: int, expires: float) -> dict[str, Any]:
        """Return its row, in which that process holds that much."""
        return {
            "id": self.wanted.id,
            "run_id": self.run_id,
            "tenant": self.tenant,
            "key": self.key,
            "model": self.model,
            "buckets": encode_places(self.wanted.buckets),
            "nano": nano,
            "created": self.at,
            "owner": JOBS_OWNER if self.lasting else owner,
            "expires": expires,
        }


def encode_places(buckets: Iterable[Bucket]) -> str:
    """Return the accounts and periods as a row keeps them."""
    return orjson.dumps([(bucket.account, bucket.period) for bucket in buckets]).decode()


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A budget that has no room for a run."""

    bucket: Bucket
    spent: int
    reserved: int
    _: KW_ONLY
    holders: int = field(default=0, compare=False)
    """The number of unfinished runs that have reserved a part of it."""

    @property
    def remaining(self) -> int:
        """Billionths of a dollar that can still be reserved."""
        return max(0, self.bucket.cap - self.spent - self.reserved)


class BudgetFullError(Exception):
    """A bucket is too full; the transaction is undone."""

    def __init__(self, exhausted: BudgetStatus) -> None:
        super().__init__()
        self.exhausted = exhausted


def reserve_in_buckets(
    connection: Connection, sums: Mapping[Bucket, int], rows: list[dict[str, Any]]
) -> dict[Bucket, int]:
    """Sets the sums apart, in one order of the buckets, and writes down for whom.

    Returns:
        What is left of each bucket; nobody else changes that before the transaction has ended.

    Raises:
        BudgetFullError: a bucket is too full.
    """
    ordered = sorted(sums, key=lambda bucket: (bucket.account, bucket.period))
    left = {bucket: reserve_in_bucket(connection, bucket, sums[bucket]) for bucket in ordered}
    connection.execute(_INSERT_RESERVATION, rows)
    return left


def grow_reservation(connection: Connection, held: Reservation, nano: int) -> None:
    """Adds to a reservation, which is locked first as where it ends.

    Raises:
        StoreError: it has ended.
        BudgetFullError: a bucket is too full.
    """
    mine = RESERVATIONS.c.id == held.id
    more = update(RESERVATIONS).where(mine).values(nano=RESERVATIONS.c.nano + nano)
    if connection.execute(more).rowcount != 1:
        raise StoreError("what was reserved for the run has ended with its lease")
    for bucket in sorted(held.buckets, key=lambda bucket: (bucket.account, bucket.period)):
        reserve_in_bucket(connection, bucket, nano)


def reserve_in_bucket(connection: Connection, bucket: Bucket, nano: int) -> int:
    """Reserve by the one statement that keeps the law, and return what is left.

    Raises:
        BudgetFullError: the bucket is too full.
    """
    if nano <= bucket.cap:
        values = {
            "its_account": bucket.account,
            "its_period": bucket.period,
            "its_nano": nano,
            "its_cap": bucket.cap,
        }
        found = connection.execute(_reserve_statement(connection.dialect.name), values).first()
        if found is not None:
            return bucket.cap - found[0] - found[1]
    raise BudgetFullError(read_budget_status(connection, bucket))


def end_reservations(connection: Connection, dead: Any) -> list[dict[str, Any]]:
    """Gives back what the dead hold, and writes down that their runs were lost.

    Returns:
        The rows of those runs; a run that is billed already is none.
    """
    query = delete(RESERVATIONS).where(dead).returning(RESERVATIONS)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    add_totals(connection, released_amounts(rows))
    its = LEDGER.c.run_id.in_([row["run_id"] for row in rows])
    billed = set(connection.execute(select(LEDGER.c.run_id).where(its)).scalars()) if rows else ()
    lost = list({row["run_id"]: row for row in rows if row["run_id"] not in billed}.values())
    if lost:
        statement = insert_statement(connection.dialect.name, LEDGER).on_conflict_do_nothing()
        connection.execute(statement, [lost_row(row) for row in lost])
    return lost


@cache
def _reserve_statement(dialect: str) -> Executable:
    """Adds to what is reserved if that fits; built once, for building costs more than running."""
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
    spent: dict[tuple[str, str], int],
    returned: Mapping[tuple[str, str], int] | None = None,
) -> None:
    """Ends reservations and adds what was spent, in the caller's transaction.

    A reservation is given back once, however often this is repeated.

    Args:
        connection: in whose transaction it is.
        reservations: the ids of those that end.
        spent: billionths by account and period.
        returned: what was taken out of leases, and is reserved no longer.
    """
    rows: list[dict[str, Any]] = []
    if reservations:
        chosen = RESERVATIONS.c.id.in_(_pad_ids(reservations))
        query = delete(RESERVATIONS).where(chosen).returning(RESERVATIONS)
        rows = [dict(row) for row in connection.execute(query).mappings()]
    changes = released_amounts(rows)
    for place, nano in (returned or {}).items():
        changes[place] = (0, changes.get(place, (0, 0))[1] - nano)
    for place, nano in spent.items():
        changes[place] = (nano, changes.get(place, (0, 0))[1])
    add_totals(connection, changes)


def _pad_ids(ids: tuple[str, ...]) -> tuple[str, ...]:
    """The ids, the last one repeated up to a power of two.

    Each number of ids is a statement of its own, which the database prepares and keeps.
    """
    size = 1 << (len(ids) - 1).bit_length()
    return ids + ids[-1:] * (size - len(ids))


def add_totals(connection: Connection, changes: dict[tuple[str, str], tuple[int, int]]) -> None:
    """Adds (spent, reserved) to accounts' periods; in one order, so that no two wait in a ring."""
    if not changes:
        return
    rows = [
        {"account": account, "period": period, "spent": spent, "reserved": reserved}
        for (account, period), (spent, reserved) in sorted(changes.items())
    ]
    connection.execute(_add_statement(connection.dialect.name), rows)


@cache
def _add_statement(dialect: str) -> Executable:
    """Adds to what is there; built once, for building costs more than running."""
    new = insert_statement(dialect, SPENDING)
    return new.on_conflict_do_update(
        index_elements=["account", "period"],
        set_={
            "spent": SPENDING.c.spent + new.excluded.spent,
            "reserved": SPENDING.c.reserved + new.excluded.reserved,
        },
    )


def read_budget_status(connection: Connection, bucket: Bucket) -> BudgetStatus:
    """How full the bucket is."""
    query = select(SPENDING.c.spent, SPENDING.c.reserved).where(
        SPENDING.c.account == bucket.account, SPENDING.c.period == bucket.period
    )
    row = connection.execute(query).first()
    if row is None or not row[1]:
        return BudgetStatus(bucket, 0 if row is None else row[0], 0)
    return BudgetStatus(bucket, row[0], row[1], holders=_count_holders(connection, bucket))


def _count_holders(connection: Connection, bucket: Bucket) -> int:
    """Runs that go on and have reserved something of the bucket."""
    kind, _, name = bucket.account.partition(":")
    own = RESERVATIONS.c.tenant if kind == "tenant" else RESERVATIONS.c.key
    runs = ~RESERVATIONS.c.id.startswith(LEASE_PREFIX, autoescape=True)
    rows = connection.execute(select(RESERVATIONS.c.buckets).where(own == name, runs)).scalars()
    place = [bucket.account, bucket.period]
    return sum(place in orjson.loads(text) for text in rows)


def released_amounts(rows: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """What the rows of reservations held, as changes."""
    changes: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        for account, period in orjson.loads(row["buckets"]):
            changes[account, period] = (0, changes.get((account, period), (0, 0))[1] - row["nano"])
    return changes
