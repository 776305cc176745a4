"""Budgets: money is set apart before a run and settled after it.

`spent + reserved <= cap` is checked by the statement that reserves, so it holds whatever other
tasks and processes do at the same time. Requests that come while another one's transaction is on
its way share the next one. A reservation belongs to a process, which renews it; when the process
has died it expires, and the run is written down as lost: what it cost is not known. Only that of a
job which another process takes up waits for it.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from time import time
from typing import Any, final

import anyio
import orjson
from sqlalchemy import (
    BigInteger,
    Connection,
    Executable,
    bindparam,
    delete,
    insert,
    select,
    update,
)

from batuta.core import RunId
from batuta.errors import StoreError
from batuta.store.batching import Batcher
from batuta.store.database import DATABASE_ERRORS, Database, explain_error
from batuta.store.ledger import Bucket, Reservation, lost_row
from batuta.store.models import LEDGER, RESERVATIONS, SPENDING
from batuta.store.totals import (
    BudgetStatus,
    add_totals,
    read_budget_status,
    released_amounts,
    settle_reservations,
)
from batuta.store.upsert import insert_statement
from batuta.store.writer import RunWriter

LEASE_SECONDS = 90.0
"""Seconds for which a reservation outlives its process."""
JOB_LEASE_SECONDS = 24 * 3600.0
"""Seconds for which what a job's run holds waits until the job is taken up again."""
_MAX_TRIES = 8
"""Times that a smaller amount is tried where there is not enough; the last time the smallest."""
_JOBS_OWNER = "jobs"
"""Who owns reservations that no process renews."""
_LOG = logging.getLogger(__name__)


_ReserveResult = Reservation | BudgetStatus | StoreError


@dataclass(frozen=True, slots=True)
class JobReservation:
    """What the run of a job holds."""

    id: str
    run_id: RunId
    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReserveRequest:
    """A reservation that somebody waits for."""

    run_id: RunId
    tenant: str
    key: str | None
    model: str
    wanted: Reservation
    lasting: bool


class _BudgetFullError(Exception):
    """A bucket is too full; the transaction is undone."""

    def __init__(self, exhausted: BudgetStatus) -> None:
        super().__init__()
        self.exhausted = exhausted


