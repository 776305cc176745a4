"""Claims of Idempotency-Keys, on both databases."""

import pytest
from sqlalchemy import Connection, Select, delete

from batuta.store import Store
from batuta.store.idempotency import EarlierRequest, IdempotencyStore
from batuta.store.models import IDEMPOTENT

pytestmark = pytest.mark.anyio


class Releasing:
    """A database in which the claim is released just before it is read, as if by another process."""

    def __init__(self, database):
        self.database = database
        self.connection: Connection

    async def run_write(self, work):
        def run(connection):
            self.connection = connection
            return work(self)

        return await self.database.run_write(run)

    @property
    def dialect(self):
        return self.connection.dialect

    def execute(self, statement):
        if isinstance(statement, Select):
            self.connection.execute(delete(IDEMPOTENT))
        return self.connection.execute(statement)


async def test_a_claim_that_is_released_while_it_is_looked_up_is_free(target):
    async with Store(target) as store:
        claims = IdempotencyStore(store.database)
        assert await claims.claim("acme", "one", b"digest", "first") is None
        earlier = await claims.claim("acme", "one", b"digest", "second")
        assert earlier == EarlierRequest(b"digest", None, "first")
        again = IdempotencyStore(Releasing(store.database))  # pyright: ignore[reportArgumentType]
        assert await again.claim("acme", "one", b"digest", "third") is None
