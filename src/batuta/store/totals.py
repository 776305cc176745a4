"""The running totals that budgets are checked against, inside other people's transactions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
from sqlalchemy import Connection, Executable, delete, select

from batuta.store.ledger import Bucket
from batuta.store.models import RESERVATIONS, SPENDING
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
