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
from time import time
from typing import Any, final

import anyio
import orjson
from sqlalchemy import select, update

from batuta.core import RunId
from batuta.errors import StoreError
from batuta.store.batching import Batcher
from batuta.store.database import DATABASE_ERRORS, Database, explain_error
from batuta.store.ledger import Bucket, Reservation
from batuta.store.models import LEDGER, RESERVATIONS
from batuta.store.totals import (
    BudgetFullError,
    BudgetStatus,
    end_reservations,
    grow_reservation,
    read_budget_status,
    reserve_in_buckets,
    settle_reservations,
)
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
                    lambda connection: grow_reservation(connection, held, amount)
                )
            except BudgetFullError as refused:
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
        rows = await self._database.run_write(lambda one: end_reservations(one, chosen))
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
        rows = await self._database.write(lambda connection: end_reservations(connection, dead))
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
        except BudgetFullError as refused:
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
        await self._database.write(lambda connection: reserve_in_buckets(connection, sums, rows))

    async def _bucket_status(self, bucket: Bucket) -> BudgetStatus:
        return await self._database.run_read(
            lambda connection: read_budget_status(connection, bucket)
        )


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
