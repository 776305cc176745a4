"""Budgets: money is set apart before a run and settled after it.

`spent + reserved <= cap` is checked by the statement that reserves, so it holds whatever other
tasks and processes do at the same time. Requests that come while another one's transaction is on
its way share the next one, and those that follow upon each other get their money from a lease
(`leases`), without the database. A reservation belongs to a process, which renews it; when others
have seen no renewal for a while they end it, and the run is written down as lost: what it cost is
not known, so it counts as what was reserved (`lost_runs`). They measure that while by their own
clocks, and so no step of a clock ends what is used. Only the reservation of a job which another
process takes up waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic, time
from typing import Any, Generic, TypeVar, final

import anyio
import orjson
from sqlalchemy import and_, select, tuple_, update

from batuta.core import RunId
from batuta.core.formatting import format_usd
from batuta.errors import StoreError
from batuta.store.database import Database, DatabaseFailedError
from batuta.store.leases import IDLE_SECONDS, Leases
from batuta.store.ledger import (
    JOBS_OWNER,
    Bucket,
    BudgetFullError,
    BudgetStatus,
    PeriodCaps,
    Reservation,
    ReserveRequest,
    grow_reservation,
    read_budget_status,
    reserve_in_buckets,
    restored_bucket,
    settle_reservations,
)
from batuta.store.lost_runs import end_reservations
from batuta.store.models import LEDGER, RESERVATIONS
from batuta.store.writer import RunWriter

_T = TypeVar("_T")
_R = TypeVar("_R")

LINGER_SECONDS = 0.002
"""Seconds that a batch waits for more when many come."""
_BUSY_SECONDS = 0.01
"""Seconds since the last batch within which the next one counts as one of many."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Batch(Generic[_T, _R]):
    """Items that are written at once."""

    items: list[_T] = field(default_factory=list[_T])
    results: dict[int, _R] = field(default_factory=dict[int, _R])
    """Results by the item's identity; empty until all are there."""
    is_led: bool = False
    """Whether one of those who wait does it, or waits for its turn to."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is done, or when whoever was to do it has gone."""


@final
class Batcher(Generic[_T, _R]):
    """Does items in batches, one batch after another.

    Of those who wait for a batch one does it; the others are woken once, when it is done.
    """

    def __init__(
        self,
        work: Callable[[list[_T]], Awaitable[Sequence[_R]]],
        undo: Callable[[_R], Awaitable[None]] | None = None,
    ) -> None:
        """Do nothing yet.

        Args:
            work: does a batch, and gives the result of each item; never raises.
            undo: is told a result that nobody waits for any more.
        """
        self._work = work
        self._undo = undo
        self._turn = anyio.Lock(fast_acquire=True)
        self._next: _Batch[_T, _R] = _Batch()
        self._ended = float("-inf")

    async def submit(self, item: _T) -> _R:
        """Return the item's result, from the batch that it was done in."""
        batch = self._next
        batch.items.append(item)
        try:
            while not batch.results:
                if batch.is_led:
                    await batch.changed.wait()
                else:
                    await self._lead(batch)
        except anyio.get_cancelled_exc_class():
            await self._leave(batch, item)
            raise
        return batch.results[id(item)]

    async def _lead(self, batch: _Batch[_T, _R]) -> None:
        """Do the batch in its turn; whoever goes before that leaves it to the others."""
        batch.is_led = True
        try:
            async with self._turn:
                await self._run_batch(batch)
        finally:
            batch.is_led = bool(batch.results)
            batch.changed.set()
            batch.changed = asyncio.Event()

    async def _run_batch(self, batch: _Batch[_T, _R]) -> None:
        """Do the batch, which nobody has begun."""
        if self._next is not batch:
            raise RuntimeError("a batch was given up while it was done")
        with anyio.CancelScope(shield=True):
            # Whoever is about to ask shares this batch. A thread woken for each costs more than
            # the database: under load it is worth a moment's wait.
            busy = monotonic() - self._ended < _BUSY_SECONDS
            await asyncio.sleep(LINGER_SECONDS if busy else 0)
            self._next = _Batch()
            results = await self._work(batch.items)
            batch.results = {
                id(item): result for item, result in zip(batch.items, results, strict=True)
            }
            self._ended = monotonic()

    async def _leave(self, batch: _Batch[_T, _R], item: _T) -> None:
        """Take the item out of its batch; if that has begun, undoe what comes of it."""
        if self._next is batch:
            batch.items = [other for other in batch.items if other is not item]
            return
        if self._undo is None:
            return
        with anyio.CancelScope(shield=True):
            if not batch.results:
                await batch.changed.wait()
            if id(item) in batch.results:
                await self._undo(batch.results[id(item)])


