"""The running totals that budgets are checked against, and what is reserved of them.

All of it happens inside other people's transactions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
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

from batuta.errors import StoreError
from batuta.store.ledger import Bucket, Reservation, lost_row
from batuta.store.models import LEDGER, RESERVATIONS, SPENDING
from batuta.store.upsert import insert_statement


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A budget that has no room for a run."""

    bucket: Bucket
    spent: int
    reserved: int

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
    connection: Connection, sums: Counter[Bucket], rows: list[dict[str, Any]]
) -> None:
    """Sets the sums apart, in one order of the buckets, and writes down for whom.

    Raises:
        BudgetFullError: a bucket is too full.
    """
    for bucket in sorted(sums, key=lambda bucket: (bucket.account, bucket.period)):
        _reserve_in_bucket(connection, bucket, sums[bucket])
    connection.execute(_INSERT_RESERVATION, rows)


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
        _reserve_in_bucket(connection, bucket, nano)


def _reserve_in_bucket(connection: Connection, bucket: Bucket, nano: int) -> None:
    """The one statement that keeps the law.

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
        if (
            connection.execute(_reserve_statement(connection.dialect.name), values).first()
            is not None
        ):
            return
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
    lost = [row for row in rows if row["run_id"] not in billed]
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
    ).returning(SPENDING.c.spent)


_INSERT_RESERVATION = insert(RESERVATIONS)


def settle_reservations(
    connection: Connection, reservations: tuple[str, ...], spent: dict[tuple[str, str], int]
) -> None:
    """Ends reservations and adds what was spent, in the caller's transaction.

    A reservation is given back once, however often this is repeated.
    """
    rows: list[dict[str, Any]] = []
    if reservations:
        chosen = RESERVATIONS.c.id.in_(_pad_ids(reservations))
        query = delete(RESERVATIONS).where(chosen).returning(RESERVATIONS)
        rows = [dict(row) for row in connection.execute(query).mappings()]
    changes = released_amounts(rows)
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
    return BudgetStatus(bucket, 0, 0) if row is None else BudgetStatus(bucket, row[0], row[1])


def released_amounts(rows: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """What the rows of reservations held, as changes."""
    changes: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        for account, period in orjson.loads(row["buckets"]):
            changes[account, period] = (0, changes.get((account, period), (0, 0))[1] - row["nano"])
    return changes
