"""The lessons of judged runs of a system that explores, and the money of exploring.

The cap on dollars a day is kept by the statement that takes: the most that a run can cost is taken
before it begins, and what it did not cost is given back when it has ended. What a process that died
had taken stays taken, so that the cap holds over replicas and crashes.
"""

from __future__ import annotations

from typing import final

from sqlalchemy import Connection, case, select

from batuta.core import Run
from batuta.core.run import Exploration
from batuta.store.codec import sql_text
from batuta.store.database import Database, insert_statement
from batuta.store.ledger import Bucket, add_totals, budgeted_nano, ledger_lines
from batuta.store.models import EXPLORED_ARMS, SPENDING

MEMORY = 500.0
"""Judgements of an arm that are remembered: with more, older ones fade."""


def count_arm(connection: Connection, choice: Exploration, score: float) -> None:
    """Add a judgement of what was chosen, in the caller's transaction."""
    arms = EXPLORED_ARMS.c
    new = insert_statement(connection.dialect.name, EXPLORED_ARMS).values(
        system=sql_text(choice.system),
        cell=sql_text(choice.cell),
        arm=sql_text(choice.arm),
        score=min(max(score, 0.0), 1.0),
        judged=1.0,
    )
    kept = case((arms.judged >= MEMORY, (MEMORY - 1) / arms.judged), else_=1.0)
    values = {
        "score": arms.score * kept + new.excluded.score,
        "judged": arms.judged * kept + 1.0,
    }
    connection.execute(
        new.on_conflict_do_update(index_elements=["system", "cell", "arm"], set_=values)
    )


@final
class ExplorationTable:
    """The evidence on each arm, and the money that is left."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, system: str) -> dict[tuple[str, str], tuple[float, float]]:
        """Return the sum of scores by cell and arm, and how many were judged."""
        query = select(EXPLORED_ARMS).where(EXPLORED_ARMS.c.system == sql_text(system))
        rows = await self._database.fetch_rows(query)
        return {(row["cell"], row["arm"]): (row["score"], row["judged"]) for row in rows}

    async def take(self, purse: Bucket, nano: int) -> bool:
        """Take so many billionths of a dollar, or nothing; return whether they were there."""
        if nano > purse.cap:
            return False
        return await self._database.run_write(lambda one: _take_money(one, purse, nano))

    async def give_back(self, purse: Bucket, nano: int) -> None:
        """Give back what was taken and not spent; a negative number takes what it cost more."""
        changes = {(purse.account, purse.period): (-nano, 0)}
        await self._database.run_write(lambda one: add_totals(one, changes))


def run_nano(run: Run) -> int:
    """Return the cost of the run, as budgets count it."""
    return budgeted_nano(ledger_lines(run))


def _take_money(connection: Connection, purse: Bucket, nano: int) -> bool:
    new = insert_statement(connection.dialect.name, SPENDING).values(
        account=purse.account, period=purse.period, spent=nano, reserved=0
    )
    total = SPENDING.c.spent + new.excluded.spent
    taken = new.on_conflict_do_update(
        index_elements=["account", "period"], set_={"spent": total}, where=total <= purse.cap
    ).returning(SPENDING.c.spent)
    return connection.execute(taken).first() is not None