LEASE_SECONDS = 90.0
"""Seconds for which a reservation outlives its process."""
JOB_LEASE_SECONDS = 24 * 3600.0
"""Seconds for which what a job's run holds waits until the job is taken up again."""
_MAX_TRIES = 8
"""Times that a smaller amount is tried where there is not enough; the last time the smallest."""
_BATCH = 500
"""Reservations of the dead that one transaction ends."""
_PAUSE = IDLE_SECONDS / 2
"""Seconds between looks at leases."""
_FAILURE_PAUSE = 5.0
"""The same while the database fails."""
_LOG = logging.getLogger(__name__)


_ReserveResult = Reservation | BudgetStatus | StoreError


@dataclass(frozen=True, slots=True)
class JobReservation:
    """The money that the run of a job holds."""

    id: str
    run_id: RunId
    tenant: str


@final
class Budgets:
    """Reserves and gives back; what was spent is settled by the writer, with the run."""

    def __init__(
        self,
        database: Database,
        writer: RunWriter,
        leases: Leases,
        lease: float = LEASE_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._database = database
        self._writer = writer
        self._leases = leases
        self._lease = lease
        self._clock = clock
        self._asks = Batcher(self._grant, self._undo)
        self._closing = anyio.Event()
        self._ended = anyio.Event()
        self._seen: dict[str, tuple[float, float]] = {}
        """The last expiry of each reservation of another process, and when it was first seen."""
        self._reaping = anyio.Lock(fast_acquire=True)
        self._failing: set[str] = set()
        """The pieces of background work whose last try failed: each is warned of once."""

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
        at: float | None = None,
    ) -> Reservation | BudgetStatus:
        """Set `nano` billionths apart in every bucket, or in none.

        Args:
            run_id: the run.
            nano: billionths of a dollar.
            buckets: whose money.
            tenant: for the ledger, should the run be lost.
            key: as the tenant.
            model: as the tenant.
            for_job: the run is a job's, which outlives this process.
            least: what will do where there is not as much; None: nothing less.
            at: the moment whose budgets these are, in seconds since the epoch; None: now.
        """
        began = time() if at is None else at

        def request(amount: int) -> ReserveRequest:
            return ReserveRequest(
                run_id=run_id,
                tenant=tenant,
                key=key,
                model=model,
                wanted=Reservation(secrets.token_hex(8), amount, buckets),
                lasting=for_job,
                at=began,
            )

        first = request(nano)
        # While runs cannot be written there is no telling for how long: nothing more is spent.
        if not for_job and self._writer.failure is None and self._leases.take(first):
            return first.wanted

        async def take(amount: int) -> _ReserveResult:
            return await self._asks.submit(request(amount))

        least = nano if least is None else least
        return await self._take_up_to(take, nano, least, buckets)

    async def grow(self, held: Reservation, nano: int, least: int) -> Reservation | BudgetStatus:
        """Return the reservation with `least` to `nano` billionths more in every bucket.

        Raises:
            StoreError: the database fails, or the reservation has ended with its lease.
        """

        async def take(amount: int) -> _ReserveResult:
            try:
                await self._grow(held, amount)
            except BudgetFullError as refused:
                return refused.exhausted
            except DatabaseFailedError as error:
                return error
            return replace(held, nano=held.nano + amount)

        return await self._take_up_to(take, nano, least, held.buckets)

    async def _grow(self, held: Reservation, nano: int) -> None:
        """Give a run more, from memory if its money is from there and there is as much."""
        if self._leases.find(held.id) is not None and (
            self._leases.grow(held.id, nano) or await self._leases.move_to_row(held.id, nano)
        ):
            return
        await self._database.run_write(lambda connection: grow_reservation(connection, held, nano))

    async def _take_up_to(
        self,
        take: Callable[[int], Awaitable[_ReserveResult]],
        nano: int,
        least: int,
        buckets: tuple[Bucket, ...],
    ) -> Reservation | BudgetStatus:
        """Take as much of `nano` as there is; return a refusal if that is too little."""
        answer = await take(nano)
        if isinstance(answer, BudgetStatus) and await self._make_room(buckets):
            answer = await take(nano)
        tries = _MAX_TRIES
        while isinstance(answer, BudgetStatus) and least <= answer.remaining and tries:
            tries -= 1  # what is left in one bucket may be more than in the next, or just taken
            nano = min(nano, answer.remaining) if tries else least
            answer = await take(nano)
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer, BudgetStatus):
            unwritten = self._leases.unwritten_holders(answer.bucket)
            return replace(answer, holders=answer.holders + unwritten)
        return answer

    async def _make_room(self, buckets: tuple[Bucket, ...]) -> bool:
        """Give back what only this process keeps of the budgets; tell whether there was any."""
        pending = self._writer.pending_count > 0
        if pending:
            await self._writer.flush()  # runs that have ended may still hold what they reserved
        return await self._leases.give_back_of(buckets) or pending

    async def find_job_reservation(
        self, run_id: RunId, caps: Mapping[str, PeriodCaps]
    ) -> tuple[Reservation, float] | None:
        """Return what a job's run set apart before its process died, and when that was.

        Its buckets are those that were stored with it, also on another day or in another month.

        Args:
            run_id: the run.
            caps: for each account what it may spend in a day and in a month now, in billionths.
        """
        mine = (RESERVATIONS.c.run_id == run_id, RESERVATIONS.c.owner == JOBS_OWNER)
        rows = await self._database.fetch_rows(select(RESERVATIONS).where(*mine))
        if not rows:
            return None
        places: list[tuple[str, str]] = orjson.loads(rows[0]["buckets"])
        buckets = tuple(restored_bucket(account, period, caps) for account, period in places)
        return Reservation(rows[0]["id"], rows[0]["nano"], buckets), rows[0]["created"]

    async def job_reservations(self) -> list[JobReservation]:
        """Return what jobs' runs hold, of this process and others."""
        held = RESERVATIONS.c.owner == JOBS_OWNER
        columns = (RESERVATIONS.c.id, RESERVATIONS.c.run_id, RESERVATIONS.c.tenant)
        rows = await self._database.fetch_rows(select(*columns).where(held))
        return [JobReservation(row["id"], RunId(row["run_id"]), row["tenant"]) for row in rows]

    async def renew_job_reservations(self, ids: Iterable[str], now: float) -> None:
        """Hold for longer what jobs hold that wait or are run: one may wait a week for approval.

        Args:
            ids: of the reservations; those that last for half of their time yet are left.
            now: what time it is.
        """
        due = RESERVATIONS.c.expires < now + JOB_LEASE_SECONDS / 2
        chosen = (RESERVATIONS.c.id.in_(tuple(ids)), RESERVATIONS.c.owner == JOBS_OWNER, due)
        if await self._has_reservation(and_(*chosen)):
            later = update(RESERVATIONS).where(*chosen).values(expires=now + JOB_LEASE_SECONDS)
            await self._database.run_write(lambda one: one.execute(later))

    async def end_job_reservations(self, ids: Iterable[str]) -> int:
        """Count what jobs hold that no longer run as spent; return how many runs were lost."""
        chosen = RESERVATIONS.c.id.in_(tuple(ids))
        lines = await self._database.run_write(lambda one: end_reservations(one, chosen))
        return _warn_of_lost(lines, "job")

    async def is_settled(self, run_id: RunId) -> bool:
        """Return True if the run is in the ledger, with what it cost."""
        mine = (LEDGER.c.run_id == run_id, LEDGER.c.line >= 0)
        return bool(await self._database.fetch_rows(select(LEDGER.c.line).where(*mine).limit(1)))

    async def release(self, reservation: Reservation, counted: int = 0) -> None:
        """Give back what was reserved for a run that is not in the ledger.

        Args:
            reservation: what was reserved.
            counted: billionths of it that count as spent, for calls of which nobody knows more.

        Raises:
            StoreError: the database fails; the reservation expires with its lease.
        """
        places = ((bucket.account, bucket.period) for bucket in reservation.buckets)
        spent = dict.fromkeys(places, counted) if counted else {}
        leased = self._leases.find(reservation.id)
        with anyio.CancelScope(shield=True):
            if leased is not None:
                await self._leases.release(leased, counted)
                return
            await self._database.run_write(
                lambda one: settle_reservations(one, (reservation.id,), spent)
            )

    async def budget_status(self, buckets: Iterable[Bucket]) -> list[BudgetStatus]:
        """Return how full those buckets are; what this process can hand out is not reserved."""
        return [await self._bucket_status(bucket) for bucket in buckets]

    async def work(self) -> None:
        """Renew this process's reservations and end those of dead ones, until `close`."""
        due = float("-inf")
        try:
            while not self._closing.is_set():
                # Shielded: a connection cancelled in mid-statement is thrown away with its thread.
                with anyio.CancelScope(shield=True):
                    if self._clock() >= due:
                        due = self._clock() + self._lease / 3
                        await self._try("renewal", self._renew_and_reap)
                    await self._try("leases", self._tidy)
                await self._rest(max(0.0, due - self._clock()))
        finally:
            self._ended.set()

    async def _rest(self, seconds: float) -> None:
        """Wait so long at most; while leases are used only until they may have to be given back."""
        if self._leases.is_active:
            with anyio.move_on_after(min(seconds, _FAILURE_PAUSE if self._failing else _PAUSE)):
                await self._closing.wait()
            return
        if self._closing.is_set():
            return
        self._leases.began = anyio.Event()
        with anyio.move_on_after(seconds):
            await self._leases.began.wait()

    async def close(self) -> None:
        """End `work`; what is reserved stays so until its lease is over."""
        self._closing.set()
        self._leases.began.set()
        await self._ended.wait()

    async def give_back_leases(self) -> None:
        """Give back what this process has taken beforehand; what fails ends with its lease."""
        await self._try("leases", self._leases.give_back)

    async def _try(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except StoreError as error:
            if name not in self._failing:
                _LOG.warning("budgets: %s", error)
            self._failing.add(name)
        else:
            self._failing.discard(name)

    async def _renew_and_reap(self) -> None:
        await self.renew(time())
        await self.reap(self._clock())

    async def _tidy(self) -> None:
        await self._leases.tidy(lambda asked: self._writer.find(asked.run_id) is not None)

    async def renew(self, now: float) -> None:
        """Hold this process's reservations for another lease.

        Args:
            now: what time it is; others see that it is another time than before.
        """
        mine = RESERVATIONS.c.owner == self._leases.owner
        if self._leases.is_active or await self._has_reservation(mine):
            await self._leases.renew(now + self._lease)

    async def reap(self, now: float, today: float | None = None) -> int:
        """Count what dead processes hold as spent; return how many lines of the ledger tell so.

        Dead is a process whose reservations this one has seen unchanged for a lease. Its own clock
        alone measures that: no clock that is wrong or is set ends the reservation of a living one.

        Args:
            now: seconds of a clock that is never set.
            today: what time it is, which tells how long jobs have waited; None: ask the system.
        """
        columns = (RESERVATIONS.c.id, RESERVATIONS.c.owner, RESERVATIONS.c.expires)
        query = select(*columns).where(RESERVATIONS.c.owner != self._leases.owner)
        today = time() if today is None else today
        async with self._reaping:
            rows = await self._database.run_read(lambda one: one.execute(query).all())
            seen, dead = dict[str, tuple[float, float]](), list[tuple[str, float]]()
            for name, owner, reserved in rows:
                before = self._seen.get(name)
                seen[name] = (
                    before if before is not None and before[0] == reserved else (reserved, now)
                )
                is_silent = now - seen[name][1] >= self._lease
                if reserved < today if owner == JOBS_OWNER else is_silent:
                    dead.append((name, reserved))
            self._seen = seen
            del dead[_BATCH:]  # the others a moment later
            unchanged = tuple_(RESERVATIONS.c.id, RESERVATIONS.c.expires).in_(dead)
            return await self._end_lost(unchanged) if dead else 0

    async def _end_lost(self, dead: Any) -> int:
        lines = await self._database.run_write(lambda one: end_reservations(one, dead))
        return _warn_of_lost(lines, "process")

    async def _has_reservation(self, chosen: Any) -> bool:
        query = select(RESERVATIONS.c.id).where(chosen).limit(1)
        return await self._database.run_read(lambda one: one.execute(query).first() is not None)

    async def _grant(self, asks: list[ReserveRequest]) -> list[_ReserveResult]:
        """Grant all in one transaction; if a bucket is too full for all, one by one."""
        answer = await self._try_all(asks)
        if len(asks) == 1 or answer is None:
            return [answer or ask.wanted for ask in asks]
        if isinstance(answer, StoreError):
            return [answer] * len(asks)
        return [await self._try_all([ask]) or ask.wanted for ask in asks]

    async def _try_all(self, asks: list[ReserveRequest]) -> BudgetStatus | StoreError | None:
        """Reserve for all of them or for none; return None if it did, else why not."""
        try:
            await self._transact(asks)
        except BudgetFullError as refused:
            return refused.exhausted
        except DatabaseFailedError as error:
            return error
        return None

    async def _undo(self, answer: _ReserveResult) -> None:
        """Give back what was granted to somebody who has gone."""
        if isinstance(answer, Reservation):
            await self.release(answer)

    async def _transact(self, asks: list[ReserveRequest]) -> None:
        sums: Counter[Bucket] = Counter()
        for ask in asks:
            for bucket in ask.wanted.buckets:
                sums[bucket] += ask.wanted.nano
        later = time()
        rows = [
            ask.row(
                self._leases.owner,
                ask.wanted.nano,
                later + (JOB_LEASE_SECONDS if ask.lasting else self._lease),
            )
            for ask in asks
        ]
        busy = self._leases.find_busy(asks)
        try:
            if busy:
                await self._leases.reserve(sums, rows, busy)
            else:
                await self._database.run_write(lambda one: reserve_in_buckets(one, sums, rows))
        except DatabaseFailedError:
            self._leases.doubt(ask.wanted.id for ask in asks)
            raise

    async def _bucket_status(self, bucket: Bucket) -> BudgetStatus:
        async with self._leases.turn:  # else a lease that is just given back would be told as held
            found = await self._database.run_read(
                lambda connection: read_budget_status(connection, bucket)
            )
            return replace(found, reserved=found.reserved - self._leases.free_of(bucket))


def _warn_of_lost(lines: list[dict[str, Any]], what: str) -> int:
    """Name the runs that were lost in the log, and return how many lines there are."""
    for line in lines:
        _LOG.warning(
            "run %s was lost with its %s; its cost is not known and counts as %s",
            line["run_id"],
            what,
            format_usd(line["assumed_usd"]),
        )
    return len(lines)
