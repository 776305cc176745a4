"""Leases: money of budgets that a process reserves in advance and gives to its runs from memory.

A lease is a row of `reservations` that belongs to a process and to no run. The statement that
reserves money for runs also reserves leases, so all processes together never exceed the cap. A
lease is taken only while requests follow in quick succession, and only as a small part of the money
left: about as much as the runs use in a second. Money that was not needed for a second is given
back. If a process dies, no other process knows which runs got money from its leases, so all money
in the leases counts as spent, like the reservations of that process.

The database is authoritative: a lease is assumed to hold at most the amount that the database
returned last, and transactions that change a lease are serialised by `lock`.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from time import monotonic, time
from typing import final

import anyio
import orjson
from sqlalchemy import Connection, Executable, delete, insert, update

from batuta.errors import StoreError
from batuta.store.database import Database, DatabaseFailedError, insert_statement
from batuta.store.lease_changes import Lease, LeaseChanges, LeasedRun, TopUp
from batuta.store.ledger import (
    AccountPeriod,
    Bucket,
    ReserveRequest,
    grow_reservation,
    settle_reservations,
    settle_rows,
    take_rows,
)
from batuta.store.models import RESERVATIONS

IDLE_SECONDS = 1.0
"""Seconds after which unused money is given back; requests further apart get no lease."""
_BATCH = 500
"""Maximum rows that a transaction inserts for runs, gives back or deletes."""
_TRUSTED_PART = 2 / 3
"""Share of a lease's time to expiry for which a process may use the lease after a renewal."""

BucketGroup = tuple[Bucket, ...]


