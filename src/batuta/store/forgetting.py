"""Erases runs, responses and tenants, and keeps them from being written again.

A run that is in progress while it is erased ends later, perhaps in another process. So an erasure
leaves a tombstone (`deleted`), which writers check. The ledger, the totals of budgets and the audit
trail stay, as they contain no text of questions or answers. Jobs and paused runs are erased by
`Jobs` and `WaitingTable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, select, tuple_

from batuta.store.codec import sql_text
from batuta.store.database import Database
from batuta.store.deleted import TENANT_PREFIX, in_pages, remember_deleted
from batuta.store.models import (
    ANSWERS,
    APPROVALS,
    CONTENTS,
    FILES,
    IDEMPOTENT,
    KEYS,
    REFUSALS,
    RUNS,
    TENANTS,
)
from batuta.store.responses import RESPONSES


@final
class Forgetting:
    """Deletes runs, responses and tenants from the tables of a store.

    Call `Store.flush` before, so that queued runs are written and then erased.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_thread(self, response_id: str, tenant: str, *, whole: bool) -> list[str]:
        """Return the ids of a response and its continuations; none if it does not exist.

        With `whole`, return the ids of the whole conversation: of the first response and all that
        continue it.
        """

        def find(connection: Connection) -> list[str]:
            first = sql_text(response_id)
            if whole:
                line = _related_row_ids(RESPONSES, [first], tenant, up=True, connection=connection)
                first = line[-1] if line else first
            return _related_row_ids(RESPONSES, [first], tenant, up=False, connection=connection)

        return await self._database.run_read(find)

    async def forget_runs(self, ids: Sequence[str], tenant: str) -> list[str]:
        """Erase the runs and their continuations, plans, cached answers and idempotent responses.

        Args:
            ids: the runs; a run that is still in progress is not stored if it ends within a week.
            tenant: the owner of the runs.

        Returns:
            `ids`, and the ids of the continuations.
        """

        def erase(connection: Connection) -> list[str]:
            cleaned_ids = [sql_text(one) for one in ids]
            related = _related_row_ids(RUNS, cleaned_ids, tenant, up=False, connection=connection)
            erased = sorted({*cleaned_ids, *related})
            remember_deleted(connection, erased)
            for page in in_pages(erased):
                owned = RUNS.c.tenant == sql_text(tenant)
                delete_runs(connection, RUNS.c.id.in_(page), owned)
                repeated = IDEMPOTENT.c.run_id.in_(page)
                owned = IDEMPOTENT.c.tenant == sql_text(tenant)
                connection.execute(delete(IDEMPOTENT).where(repeated, owned))
                connection.execute(delete(ANSWERS).where(ANSWERS.c.run_id.in_(page)))
                connection.execute(delete(APPROVALS).where(APPROVALS.c.run_id.in_(page)))
            return erased

        return await self._database.run_write(erase)

    async def forget_responses(self, ids: Sequence[str], tenant: str) -> None:
        """Erase the responses; events that a job stores are erased with the job."""

        def erase(connection: Connection) -> None:
            cleaned_ids = [sql_text(one) for one in ids]
            remember_deleted(connection, cleaned_ids)
            for page in in_pages(cleaned_ids):
                own = RESPONSES.c.tenant == sql_text(tenant)
                connection.execute(delete(RESPONSES).where(RESPONSES.c.id.in_(page), own))

        await self._database.run_write(erase)

    async def forget_tenant(self, tenant: str) -> bool:
        """Erase the tenant, its keys, runs, responses, files and plans; return whether any existed.

        The ledger keeps its lines: the tenant's name, ids of keys, models and money.
        """
        name = sql_text(tenant)

        def erase(connection: Connection) -> int:
            remember_deleted(connection, [TENANT_PREFIX + name])
            owned = (RESPONSES, IDEMPOTENT, ANSWERS, APPROVALS, FILES, REFUSALS, KEYS)
            statements = [delete(table).where(table.c.tenant == name) for table in owned]
            statements.append(delete(TENANTS).where(TENANTS.c.name == name))
            runs = delete_runs(connection, RUNS.c.tenant == name)
            return runs + sum(connection.execute(one).rowcount for one in statements)

        return await self._database.run_write(erase) > 0

    async def scrub_files(self) -> None:
        """Remove erased data also from SQLite's WAL; PostgreSQL clears it when it vacuums."""
        await self._database.checkpoint()


def delete_runs(connection: Connection, *conditions: ColumnElement[bool]) -> int:
    """Delete runs with their contents, in the caller's transaction; return their number."""
    chosen = select(RUNS.c.id, RUNS.c.created).where(*conditions)
    content = tuple_(CONTENTS.c.run_id, CONTENTS.c.created)
    connection.execute(delete(CONTENTS).where(content.in_(chosen)))
    return connection.execute(delete(RUNS).where(*conditions)).rowcount


def _related_row_ids(
    table: Table, ids: Sequence[str], tenant: str, *, up: bool, connection: Connection
) -> list[str]:
    """Return the ids of the rows that exist, with all ancestors (`up`) or descendants."""
    link = table.c.previous if table is RESPONSES else table.c.parent
    own = table.c.tenant == sql_text(tenant)
    related: dict[str, None] = {}
    for page in in_pages(ids):
        first = select(table.c.id, link.label("link")).where(table.c.id.in_(page), own)
        family = first.cte("family", recursive=True)
        joint = table.c.id == family.c.link if up else link == family.c.id
        more = select(table.c.id, link.label("link")).join(family, and_(joint, own))
        family = family.union(more)
        related |= dict.fromkeys(row[0] for row in connection.execute(select(family.c.id)))
    return list(related)