@final
class Budgets:
    """Reserves and gives back; what was spent is settled by the writer, with the run."""

    def __init__(self, database: Database, writer: RunWriter, lease: float = LEASE_SECONDS) -> None:
        self._database = database
        self._writer = writer
        self._lease = lease
        self._asks = Batcher(self._grant, self._undo)
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
        for_job: bool = False,
        least: int | None = None,
    ) -> Reservation | BudgetStatus:
        """Sets `nano` billionths apart in every bucket, or in none.

        Args:
            run_id: the run.
            nano: billionths of a dollar.
            buckets: whose money.
            tenant: for the ledger, should the run be lost.
            key: as the tenant.
            model: as the tenant.
            for_job: the run is a job's, which outlives this process.
            least: what will do where there is not as much; None: nothing less.

        Raises:
            StoreError: the database fails.
        """

        async def take(amount: int) -> _ReserveResult:
            wanted = Reservation(secrets.token_hex(8), amount, buckets)
            return await self._asks.submit(
                _ReserveRequest(
                    run_id=run_id,
                    tenant=tenant,
                    key=key,
                    model=model,
                    wanted=wanted,
                    lasting=for_job,
                )
            )

        return await self._take_up_to(take, nano, nano if least is None else least)

    async def grow(self, held: Reservation, nano: int, least: int) -> Reservation | BudgetStatus:
        """The reservation with up to `nano` billionths more in every bucket, at least `least`.

        Raises:
            StoreError: the database fails, or the reservation has ended with its lease.
        """

        async def take(amount: int) -> _ReserveResult:
            try:
                await self._database.write(
                    lambda connection: _grow_reservation(connection, held, amount)
                )
            except _BudgetFullError as refused:
                return refused.exhausted
            except DATABASE_ERRORS as error:
                return explain_error(error, self._database.url)
            return replace(held, nano=held.nano + amount)

        return await self._take_up_to(take, nano, least)

    async def _take_up_to(
        self, take: Callable[[int], Awaitable[_ReserveResult]], nano: int, least: int
    ) -> Reservation | BudgetStatus:
        """What `take` gives for as much of `nano` as there is; a refusal if that is too little.

        Raises:
            StoreError: the database fails.
        """
        answer = await take(nano)
        if isinstance(answer, BudgetStatus) and self._writer.pending_count:
            await self._writer.flush()  # runs that have ended may still hold what they reserved
            answer = await take(nano)
        tries = _MAX_TRIES
        while isinstance(answer, BudgetStatus) and least <= answer.remaining and tries:
            tries -= 1  # what is left in one bucket may be more than in the next, or just taken
            nano = min(nano, answer.remaining) if tries else least
            answer = await take(nano)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def find_job_reservation(
        self, run_id: RunId, buckets: tuple[Bucket, ...]
    ) -> Reservation | None:
        """What a job's run set apart in those buckets before its process died.

        Raises:
            StoreError: the database fails.
        """
        mine = (RESERVATIONS.c.run_id == run_id, RESERVATIONS.c.owner == _JOBS_OWNER)
        rows = await self._database.fetch_rows(select(RESERVATIONS).where(*mine))
        return Reservation(rows[0]["id"], rows[0]["nano"], buckets) if rows else None

    async def job_reservations(self) -> list[JobReservation]:
        """What jobs' runs hold, of this process and others.

        Raises:
            StoreError: the database fails.
        """
        held = RESERVATIONS.c.owner == _JOBS_OWNER
        columns = (RESERVATIONS.c.id, RESERVATIONS.c.run_id, RESERVATIONS.c.tenant)
        rows = await self._database.fetch_rows(select(*columns).where(held))
        return [JobReservation(row["id"], RunId(row["run_id"]), row["tenant"]) for row in rows]

    async def end_job_reservations(self, ids: Iterable[str]) -> int:
        """Gives back what jobs hold that no longer run; how many runs were lost.

        Raises:
            StoreError: the database fails.
        """
        chosen = RESERVATIONS.c.id.in_(tuple(ids))
        rows = await self._database.run_write(lambda one: _end_reservations(one, chosen))
        for row in rows:
            _LOG.warning("run %s was lost with its job; its cost is not known", row["run_id"])
        return len(rows)

    async def is_settled(self, run_id: RunId) -> bool:
        """Whether the run is in the ledger, with what it cost.

        Raises:
            StoreError: the database fails.
        """
        mine = (LEDGER.c.run_id == run_id, LEDGER.c.line >= 0)
        return bool(await self._database.fetch_rows(select(LEDGER.c.line).where(*mine).limit(1)))

    async def release(self, reservation: Reservation) -> None:
        """Gives back what was reserved for a run that was never executed.

        Raises:
            StoreError: the database fails; the reservation expires with its lease.
        """
        with anyio.CancelScope(shield=True):
            await self._database.run_write(
                lambda one: settle_reservations(one, (reservation.id,), {})
            )

    async def budget_status(self, buckets: Iterable[Bucket]) -> list[BudgetStatus]:
        """How full those buckets are.

        Raises:
            StoreError: the database fails.
        """
        return [await self._bucket_status(bucket) for bucket in buckets]

    async def work(self) -> None:
        """Renews this process's reservations and ends those of dead ones, until `close`."""
        try:
            while not self._closing.is_set():
                # Shielded: a connection cancelled in mid-statement is thrown away with its thread.
                with anyio.CancelScope(shield=True):
                    await self._renew_and_reap()
                with anyio.move_on_after(self._lease / 3):
                    await self._closing.wait()
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Ends `work`; what is reserved stays so until its lease is over."""
        self._closing.set()
        await self._ended.wait()

    async def _renew_and_reap(self) -> None:
        try:
            await self.renew(time())
            await self.reap(time())
        except (StoreError, *DATABASE_ERRORS) as error:
            _LOG.warning("budgets: %s", error)

    async def renew(self, now: float) -> None:
        """Holds this process's reservations for another lease."""
        mine = RESERVATIONS.c.owner == self.owner
        if not await self._has_reservation(mine):
            return
        later = update(RESERVATIONS).where(mine).values(expires=now + self._lease)
        await self._database.execute(later)

    async def reap(self, now: float) -> int:
        """Gives back what runs of dead processes hold; how many runs were lost."""
        dead = RESERVATIONS.c.expires < now
        if not await self._has_reservation(dead):
            return 0
        rows = await self._database.write(lambda connection: _end_reservations(connection, dead))
        for row in rows:
            _LOG.warning("run %s was lost with its process; its cost is not known", row["run_id"])
        return len(rows)

    async def _has_reservation(self, chosen: Any) -> bool:
        query = select(RESERVATIONS.c.id).where(chosen).limit(1)
        return await self._database.read(lambda one: one.execute(query).first() is not None)

    async def _grant(self, asks: list[_ReserveRequest]) -> list[_ReserveResult]:
        """All in one transaction; if a bucket is too full for all, one by one."""
        answer = await self._try_all(asks)
        if len(asks) == 1 or answer is None:
            return [answer or ask.wanted for ask in asks]
        if isinstance(answer, StoreError):
            return [answer] * len(asks)
        return [await self._try_all([ask]) or ask.wanted for ask in asks]

    async def _try_all(self, asks: list[_ReserveRequest]) -> BudgetStatus | StoreError | None:
        """Reserves for all of them or for none; None if it did, else why not."""
        try:
            await self._transact(asks)
        except _BudgetFullError as refused:
            return refused.exhausted
        except DATABASE_ERRORS as error:
            return explain_error(error, self._database.url)
        return None

    async def _undo(self, answer: _ReserveResult) -> None:
        """Gives back what was granted to somebody who has gone."""
        if isinstance(answer, Reservation):
            await self.release(answer)

    async def _transact(self, asks: list[_ReserveRequest]) -> None:
        sums: Counter[Bucket] = Counter()
        for ask in asks:
            for bucket in ask.wanted.buckets:
                sums[bucket] += ask.wanted.nano
        now = time()
        rows = [_reservation_row(ask, self.owner, now, self._lease) for ask in asks]
        await self._database.write(lambda connection: _reserve_in_buckets(connection, sums, rows))

    async def _bucket_status(self, bucket: Bucket) -> BudgetStatus:
        return await self._database.run_read(
            lambda connection: read_budget_status(connection, bucket)
        )


