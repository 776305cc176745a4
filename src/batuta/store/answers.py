"""Index of the answer cache: which run answered a question; the answer itself is in the run."""

from __future__ import annotations

from time import time
from typing import Any, final

from sqlalchemy import Connection, delete, select

from batuta.store.codec import sql_text
from batuta.store.database import Database, insert_statement
from batuta.store.models import ANSWERS


@final
class AnswerTable:
    """The runs that answered questions, by tenant and digest of the question.

    An entry is found until it expires or `Forgetting` erases its run. A run that was purged or
    deleted in another way leaves its entry, so the run of an entry may no longer exist.

    A tenant finds only its own entries.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant: str, digest: bytes) -> str | None:
        """Return the id of the run that answered that question; None: no valid entry exists."""
        query = select(ANSWERS.c.run_id).where(
            ANSWERS.c.tenant == sql_text(tenant),
            ANSWERS.c.digest == digest,
            ANSWERS.c.expires > time(),
        )
        rows = await self._database.fetch_rows(query)
        return rows[0]["run_id"] if rows else None

    async def put(
        self,
        tenant: str,
        digest: bytes,
        run_id: str,
        *,
        seconds: float,
    ) -> None:
        """Record the run that answered, for that many seconds, in place of an earlier run.

        Delete all expired entries.
        """
        now = time()
        key = {"tenant": sql_text(tenant), "digest": digest}
        values: dict[str, Any] = {"run_id": run_id, "expires": now + seconds}

        def write(connection: Connection) -> None:
            connection.execute(delete(ANSWERS).where(ANSWERS.c.expires < now))
            new = insert_statement(connection.dialect.name, ANSWERS).values(**key, **values)
            keys = ["tenant", "digest"]
            connection.execute(new.on_conflict_do_update(index_elements=keys, set_=values))

        await self._database.run_write(write)
