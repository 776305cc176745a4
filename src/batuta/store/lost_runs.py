"""Runs of dead processes and abandoned jobs: their reservations count as spent.

The provider may bill the calls of such a run. Each lost run's row becomes a line of the ledger.
Money in a lease of the dead process may have been given to runs, but no process knows to which, so
this money counts as spent too. If a lost run ends after all, because its process only slept or its
job was resumed, a second line reverses the first.

Functions here work in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, delete, insert, select

from batuta.store.database import insert_statement
from batuta.store.ledger import (
    LEASE_PREFIX,
    LOST_KIND,
    AccountPeriod,
    add_totals,
    charged_periods,
    nano_to_usd,
    pad_ids,
    released_amounts,
    usd_to_nano,
    utc_day,
)
from batuta.store.models import LEDGER, RESERVATIONS

LOST_LINE_NUMBER = -1
"""The line number of a lost run or lease."""
FOUND_LINE_NUMBER = -2
"""The line number of the reversal of a lost run's line."""


def end_reservations(connection: Connection, condition: Any) -> list[dict[str, Any]]:
    """End the reservations that meet the condition, as spent, and record the runs as lost.

    Returns:
        The new ledger lines. A run that is already in the ledger gets no line; its reservation is
        only released.
    """
    query = delete(RESERVATIONS).where(condition).returning(RESERVATIONS)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    leases = [row for row in rows if _is_lease(row)]
    runs = _drop_billed(connection, [row for row in rows if not _is_lease(row)])
    spent = [
        (period, row["nano"]) for row in runs for period in charged_periods(_lost_line(row, 0))
    ]
    spent += [
        ((account, period), row["nano"])
        for row in leases
        for account, period in orjson.loads(row["buckets"])
    ]
    changes = released_amounts(rows)
    for period, nano in spent:
        before = changes.get(period, (0, 0))
        changes[period] = (before[0] + nano, before[1])
    add_totals(connection, changes)
    lines = [*_run_lines(runs), *_lease_lines(leases)]
    if lines:
        statement = insert_statement(connection.dialect.name, LEDGER).on_conflict_do_nothing()
        connection.execute(statement, lines)
    return lines


def take_back_lost(connection: Connection, runs: Collection[str]) -> dict[AccountPeriod, int]:
    """Reverse the lines of runs that were recorded as lost.

    Returns:
        Billionths that count as spent for these runs and must be subtracted, by account and period.
    """
    was_lost = (LEDGER.c.run_id.in_(pad_ids(tuple(runs))), LEDGER.c.line == LOST_LINE_NUMBER)
    rows = connection.execute(select(LEDGER).where(*was_lost)).mappings()
    lines = [dict(row) for row in rows]
    negated = ("calls", "unpriced_calls", "assumed_usd")
    back = [
        {**line, "line": FOUND_LINE_NUMBER, **{name: -line[name] for name in negated}}
        for line in lines
    ]
    if back:
        connection.execute(insert(LEDGER), back)
    counted = dict[AccountPeriod, int]()
    for line in lines:
        for period in charged_periods(line):
            counted[period] = counted.get(period, 0) + usd_to_nano(line["assumed_usd"])
    return counted


def _is_lease(row: Mapping[str, Any]) -> bool:
    return row["id"].startswith(LEASE_PREFIX)


def _drop_billed(connection: Connection, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the reservations of runs that are not in the ledger."""
    if not rows:
        return []
    chosen = LEDGER.c.run_id.in_([row["run_id"] for row in rows])
    billed = set(connection.execute(select(LEDGER.c.run_id).where(chosen)).scalars())
    return [row for row in rows if row["run_id"] not in billed]


def _run_lines(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one line for each run, even if a failure left two rows for it."""
    sums = dict[str, int]()
    for row in rows:
        sums[row["run_id"]] = sums.get(row["run_id"], 0) + row["nano"]
    first = {row["run_id"]: row for row in rows}
    return [_lost_line(row, sums[run]) for run, row in first.items()]


def _lease_lines(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the ledger lines of a dead process's leases: one for each key, one for the rest.

    The rest is what the leases of the tenant's budget hold beyond those of its keys. A run takes
    the same amount from each of its budgets, so the largest lease of a key, or of a tenant, counts
    for all of them.
    """
    largest = dict[tuple[str, str, str | None], Mapping[str, Any]]()
    for row in rows:
        group = (row["owner"], row["tenant"], row["key"])
        if group not in largest or largest[group]["nano"] < row["nano"]:
            largest[group] = row
    lines = list[dict[str, Any]]()
    for (owner, tenant, key), row in largest.items():
        nano = row["nano"]
        if key is None:
            nano -= sum(
                other["nano"]
                for (its_owner, its_tenant, its_key), other in largest.items()
                if (its_owner, its_tenant) == (owner, tenant) and its_key is not None
            )
        if nano > 0:
            lines.append(_lost_line({**row, "run_id": row["id"]}, nano))
    return lines


def _lost_line(reservation: Mapping[str, Any], nano: int) -> dict[str, Any]:
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
        "usd": nano_to_usd(0),
        "unpriced_calls": 1,
        "assumed_usd": nano_to_usd(nano),
    }
