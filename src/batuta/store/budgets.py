"""Budgets: money is set apart before a run and settled after it.

`spent + reserved <= cap` is checked by the statement that reserves, so it holds whatever other
tasks and processes do at the same time. Requests that come while another one's transaction is on
its way share the next one. A reservation belongs to a process, which renews it; when the process
has died it expires, and the run is written down as lost: what it cost is not known.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from time import time
from typing import Any, final

import anyio
import orjson
from sqlalchemy import BigInteger, Executable, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from batuta.core import RunId
from batuta.errors import StoreError
from batuta.store.database import FAILURES, Database, explain
from batuta.store.ledger import Bucket, Reservation, lost_row
from batuta.store.models import LEDGER, RESERVATIONS, SPENDING
from batuta.store.spending import Exhausted, add, fill, given_back, settle
from batuta.store.writer import Writer

LEASE = 90.0
"""Seconds for which a reservation outlives its process."""
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Ask:
    """A reservation that somebody waits for."""

    run_id: RunId
    tenant: str
    key: str | None
    model: str
    wanted: Reservation
    answer: Reservation | Exhausted | StoreError | None = None


class _Refused(Exception):
    """A bucket is too full; the transaction is undone."""

    def __init__(self, exhausted: Exhausted) -> None:
        super().__init__()
        self.exhausted = exhausted


@final
class Budgets:
    """Reserves and gives back; what was spent is settled by the writer, with the run."""

    def __init__(self, database: Database, writer: Writer, lease: float = LEASE) -> None:
        self._database = database
        self._writer = writer
        self._lease = lease
        self._turn = anyio.Lock(fast_acquire=True)
        self._asks: list[_Ask] = []
        self._closing = anyio.Event()
        self._ended = anyio.Event()
        self.owner = secrets.token_hex(8)
        """This process's name in the table of reservations."""

    async def reserve(
        self,
        run_id: RunId,
        nano: int,
        buckets: tuple[Bucket, ...],
        *,
        tenant: str = "local",
        key: str | None = None,
        model: str = "",
    ) -> Reservation | Exhausted:
        """Sets `nano` billionths apart in every bucket, or in none.

        Raises:
            StoreError: the database fails.
        """
        wanted = Reservation(secrets.token_hex(8), nano, buckets)
        ask = _Ask(run_id, tenant, key, model, wanted)
        await self._serve(ask)
        if isinstance(ask.answer, Exhausted) and self._writer.waiting:
            await self._writer.flush()  # runs that have ended may still hold what they reserved
            ask = _Ask(run_id, tenant, key, model, wanted)
            await self._serve(ask)
        if isinstance(ask.answer, StoreError):
            raise ask.answer
        assert ask.answer is not None  # noqa: S101 - it was served
        return ask.answer

    async def release(self, reservation: Reservation) -> None:
        """Gives back what was reserved for a run that was never played.

        Raises:
            StoreError: the database fails; the reservation expires with its lease.
        """
        with anyio.CancelScope(shield=True):
            async with self._database.begin() as connection:
                await settle(connection, (reservation.id,), {})

    async def spending(self, buckets: Iterable[Bucket]) -> list[Exhausted]:
        """How full those buckets are.

        Raises:
            StoreError: the database fails.
        """
        return [await self._fill(bucket) for bucket in buckets]

    async def work(self) -> None:
        """Renews this process's reservations and ends those of dead ones, until `close`."""
        try:
            while not self._closing.is_set():
                # Shielded: a connection cancelled in mid-statement is thrown away with its thread.
                with anyio.CancelScope(shield=True):
                    await self._look_after()
                with anyio.move_on_after(self._lease / 3):
                    await self._closing.wait()
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Ends `work`; what is reserved stays so until its lease is over."""
        self._closing.set()
        await self._ended.wait()

    async def _look_after(self) -> None:
        try:
            await self.renew(time())
            await self.reap(time())
        except FAILURES as error:
            _LOG.warning("budgets: %s", explain(error, self._database.url))

    async def renew(self, now: float) -> None:
        """Holds this process's reservations for another lease."""
        mine = RESERVATIONS.c.owner == self.owner
        if not await self._holds(mine):
            return
        async with self._database.write() as connection:
            later = update(RESERVATIONS).where(mine).values(expires=now + self._lease)
            await connection.execute(later)

    async def reap(self, now: float) -> int:
        """Gives back what runs of dead processes hold; how many runs were lost."""
        dead = RESERVATIONS.c.expires < now
        if not await self._holds(dead):
            return 0
        async with self._database.write() as connection:
            query = delete(RESERVATIONS).where(dead).returning(RESERVATIONS)
            rows = [dict(row) for row in (await connection.execute(query)).mappings()]
            await add(connection, given_back(rows))
            dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
            statement = dialect.insert(LEDGER).on_conflict_do_nothing()
            if rows:
                await connection.execute(statement, [lost_row(row) for row in rows])
        for row in rows:
            _LOG.warning("run %s was lost with its process; its cost is not known", row["run_id"])
        return len(rows)

    async def _holds(self, chosen: Any) -> bool:
        async with self._database.engine.connect() as connection:
            query = select(RESERVATIONS.c.id).where(chosen).limit(1)
            return (await connection.execute(query)).first() is not None

    async def _serve(self, ask: _Ask) -> None:
        """Until the ask is answered, by this task or by one that came before."""
        self._asks.append(ask)
        try:
            async with self._turn:
                if ask.answer is None:
                    asks, self._asks = self._asks, []
                    with anyio.CancelScope(shield=True):
                        await self._grant(asks)
        except anyio.get_cancelled_exc_class():
            if ask in self._asks:
                self._asks.remove(ask)
            if isinstance(ask.answer, Reservation):
                await self.release(ask.answer)
            raise

    async def _grant(self, asks: list[_Ask]) -> None:
        """All in one transaction; if a bucket is too full for all, one by one."""
        if len(asks) == 1 or not await self._try(asks):
            for ask in asks:
                await self._try([ask])

    async def _try(self, asks: list[_Ask]) -> bool:
        """Reserves for all of them or for none; whether they have their answers now."""
        try:
            await self._transact(asks)
        except _Refused as refused:
            if len(asks) > 1:
                return False
            asks[0].answer = refused.exhausted
        except FAILURES as error:
            for ask in asks:
                ask.answer = explain(error, self._database.url)
        else:
            for ask in asks:
                ask.answer = ask.wanted
        return True

    async def _transact(self, asks: list[_Ask]) -> None:
        sums: Counter[Bucket] = Counter()
        for ask in asks:
            for bucket in ask.wanted.buckets:
                sums[bucket] += ask.wanted.nano
        now = time()
        async with self._database.write() as connection:
            for bucket in sorted(sums, key=lambda bucket: (bucket.account, bucket.period)):
                await self._fit(connection, bucket, sums[bucket])
            rows = [_row(ask, self.owner, now, now + self._lease) for ask in asks]
            await connection.execute(_RESERVE, rows)

    async def _fit(self, connection: AsyncConnection, bucket: Bucket, nano: int) -> None:
        """The one statement that keeps the law."""
        if nano <= bucket.cap:
            values = {
                "its_account": bucket.account,
                "its_period": bucket.period,
                "its_nano": nano,
                "its_cap": bucket.cap,
            }
            statement = _FIT[connection.dialect.name]
            if (await connection.execute(statement, values)).first() is not None:
                return
        raise _Refused(await fill(connection, bucket))

    async def _fill(self, bucket: Bucket) -> Exhausted:
        try:
            async with self._database.engine.connect() as connection:
                return await fill(connection, bucket)
        except FAILURES as error:
            raise explain(error, self._database.url) from error


def _fitting(new: sqlite.Insert | postgresql.Insert) -> Executable:
    """Adds to what is reserved if that fits; built once, for building costs more than running."""
    values = new.values(
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


_FIT = {
    "sqlite": _fitting(sqlite.insert(SPENDING)),
    "postgresql": _fitting(postgresql.insert(SPENDING)),
}
_RESERVE = insert(RESERVATIONS)


def _row(ask: _Ask, owner: str, now: float, expires: float) -> dict[str, Any]:
    places = [(bucket.account, bucket.period) for bucket in ask.wanted.buckets]
    return {
        "id": ask.wanted.id,
        "run_id": ask.run_id,
        "tenant": ask.tenant,
        "key": ask.key,
        "model": ask.model,
        "buckets": orjson.dumps(places).decode(),
        "nano": ask.wanted.nano,
        "created": now,
        "owner": owner,
        "expires": expires,
    }
