"""Budgets: money is reserved before a run and settled after it.

The statement that reserves also checks `spent + reserved <= cap`, so the cap holds whatever other
tasks and processes do at the same time. Requests that arrive while a transaction is running share
the next one. Requests in quick succession get their money from a lease (`leases`), without the
database.

A reservation belongs to a process, which renews it. When the other processes have seen no renewal
for a while, they end the reservation and record the run as lost; the cost is unknown, so the whole
reservation counts as spent (`lost_runs`). Each process measures that time by its own monotonic
clock, so a step of the system clock ends no reservation in use. The reservation of a background
job is not ended in this way: it waits for a process that resumes the job, until it expires
(`JOB_LEASE_SECONDS`).
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
    LEASE_PREFIX,
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
"""Seconds that a batch waits for further items under load."""
_BUSY_SECONDS = 0.01
"""Seconds after the end of a batch within which the next batch counts as under load."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Batch(Generic[_T, _R]):
    """Items that are processed together."""

    items: list[_T] = field(default_factory=list[_T])
    results: dict[int, _R] = field(default_factory=dict[int, _R])
    """Results by the item's `id()`; empty until the batch is done."""
    is_led: bool = False
    """Whether a waiting task leads the batch: it runs the batch, or waits for the lock to do so."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the batch is done, or when its leader was cancelled."""


@final
class Batcher(Generic[_T, _R]):
    """Processes items in batches, one batch after another.

    One of the tasks that wait for a batch runs it. If that task is cancelled before the batch has
    begun, another of them runs it.
    """

    def __init__(
        self,
        work: Callable[[list[_T]], Awaitable[Sequence[_R]]],
        undo: Callable[[_R], Awaitable[None]] | None = None,
    ) -> None:
        """Set up the batcher.

        Args:
            work: processes a batch and returns the results in the order of the items; it must not
                raise.
            undo: called with a result if the task that waited for it was cancelled; None: such a
                result is dropped.
        """
        self._work = work
        self._undo = undo
        self._lock = anyio.Lock(fast_acquire=True)
        self._next: _Batch[_T, _R] = _Batch()
        self._ended = float("-inf")

    async def submit(self, item: _T) -> _R:
        """Process the item in the next batch and return the item's result."""
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
        """Run the batch when the lock is free; if cancelled before, leave it to another task."""
        batch.is_led = True
        try:
            async with self._lock:
                await self._run_batch(batch)
        finally:
            batch.is_led = bool(batch.results)
            batch.changed.set()
            batch.changed = asyncio.Event()

    async def _run_batch(self, batch: _Batch[_T, _R]) -> None:
        """Run the batch, which must not have begun."""
        if self._next is not batch:
            raise RuntimeError("a batch was run twice")
        with anyio.CancelScope(shield=True):
            # Tasks that are about to submit join this batch. Waking a thread for each would cost
            # more than the database, so under load a short wait pays.
            busy = monotonic() - self._ended < _BUSY_SECONDS
            await asyncio.sleep(LINGER_SECONDS if busy else 0)
            self._next = _Batch()
            results = await self._work(batch.items)
            batch.results = {
                id(item): result for item, result in zip(batch.items, results, strict=True)
            }
            self._ended = monotonic()

    async def _leave(self, batch: _Batch[_T, _R], item: _T) -> None:
        """Take the item out of its batch; if the batch has begun, undo the item's result."""
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
"""Seconds without renewal after which other processes end a reservation of this process."""
JOB_LEASE_SECONDS = 24 * 3600.0
"""Seconds for which a job's reservation waits until the job is resumed."""
_MAX_TRIES = 8
"""Maximum attempts with a smaller amount if a budget lacks the full amount; the last attempt takes
the minimum."""
_BATCH = 500
"""Maximum number of reservations that a call of `Budgets.reap` ends."""
_PAUSE = IDLE_SECONDS / 2
"""Seconds between checks of the leases."""
_FAILURE_PAUSE = 5.0
"""Seconds between checks of the leases while the database fails."""
_LOG = logging.getLogger(__name__)


_ReserveResult = Reservation | BudgetStatus | StoreError


@dataclass(frozen=True, slots=True)
class JobReservation:
    """The reservation of a background job's run."""

    id: str
    run_id: RunId
    tenant: str


