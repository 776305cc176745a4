"""Responses that are kept for a day under a tenant's Idempotency-Key."""

from __future__ import annotations

from dataclasses import dataclass
from time import time
from typing import Any, final

import orjson
from sqlalchemy import Connection, delete, select, update

from batuta.store.codec import sql_text
from batuta.store.database import Database, insert_statement
from batuta.store.models import FORGOTTEN, IDEMPOTENT

RUN_HEADER = "x-batuta-run-id"
"""The response header with the run's id."""
KEEP_SECONDS = 24 * 3600.0
"""Seconds for which an answer is kept."""
CLAIM_SECONDS = 5 * 60.0
"""Seconds after which a claim that was not renewed expires."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A whole HTTP response."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    """None: the body is not kept."""


@dataclass(frozen=True, slots=True)
class EarlierRequest:
    """An earlier request with the same key."""

    digest: bytes
    """The hash of the earlier request."""
    answer: StoredAnswer | None
    """None: the request is still being answered, or its process has died."""
    claim: str
    """The id of the claim of the earlier request."""


@final
class IdempotencyStore:
    """Claims keys and keeps answers."""

    def __init__(self, database: Database, *, claim_seconds: float = CLAIM_SECONDS) -> None:
        self._database = database
        self.claim_seconds = claim_seconds

    async def claim(
        self, tenant: str, key: str, digest: bytes, owner: str
    ) -> EarlierRequest | None:
        """Return the earlier request with that key; if there is none, claim the key instead.

        Args:
            tenant: the tenant that sent the request.
            key: the value of the header `Idempotency-Key`.
            digest: a hash of the request, by which a different request with the key is recognised.
            owner: a random id of the new claim.

        Returns:
            The earlier request; None: the key is claimed.
        """
        now = time()
        values: dict[str, Any] = {"tenant": tenant, "key": sql_text(key), "digest": digest}
        values |= {"owner": owner, "expires": now + self.claim_seconds}

        def first(connection: Connection) -> dict[str, Any] | None:
            connection.execute(delete(IDEMPOTENT).where(IDEMPOTENT.c.expires < now))
            new = insert_statement(connection.dialect.name, IDEMPOTENT).values(values)
            new = new.on_conflict_do_nothing().returning(IDEMPOTENT.c.owner)
            query = select(IDEMPOTENT).where(
                IDEMPOTENT.c.tenant == tenant, IDEMPOTENT.c.key == sql_text(key)
            )
            while connection.execute(new).first() is None:
                if (row := connection.execute(query).mappings().first()) is not None:
                    return dict(row)  # else another process released the claim just now
            return None

        row = await self._database.run_write(first)
        if row is None:
            return None
        if row["status"] is None:
            return EarlierRequest(row["digest"], None, row["owner"])
        headers = tuple((name, value) for name, value in orjson.loads(row["headers"]))
        answer = StoredAnswer(row["status"], headers, row["body"])
        return EarlierRequest(row["digest"], answer, row["owner"])

    async def renew(self, owner: str) -> None:
        """Extend the claim `owner` of a request that is still being answered."""
        await self._database.execute(
            update(IDEMPOTENT)
            .where(IDEMPOTENT.c.owner == owner, IDEMPOTENT.c.status.is_(None))
            .values(expires=time() + self.claim_seconds)
        )

    async def keep(self, owner: str, answer: StoredAnswer) -> None:
        """Store the answer to the request that has the claim `owner`.

        Store nothing if the expired claim was deleted. Release the claim if the run was erased
        meanwhile.
        """
        values = {
            "status": answer.status,
            "headers": orjson.dumps(answer.headers),
            "body": answer.body,
            "expires": time() + KEEP_SECONDS,
            "run_id": dict(answer.headers).get(RUN_HEADER),
        }
        mine = IDEMPOTENT.c.owner == owner
        gone = select(FORGOTTEN.c.name).where(FORGOTTEN.c.name == values["run_id"]).exists()
        await self._database.execute(
            update(IDEMPOTENT).where(mine, ~gone).values(values),
            delete(IDEMPOTENT).where(mine, IDEMPOTENT.c.status.is_(None)),
        )

    async def forget(self, owner: str) -> None:
        """Release the claim `owner` without an answer."""
        await self._database.execute(delete(IDEMPOTENT).where(IDEMPOTENT.c.owner == owner))
