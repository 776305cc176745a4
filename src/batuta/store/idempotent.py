"""What was answered under an Idempotency-Key; kept for a day, a tenant's own."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from time import time
from typing import Any, final

import orjson
from sqlalchemy import Connection, delete, select, update

from batuta.store.codec import sql_text
from batuta.store.database import Database
from batuta.store.models import IDEMPOTENT
from batuta.store.upsert import upsert

KEPT = 24 * 3600.0
PLAYING = 20 * 60.0
"""Seconds after which a request whose process died does not stand in the way any more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    """None: it was not to be kept."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """A request that came before under the same key."""

    digest: bytes
    answer: Answer | None
    """None: it is being answered."""


@final
class Idempotent:
    """Claims keys and keeps answers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, tenant: str, key: str, digest: bytes) -> Earlier | str:
        """What came before; or, if nothing did, the claim to be the first.

        Raises:
            StoreError: the database fails.
        """
        now, owner = time(), secrets.token_hex(8)
        values: dict[str, Any] = {"tenant": tenant, "key": sql_text(key), "digest": digest}
        values |= {"owner": owner, "expires": now + PLAYING}

        def first(connection: Connection) -> dict[str, Any] | None:
            connection.execute(delete(IDEMPOTENT).where(IDEMPOTENT.c.expires < now))
            new = upsert(connection.dialect.name, IDEMPOTENT).values(values)
            new = new.on_conflict_do_nothing()
            if connection.execute(new.returning(IDEMPOTENT.c.owner)).first() is not None:
                return None
            query = select(IDEMPOTENT).where(
                IDEMPOTENT.c.tenant == tenant, IDEMPOTENT.c.key == sql_text(key)
            )
            return dict(connection.execute(query).mappings().one())

        row = await self._database.change(first)
        if row is None:
            return owner
        if row["status"] is None:
            return Earlier(row["digest"], None)
        headers = tuple((name, value) for name, value in orjson.loads(row["headers"]))
        return Earlier(row["digest"], Answer(row["status"], headers, row["body"]))

    async def keep(self, owner: str, answer: Answer) -> None:
        """Keeps the answer of whoever made that claim.

        Raises:
            StoreError: the database fails.
        """
        values = {
            "status": answer.status,
            "headers": orjson.dumps(answer.headers),
            "body": answer.body,
            "expires": time() + KEPT,
        }
        mine = IDEMPOTENT.c.owner == owner
        await self._database.execute(update(IDEMPOTENT).where(mine).values(values))

    async def forget(self, owner: str) -> None:
        """Gives the claim up: there is no answer to keep.

        Raises:
            StoreError: the database fails.
        """
        await self._database.execute(delete(IDEMPOTENT).where(IDEMPOTENT.c.owner == owner))