@final
class Budgets:
    """Makes and releases reservations; the writer settles a reservation when it writes the run."""

    def __init__(
        self,
        database: Database,
        writer: RunWriter,
        leases: Leases,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._database = database
        self._writer = writer
        self._leases = leases
        self._clock = clock
        self._batcher = Batcher(self._grant, self._undo)
        self._closing = anyio.Event()
        self._ended = anyio.Event()
        self._seen: dict[str, tuple[float, float]] = {}
        """Expiries of reservations of other processes, and when each expiry was first seen."""
        self._reaping = anyio.Lock(fast_acquire=True)
        self._failing: set[str] = set()
        """Names of the background work that failed last time; each failure is logged once."""

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
        """Reserve the same amount in every bucket, or nothing in any.

        Args:
            run_id: the run.
            nano: the amount in billionths of a dollar; if a bucket has less left, the amount is
                what it has left, but at least `least`.
            buckets: the budgets to reserve in.
            tenant: recorded in the ledger if the run is lost.
            key: recorded in the ledger if the run is lost; None: no key.
            model: recorded in the ledger if the run is lost.
            for_job: whether the run belongs to a background job, which outlives this process.
            least: the smallest acceptable amount in billionths; None: `nano`.
            at: the time of booking, in seconds since the epoch; None: now.

        Returns:
            The reservation, or the status of a bucket that has less than `least` left.
        """
        booked = time() if at is None else at

        def make_request(amount: int) -> ReserveRequest:
            return ReserveRequest(
                run_id=run_id,
                tenant=tenant,
                key=key,
                model=model,
                reservation=Reservation(secrets.token_hex(8), amount, buckets),
                lasting=for_job,
                at=booked,
            )

        first = make_request(nano)
        # While runs cannot be written, nothing more is spent from memory.
        if not for_job and self._writer.failure is None and self._leases.take(first):
            return first.reservation

        async def take(amount: int) -> _ReserveResult:
            return await self._batcher.submit(make_request(amount))

        least = nano if least is None else least
        return await self._take_up_to(take, nano, least, buckets)

    async def grow(self, held: Reservation, nano: int, least: int) -> Reservation | BudgetStatus:
        """Enlarge the reservation in every bucket by `nano` billionths.

        If a bucket lacks that much, add what it has left, but at least `least`.

        Returns:
            The enlarged reservation, or the status of a bucket that has less than `least` left.

        Raises:
            StoreError: the database fails, or another process has ended the reservation.
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
        """Enlarge a reservation: in memory if leased, or by moving it to a row; else in its row."""
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
        """Take `nano`, or less down to `least`; else return the status of an exhausted bucket."""
        answer = await take(nano)
        if isinstance(answer, BudgetStatus) and await self._make_room(buckets):
            answer = await take(nano)
        tries = _MAX_TRIES
        while isinstance(answer, BudgetStatus) and least <= answer.remaining and tries:
            tries -= 1  # another bucket may have less left, or another process was faster
            nano = min(nano, answer.remaining) if tries else least
            answer = await take(nano)
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer, BudgetStatus):
            unwritten = self._leases.unwritten_holders(answer.bucket)
            return replace(answer, holders=answer.holders + unwritten)
        return answer

    async def _make_room(self, buckets: tuple[Bucket, ...]) -> bool:
        """Write finished runs and give back unused leases; return True if there were any."""
        pending = self._writer.pending_count > 0
        if pending:
            await self._writer.flush()  # finished runs may still hold their reservations
        return await self._leases.give_back_of(buckets) or pending

    async def find_job_reservation(
        self, run_id: RunId, caps: Mapping[str, PeriodCaps]
    ) -> tuple[Reservation, float] | None:
        """Return the reservation of a job's run and the time of booking; None: it has none.

        The buckets are the stored ones, even if the day or month has changed since.

        Args:
            run_id: the run; its process may have died.
            caps: the current caps of each account; an account that is left out has no cap.

        Returns:
            The reservation, and the time in seconds since the epoch.
        """
        mine = (RESERVATIONS.c.run_id == run_id, RESERVATIONS.c.owner == JOBS_OWNER)
        rows = await self._database.fetch_rows(select(RESERVATIONS).where(*mine))
        if not rows:
            return None
        periods: list[tuple[str, str]] = orjson.loads(rows[0]["buckets"])
        buckets = tuple(restored_bucket(account, period, caps) for account, period in periods)
        return Reservation(rows[0]["id"], rows[0]["nano"], buckets), rows[0]["created"]

    async def job_reservations(self) -> list[JobReservation]:
        """Return the reservations of all jobs, of this process and others."""
        held = RESERVATIONS.c.owner == JOBS_OWNER
        columns = (RESERVATIONS.c.id, RESERVATIONS.c.run_id, RESERVATIONS.c.tenant)
        rows = await self._database.fetch_rows(select(*columns).where(held))
        return [JobReservation(row["id"], RunId(row["run_id"]), row["tenant"]) for row in rows]

    async def renew_job_reservations(self, ids: Iterable[str], now: float) -> None:
        """Extend reservations of jobs that wait or run, as an approval may take a week.

        Args:
            ids: the reservations; one with more than half of its time left is skipped.
            now: seconds since the epoch.
        """
        due = RESERVATIONS.c.expires < now + JOB_LEASE_SECONDS / 2
        chosen = (RESERVATIONS.c.id.in_(tuple(ids)), RESERVATIONS.c.owner == JOBS_OWNER, due)
        if await self._has_reservation(and_(*chosen)):
            later = update(RESERVATIONS).where(*chosen).values(expires=now + JOB_LEASE_SECONDS)
            await self._database.execute(later)

    async def end_job_reservations(self, ids: Iterable[str]) -> int:
        """End reservations of jobs that no longer run, as spent; return how many runs were lost.

        A run that is already in the ledger is not lost: its reservation is only released.
        """
        return await self._end_lost(RESERVATIONS.c.id.in_(tuple(ids)), "job")

    async def is_settled(self, run_id: RunId) -> bool:
        """Return True if the run's cost is in the ledger."""
        mine = (LEDGER.c.run_id == run_id, LEDGER.c.line >= 0)
        return bool(await self._database.fetch_rows(select(LEDGER.c.line).where(*mine).limit(1)))

    async def release(self, reservation: Reservation, counted: int = 0) -> None:
        """Release the reservation of a run that is not in the ledger.

        Args:
            reservation: the reservation.
            counted: billionths of it that count as spent, for calls of unknown cost.

        Raises:
            StoreError: the database fails; the money stays reserved until the database works
                again, or, if `counted` of a lease's money is spent, until this process has ended.
        """
        periods = (bucket.account_period for bucket in reservation.buckets)
        spent = dict.fromkeys(periods, counted) if counted else {}
        leased = self._leases.find(reservation.id)
        with anyio.CancelScope(shield=True):
            if leased is not None:
                await self._leases.release(leased, counted)
                return
            try:
                await self._database.run_write(
                    lambda connection: settle_reservations(connection, (reservation.id,), spent)
                )
            except DatabaseFailedError:
                self._leases.doubt([reservation.id], counted)
                raise

    async def budget_status(self, buckets: Iterable[Bucket]) -> list[BudgetStatus]:
        """Return the status of the buckets; unused money in leases of this process is free."""
        return [await self._bucket_status(bucket) for bucket in buckets]

    async def work(self) -> None:
        """Renew this process's reservations, end abandoned ones and tidy leases, until `close`."""
        due = float("-inf")
        try:
            while not self._closing.is_set():
                # Shielded: cancelling a statement would discard the connection and its thread.
                with anyio.CancelScope(shield=True):
                    if self._clock() >= due:
                        due = self._clock() + LEASE_SECONDS / 3
                        await self._try("renewal", self._renew_and_reap)
                    await self._try("leases", self._tidy)
                await self._rest(max(0.0, due - self._clock()))
        finally:
            self._ended.set()

    async def _rest(self, seconds: float) -> None:
        """Sleep at most that long; shorter while leases may have money to give back."""
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
        """End `work`; what is neither settled nor released stays reserved until it is abandoned."""
        self._closing.set()
        self._leases.began.set()
        await self._ended.wait()

    async def give_back_leases(self) -> None:
        """Give back the unused money of all leases.

        If the database fails, that money counts as spent once the leases have expired.
        """
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
        await self._leases.tidy(lambda request: self._writer.find(request.run_id) is not None)

    async def renew(self, now: float) -> None:
        """Renew this process's reservations.

        Args:
            now: seconds since the epoch; other processes only see that the expiry has changed.
        """
        mine = RESERVATIONS.c.owner == self._leases.owner
        if self._leases.is_active or await self._has_reservation(mine):
            await self._leases.renew(now + LEASE_SECONDS)

    async def reap(self, now: float, today: float | None = None) -> int:
        """End abandoned reservations, as spent; return the number of new ledger lines.

        A reservation of another process is abandoned if this process has seen it unchanged for
        `LEASE_SECONDS` of its own monotonic clock; a wrong or stepped system clock ends no
        reservation of a living process. A job's reservation is abandoned when it has expired. One
        call ends at most `_BATCH` reservations.

        Args:
            now: seconds of a monotonic clock.
            today: seconds since the epoch, against which job reservations expire; None: now.
        """
        columns = (RESERVATIONS.c.id, RESERVATIONS.c.owner, RESERVATIONS.c.expires)
        query = select(*columns).where(RESERVATIONS.c.owner != self._leases.owner)
        today = time() if today is None else today
        async with self._reaping:
            rows = await self._database.run_read(lambda connection: connection.execute(query).all())
            seen, dead = dict[str, tuple[float, float]](), list[tuple[str, float]]()
            for name, owner, expires in rows:
                before = self._seen.get(name)
                seen[name] = (
                    before if before is not None and before[0] == expires else (expires, now)
                )
                is_silent = now - seen[name][1] >= LEASE_SECONDS
                if expires < today if owner == JOBS_OWNER else is_silent:
                    dead.append((name, expires))
            self._seen = seen
            del dead[_BATCH:]  # the others in the next call
            unchanged = tuple_(RESERVATIONS.c.id, RESERVATIONS.c.expires).in_(dead)
            return await self._end_lost(unchanged, "process") if dead else 0

    async def _end_lost(self, condition: Any, what: str) -> int:
        """End the reservations that meet the condition; return the number of new ledger lines.

        `what` has ended, a `process` or a `job`; the log message about each line names it.
        """
        lines = await self._database.run_write(
            lambda connection: end_reservations(connection, condition)
        )
        for line in lines:
            _LOG.warning(
                "%s %s was lost with its %s; its cost is unknown and counts as %s",
                "the lease" if line["run_id"].startswith(LEASE_PREFIX) else "run",
                line["run_id"],
                what,
                format_usd(line["assumed_usd"]),
            )
        return len(lines)

    async def _has_reservation(self, condition: Any) -> bool:
        query = select(RESERVATIONS.c.id).where(condition).limit(1)
        return await self._database.run_read(
            lambda connection: connection.execute(query).first() is not None
        )

    async def _grant(self, requests: list[ReserveRequest]) -> list[_ReserveResult]:
        """Grant all requests in one transaction; if a bucket lacks money for all, one by one."""
        answer = await self._try_all(requests)
        if len(requests) == 1 or answer is None:
            return [answer or request.reservation for request in requests]
        if isinstance(answer, StoreError):
            return [answer] * len(requests)
        return [await self._try_all([request]) or request.reservation for request in requests]

    async def _try_all(self, requests: list[ReserveRequest]) -> BudgetStatus | StoreError | None:
        """Reserve for all requests or for none; return None on success, else the reason."""
        try:
            await self._transact(requests)
        except BudgetFullError as refused:
            return refused.exhausted
        except DatabaseFailedError as error:
            return error
        return None

    async def _undo(self, answer: _ReserveResult) -> None:
        """Release a reservation if its request was cancelled while it waited."""
        if isinstance(answer, Reservation):
            await self.release(answer)

    async def _transact(self, requests: list[ReserveRequest]) -> None:
        sums: Counter[Bucket] = Counter()
        for request in requests:
            for bucket in request.reservation.buckets:
                sums[bucket] += request.reservation.nano
        now = time()
        rows = [
            request.row(
                self._leases.owner,
                request.reservation.nano,
                now + (JOB_LEASE_SECONDS if request.lasting else LEASE_SECONDS),
            )
            for request in requests
        ]
        busy = self._leases.find_busy(requests)
        try:
            if busy:
                await self._leases.reserve(sums, rows, busy)
            else:
                await self._database.run_write(
                    lambda connection: reserve_in_buckets(connection, sums, rows)
                )
        except DatabaseFailedError:
            self._leases.doubt(request.reservation.id for request in requests)
            raise

    async def _bucket_status(self, bucket: Bucket) -> BudgetStatus:
        async with self._leases.lock:  # else a lease that is being returned would count as reserved
            found = await self._database.run_read(
                lambda connection: read_budget_status(connection, bucket)
            )
            return replace(found, reserved=found.reserved - self._leases.free_of(bucket))
