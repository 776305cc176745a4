"""Scores of the arms of a system that explores, and the budget of exploration.

The expected maximum cost of a run that explores is taken from the daily budget before the run
begins, by a statement that checks the cap. When the run has ended, the unused part is given back;
if it cost more than expected, the excess is taken even beyond the cap. Money that a dead process
had taken stays taken.
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

MAX_JUDGEMENTS = 500.0
"""Maximum number of judgements that count for an arm; with more, older ones decay."""


def count_arm(connection: Connection, choice: Exploration, score: float) -> None:
    """Add a score, clipped to [0, 1], to the chosen arm, in the caller's transaction."""
    arms = EXPLORED_ARMS.c
    new = insert_statement(connection.dialect.name, EXPLORED_ARMS).values(
        system=sql_text(choice.system),
        cell=sql_text(choice.cell),
        arm=sql_text(choice.arm),
        score=min(max(score, 0.0), 1.0),
        judged=1.0,
    )
    kept = case((arms.judged >= MAX_JUDGEMENTS, (MAX_JUDGEMENTS - 1) / arms.judged), else_=1.0)
    values = {
        "score": arms.score * kept + new.excluded.score,
        "judged": arms.judged * kept + 1.0,
    }
    connection.execute(
        new.on_conflict_do_update(index_elements=["system", "cell", "arm"], set_=values)
    )


@final
class ExplorationTable:
    """The scores of each arm, and the daily budgets of exploration and of comparisons."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, system: str) -> dict[tuple[str, str], tuple[float, float]]:
        """Return (sum of scores, number of judgements), both decayed, by (cell, arm)."""
        query = select(EXPLORED_ARMS).where(EXPLORED_ARMS.c.system == sql_text(system))
        rows = await self._database.fetch_rows(query)
        return {(row["cell"], row["arm"]): (row["score"], row["judged"]) for row in rows}

    async def take(self, bucket: Bucket, nano: int) -> bool:
        """Take that many billionths of a dollar; return False, taking none, if too few are left."""
        if nano > bucket.cap:
            return False
        return await self._database.run_write(
            lambda connection: _take_money(connection, bucket, nano)
        )

    async def give_back(self, bucket: Bucket, nano: int) -> None:
        """Give back unspent money; a negative number takes the excess cost of the run."""
        changes = {bucket.account_period: (-nano, 0)}
        await self._database.run_write(lambda connection: add_totals(connection, changes))


def run_nano(run: Run) -> int:
    """Return the cost that budgets count for the run, in billionths of a dollar."""
    return budgeted_nano(ledger_lines(run))


def _take_money(connection: Connection, bucket: Bucket, nano: int) -> bool:
    new = insert_statement(connection.dialect.name, SPENDING).values(
        account=bucket.account, period=bucket.period, spent=nano, reserved=0
    )
    total = SPENDING.c.spent + new.excluded.spent
    taken = new.on_conflict_do_update(
        index_elements=["account", "period"], set_={"spent": total}, where=total <= bucket.cap
    ).returning(SPENDING.c.spent)
    return connection.execute(taken).first() is not None