def _reserve_in_buckets(
    connection: Connection, sums: Counter[Bucket], rows: list[dict[str, Any]]
) -> None:
    """Sets the sums apart, in one order of the buckets, and writes down for whom."""
    for bucket in sorted(sums, key=lambda bucket: (bucket.account, bucket.period)):
        _reserve_in_bucket(connection, bucket, sums[bucket])
    connection.execute(_INSERT_RESERVATION, rows)


def _grow_reservation(connection: Connection, held: Reservation, nano: int) -> None:
    """Adds to a reservation, which is locked first as where it ends.

    Raises:
        StoreError: it has ended.
        _BudgetFullError: a bucket is too full.
    """
    mine = RESERVATIONS.c.id == held.id
    more = update(RESERVATIONS).where(mine).values(nano=RESERVATIONS.c.nano + nano)
    if connection.execute(more).rowcount != 1:
        raise StoreError("what was reserved for the run has ended with its lease")
    for bucket in sorted(held.buckets, key=lambda bucket: (bucket.account, bucket.period)):
        _reserve_in_bucket(connection, bucket, nano)


def _reserve_in_bucket(connection: Connection, bucket: Bucket, nano: int) -> None:
    """The one statement that keeps the law.

    Raises:
        _BudgetFullError: the bucket is too full.
    """
    if nano <= bucket.cap:
        values = {
            "its_account": bucket.account,
            "its_period": bucket.period,
            "its_nano": nano,
            "its_cap": bucket.cap,
        }
        if (
            connection.execute(_reserve_statement(connection.dialect.name), values).first()
            is not None
        ):
            return
    raise _BudgetFullError(read_budget_status(connection, bucket))


def _end_reservations(connection: Connection, dead: Any) -> list[dict[str, Any]]:
    """Gives back what the dead hold, and writes down that their runs were lost.

    Returns:
        The rows of those runs; a run that is billed already is none.
    """
    query = delete(RESERVATIONS).where(dead).returning(RESERVATIONS)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    add_totals(connection, released_amounts(rows))
    its = LEDGER.c.run_id.in_([row["run_id"] for row in rows])
    billed = set(connection.execute(select(LEDGER.c.run_id).where(its)).scalars()) if rows else ()
    lost = [row for row in rows if row["run_id"] not in billed]
    if lost:
        statement = insert_statement(connection.dialect.name, LEDGER).on_conflict_do_nothing()
        connection.execute(statement, [lost_row(row) for row in lost])
    return lost


@cache
def _reserve_statement(dialect: str) -> Executable:
    """Adds to what is reserved if that fits; built once, for building costs more than running."""
    values = insert_statement(dialect, SPENDING).values(
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


_INSERT_RESERVATION = insert(RESERVATIONS)


def _reservation_row(ask: _ReserveRequest, owner: str, now: float, lease: float) -> dict[str, Any]:
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
        "owner": _JOBS_OWNER if ask.lasting else owner,
        "expires": now + (JOB_LEASE_SECONDS if ask.lasting else lease),
    }