@final
class Leases:
    """The leases of this process."""

    def __init__(
        self,
        database: Database,
        *,
        seconds: float,
        clock: Callable[[], float] = monotonic,
        wall: Callable[[], float] = time,
    ) -> None:
        """Set up without any lease.

        Args:
            database: the database with the budgets.
            seconds: time without renewal after which other processes end a reservation.
            clock: a monotonic clock.
            wall: seconds since the epoch.
        """
        self._database = database
        self._seconds = seconds
        self._clock = clock
        self._wall = wall
        self._leases: dict[Bucket, Lease] = {}
        self._runs: dict[str, LeasedRun] = {}
        self._requested: dict[BucketGroup, float] = {}
        """When money of a group of budgets was last requested from the database."""
        self._doubtful: dict[str, int] = {}
        """Ids of rows of failed transactions, with the billionths that count as spent when such a
        row is deleted, if it is there."""
        self.lock = anyio.Lock(fast_acquire=True)
        self.began = anyio.Event()
        """Set when `is_active` becomes true."""
        self.owner = secrets.token_hex(8)
        """This process's id in the table of reservations."""

    @property
    def is_active(self) -> bool:
        """True if there are leases, leased runs or doubtful rows to maintain."""
        return bool(self._leases or self._runs or self._doubtful)

    def take(self, request: ReserveRequest) -> bool:
        """Reserve from memory; return False unless each budget has a trusted lease with enough."""
        leases = self._usable(request.reservation.buckets, request.reservation.nano)
        if leases is None:
            return False
        run = LeasedRun(
            request=request, nano=request.reservation.nano, leases=leases, since=self._clock()
        )
        for lease in leases:
            lease.runs += 1
        self._hold(run, run.nano)
        self._runs[request.reservation.id] = run
        return True

    def grow(self, reservation_id: str, nano: int) -> bool:
        """Enlarge a leased run's reservation from memory; return False if that is impossible."""
        run = self._runs[reservation_id]
        if (
            run.may_have_moved
            or self._usable((lease.bucket for lease in run.leases), nano) != run.leases
        ):
            return False
        self._hold(run, nano)
        run.nano += nano
        return True

    def _usable(self, buckets: Iterable[Bucket], nano: int) -> tuple[Lease, ...] | None:
        """Return the leases of the buckets; None unless each has enough money and is trusted."""
        now, wall = self._clock(), self._wall()
        leases = list[Lease]()
        for bucket in buckets:
            lease = self._leases.get(bucket)
            if lease is None or lease.free < nano:
                return None
            if lease.trusted[0] < now or lease.trusted[1] < wall:
                return None
            leases.append(lease)
        return tuple(leases)

    def _hold(self, run: LeasedRun, nano: int) -> None:
        for lease in run.leases:
            lease.held += nano
            lease.given += nano
            lease.unused = min(lease.unused, lease.free)

    def find(self, reservation_id: str) -> LeasedRun | None:
        """Return the leased run of that reservation; None if its money is not in leases."""
        return self._runs.get(reservation_id)

    def free_of(self, bucket: Bucket) -> int:
        """Return the unused part of this process's leases of the bucket."""
        return sum(
            max(0, lease.free)
            for lease in self._leases.values()
            if lease.bucket.account_period == bucket.account_period
        )

    def unwritten_holders(self, bucket: Bucket) -> int:
        """Return the number of runs with money of the bucket that have no row in the database."""
        period = bucket.account_period
        return sum(
            not run.has_row
            and any(held.account_period == period for held in run.request.reservation.buckets)
            for run in self._runs.values()
        )

    def find_busy(self, requests: Iterable[ReserveRequest]) -> tuple[ReserveRequest, ...]:
        """Return the largest request for each set of budgets that needs leases.

        These are the sets that get requests in quick succession or have leases already; jobs get
        none.
        """
        now, busy = self._clock(), dict[BucketGroup, ReserveRequest]()
        for request in requests:
            group = request.reservation.buckets
            if request.lasting or not group:
                continue
            is_repeated = now - self._requested.get(group, float("-inf")) < IDLE_SECONDS
            if is_repeated or all(bucket in self._leases for bucket in group):
                known = busy.get(group, request)
                busy[group] = max(known, request, key=lambda each: each.reservation.nano)
            self._requested[group] = now
        if len(self._requested) > 2 * (len(self._leases) + 100):
            self._requested = {
                k: at for k, at in self._requested.items() if now - at < IDLE_SECONDS
            }
        return tuple(busy.values())

    def _trusted_from_now(self) -> tuple[float, float]:
        """Return when a lease that is written now stops being trusted, by both clocks."""
        seconds = self._seconds * _TRUSTED_PART
        return self._clock() + seconds, self._wall() + seconds

    async def reserve(
        self,
        sums: Mapping[Bucket, int],
        rows: list[dict[str, object]],
        busy: tuple[ReserveRequest, ...],
    ) -> None:
        """Write reservations, and take leases for further ones in the same transaction.

        Raises:
            BudgetFullError: a budget has no room for the reservations; nothing was written.
        """
        async with self.lock:
            trusted, now = self._trusted_from_now(), self._clock()
            buckets = {bucket for request in busy for bucket in request.reservation.buckets}
            known = {b: lease for b in buckets if (lease := self._leases.get(b))}
            expires = self._wall() + self._seconds
            top_up = TopUp(busy, known, self.owner, now=now, expires=expires)
            with self._doubting(top_up.new_ids):
                await self._database.run_write(
                    lambda connection: top_up.write(connection, sums, rows)
                )
            for bucket, lease in known.items():
                if lease.id not in top_up.alive:
                    self._end(lease)
                elif bucket in top_up.nano:
                    lease.nano, lease.trusted = top_up.nano[bucket], trusted
                    lease.filled, lease.size, lease.given = now, lease.free, 0
            for bucket, lease_id in top_up.new.items():
                nano = top_up.nano[bucket]
                self._leases[bucket] = Lease(
                    id=lease_id, bucket=bucket, nano=nano, trusted=trusted,
                    since=now, unused=nano, filled=now, size=nano,
                )  # fmt: skip
            if self._leases:
                self.began.set()

    @contextmanager
    def _doubting(self, ids: Iterable[str]) -> Generator[None]:
        """Mark the rows as doubtful if the block's transaction fails."""
        try:
            yield
        except DatabaseFailedError:
            self.doubt(ids)
            raise

    def doubt(self, ids: Iterable[str], counted: int = 0) -> None:
        """Mark rows for deletion: a failed transaction may have written or deleted them, or not.

        Args:
            ids: the rows.
            counted: billionths of each row that count as spent, if this process deletes the row.
        """
        self._doubtful |= dict.fromkeys(ids, counted)
        self.began.set()

    async def move_to_row(self, reservation_id: str, more: int) -> bool:
        """Move a leased run's money to its own row, enlarged by `more`.

        Returns:
            False if the run's money is no longer in leases; nothing was changed.

        Raises:
            StoreError: a lease has ended, or the database fails.
            BudgetFullError: a budget has no room for more; nothing was changed.
        """
        async with self.lock:
            run = self._runs.get(reservation_id)
            if run is None:  # a concurrent call of the same run has moved it
                return False
            if run.may_have_moved:
                raise StoreError("the run's reservation is unknown, since the database failed")
            changes = LeaseChanges()
            changes.take(run, run.nano)
            row = self.row_of(run.request, run.nano)

            def work(connection: Connection) -> None:
                changes.write(connection)
                if len(changes.left) < len(changes.taken):
                    raise StoreError("the run's reservation has ended: it was not renewed in time")
                connection.execute(delete(RESERVATIONS).where(RESERVATIONS.c.id == reservation_id))
                connection.execute(insert(RESERVATIONS), [row])
                grow_reservation(connection, run.request.reservation, more)

            try:
                await self._database.run_write(work)
            except DatabaseFailedError:
                run.has_row = run.may_have_moved = True
                for lease in run.leases:
                    lease.nano -= run.nano
                raise
            self.note_changes([run], changes)
            return True

    def row_of(self, request: ReserveRequest, nano: int) -> dict[str, object]:
        """Return a row that reserves `nano` billionths for this process."""
        return request.row(self.owner, nano, self._wall() + self._seconds)

    def note_changes(self, runs: Iterable[LeasedRun], changes: LeaseChanges) -> None:
        """Update memory after a transaction settled or moved these runs; `lock` must be held."""
        for run in runs:
            self._drop(run)
            for lease in run.leases:
                if lease.id in changes.left:
                    lease.nano = changes.left[lease.id]
                elif lease.id in changes.taken:
                    self._end(lease)

    def _drop(self, run: LeasedRun) -> None:
        """Return the run's money to its leases."""
        if self._runs.pop(run.request.reservation.id, None) is None:
            return
        for lease in run.leases:
            lease.held -= run.nano
            lease.runs -= 1

    def _end(self, lease: Lease) -> None:
        if self._leases.get(lease.bucket) is lease:
            del self._leases[lease.bucket]

    async def release(self, run: LeasedRun, counted: int) -> None:
        """Release a run's money, except for `counted` billionths, which count as spent."""
        if not counted:
            self._drop(run)
            if run.has_row:
                self.doubt([run.request.reservation.id])
            return
        async with self.lock:
            changes = LeaseChanges()
            periods = [bucket.account_period for bucket in run.request.reservation.buckets]
            spent = dict.fromkeys(periods, counted)

            def work(connection: Connection) -> None:
                returned = changes.settle(connection, [(run, counted)])
                settle_reservations(connection, (run.request.reservation.id,), spent, returned)

            await self._database.run_write(work)
            self.note_changes([run], changes)

    async def tidy(self, is_over: Callable[[ReserveRequest], bool]) -> None:
        """Give back unused money, delete doubtful rows, and write rows for runs that take long.

        Args:
            is_over: whether a run has ended and only waits to be written.
        """
        now = self._clock()
        await self._forget_doubtful()
        old = [lease for lease in self._leases.values() if now - lease.since >= IDLE_SECONDS]
        await self._give_back_parts({lease: lease.unused for lease in old})
        for lease in old:
            lease.since, lease.unused = now, lease.free
        async with self.lock:
            new = [
                run
                for run in self._runs.values()
                if not run.has_row
                and now - run.since >= IDLE_SECONDS / 2
                and not is_over(run.request)
            ]
            if not new:
                return
            new = new[:_BATCH]
            rows = [self.row_of(run.request, 0) for run in new]
            for run in new:
                run.has_row = True
            await self._database.run_write(
                lambda connection: connection.execute(_insert_once(connection), rows)
            )

    async def _forget_doubtful(self) -> None:
        while self._doubtful:
            doubted = dict(islice(self._doubtful.items(), _BATCH))
            await self._database.run_write(partial(_delete_doubtful, doubted=doubted))
            for name in doubted:
                self._doubtful.pop(name, None)

    async def give_back(self, leases: Iterable[Lease] | None = None) -> None:
        """Give back the free money of these leases; None: of all leases, and delete doubtful rows.

        Raises:
            StoreError: the database fails; the next renewal reads what the leases hold.
        """
        chosen = list(self._leases.values()) if leases is None else list(leases)
        await self._give_back_parts({lease: lease.nano for lease in chosen})
        if leases is None:
            await self._forget_doubtful()

    async def _give_back_parts(self, parts: Mapping[Lease, int]) -> None:
        """Give back at most these amounts of the leases, as far as the money is still free."""
        chosen = list(parts)
        for start in range(0, len(chosen), _BATCH):
            await self._give_back({one: parts[one] for one in chosen[start : start + _BATCH]})

    async def _give_back(self, parts: Mapping[Lease, int]) -> None:
        async with self.lock:
            kept = {lease for lease, nano in parts.items() if lease.runs or nano < lease.nano}
            unused = [lease for lease in parts if lease not in kept]
            free = {lease: min(nano, lease.free) for lease, nano in parts.items() if lease in kept}
            used = [lease for lease, nano in free.items() if nano > 0]
            if not (unused or used):
                return
            changes = LeaseChanges(taken={lease.id: free[lease] for lease in used})
            for lease in used:  # so that no run takes it during the transaction
                lease.nano -= changes.taken[lease.id]
            for lease in unused:
                self._end(lease)
            ended = tuple(lease.id for lease in unused)

            def work(connection: Connection) -> None:
                changes.write(connection)
                settle_reservations(connection, ended, {}, changes.returned(used))

            with self._doubting(ended):
                await self._database.run_write(work)
            for lease in used:
                if lease.id in changes.left:
                    lease.nano = changes.left[lease.id]
                else:
                    self._end(lease)

    async def give_back_of(self, buckets: Iterable[Bucket]) -> bool:
        """Give back the free money of these buckets; return True if there was any.

        Raises:
            StoreError: the database fails; the next renewal reads what the leases hold.
        """
        periods = {bucket.account_period for bucket in buckets}
        with_money = [
            lease
            for lease in self._leases.values()
            if lease.free > 0 and lease.bucket.account_period in periods
        ]
        if with_money:
            await self.give_back(with_money)
        return bool(with_money)

    async def renew(self, expires: float) -> None:
        """Set when all reservations of this process expire, in seconds since the epoch."""
        mine = update(RESERVATIONS).where(RESERVATIONS.c.owner == self.owner)
        later = mine.values(expires=expires).returning(RESERVATIONS.c.id, RESERVATIONS.c.nano)
        async with self.lock:
            trusted = self._trusted_from_now()
            held = await self._database.run_write(
                lambda connection: {row[0]: row[1] for row in connection.execute(later)}
            )
            for lease in list(self._leases.values()):
                if lease.id in held:
                    lease.nano, lease.trusted = held[lease.id], trusted
                else:
                    self._end(lease)


def _delete_doubtful(connection: Connection, doubted: Mapping[str, int]) -> None:
    """Delete the rows that are there, and count the stated billionths of them as spent."""
    rows, spent = take_rows(connection, tuple(doubted)), Counter[AccountPeriod]()
    for row in rows:
        for account, period in orjson.loads(row["buckets"]):
            spent[account, period] += doubted[row["id"]]
    settle_rows(connection, rows, spent)


def _insert_once(connection: Connection) -> Executable:
    return insert_statement(connection.dialect.name, RESERVATIONS).on_conflict_do_nothing()
