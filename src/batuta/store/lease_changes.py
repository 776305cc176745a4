"""Leases as database rows, and the transactions that change these rows; see `leases`.

Functions with a `connection` argument work in the caller's transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, bindparam, insert, select, update

from batuta.store.ledger import (
    LEASE_PREFIX,
    Bucket,
    ReserveRequest,
    encode_periods,
    reserve_in_bucket,
    reserve_in_buckets,
)
from batuta.store.models import RESERVATIONS

_PARTS = 16
"""A lease takes at most 1/16 of the money that is left in its budget."""
_LEAST_CALLS = 4
"""A lease is taken only if 1/16 of the money left is at least this many requested amounts."""
_LEAST_SPAN = 0.01
"""Minimum seconds over which the rate of use is measured."""


@dataclass(slots=True, eq=False, kw_only=True)
class Lease:
    """A part of a budget that this process has reserved in advance."""

    id: str
    bucket: Bucket
    nano: int
    """Billionths of a dollar that the lease holds; its row may hold more, never less."""
    since: float
    """When `Leases.tidy` last checked the lease, or it was taken, by the monotonic clock."""
    unused: int
    """The minimum of `free` after `since`."""
    filled: float
    """When the lease was taken or last enlarged, by the monotonic clock."""
    size: int
    """The value of `free` at the time `filled`."""
    given: int = 0
    """Billionths that runs took after `filled`."""
    trusted: tuple[float, float]
    """Times until which no other process can have ended the lease, by the monotonic clock and by
    the wall clock."""
    held: int = 0
    """The part of `nano` that belongs to runs that are not written yet."""
    runs: int = 0
    """The number of runs with a part of this lease that are not written yet."""

    @property
    def free(self) -> int:
        """Billionths that can be given to runs."""
        return self.nano - self.held

    def next_size(self, now: float) -> int:
        """Return the amount that runs take in a second, but at most twice the previous size."""
        in_a_second = int(self.given / max(now - self.filled, _LEAST_SPAN))
        return min(2 * self.size, in_a_second)


@dataclass(slots=True, eq=False, kw_only=True)
class LeasedRun:
    """A run with a reservation that is part of leases."""

    request: ReserveRequest
    nano: int
    """Billionths of a dollar that each of the leases holds for the run."""
    leases: tuple[Lease, ...]
    since: float
    """When the money was reserved, by the monotonic clock."""
    has_row: bool = False
    """True if the run also has a row, by which other processes see that the run is unfinished."""
    may_have_moved: bool = False
    """True if a failed transaction may nevertheless have moved the run's money to that row."""


@dataclass(slots=True, kw_only=True)
class LeaseChanges:
    """Money that a transaction takes out of leases, and what the leases hold afterwards."""

    taken: dict[str, int] = field(default_factory=dict[str, int])
    """Billionths taken, by the lease's id."""
    left: dict[str, int] = field(default_factory=dict[str, int])
    """Billionths left, by the id of each lease that has not ended."""

    def take(self, run: LeasedRun, nano: int) -> None:
        """Plan to take that part of the run's money out of its leases."""
        for lease in run.leases:
            self.taken[lease.id] = self.taken.get(lease.id, 0) + min(nano, run.nano)

    def write(self, connection: Connection) -> None:
        """Update the rows; every transaction does so before the totals, to avoid deadlocks."""
        for lease_id, nano in sorted(self.taken.items()):
            left = connection.execute(_CHANGE, {"its_id": lease_id, "more": -nano}).first()
            if left is not None:
                self.left[lease_id] = left[0]

    def settle(
        self, connection: Connection, costs: Sequence[tuple[LeasedRun, int]]
    ) -> dict[tuple[str, str], int]:
        """Take the costs of runs out of their leases; return the amounts no longer reserved."""
        unsure = [run.request.reservation.id for run, _ in costs if run.may_have_moved]
        moved = set[str]()
        if unsure:
            rows = select(RESERVATIONS.c.id).where(RESERVATIONS.c.id.in_(unsure))
            moved.update(connection.execute(rows.where(RESERVATIONS.c.nano > 0)).scalars())
        for run, nano in costs:
            self.take(run, 0 if run.request.reservation.id in moved else nano)
        self.write(connection)
        return self.returned(lease for run, _ in costs for lease in run.leases)

    def returned(self, leases: Iterable[Lease]) -> dict[tuple[str, str], int]:
        """Return the amounts no longer reserved, by account and period.

        After a change of its cap a budget may have two leases.
        """
        amounts = dict[tuple[str, str], int]()
        for lease in set(leases):
            if lease.id in self.left:
                period = lease.bucket.account_period
                amounts[period] = amounts.get(period, 0) + self.taken[lease.id]
        return amounts


_CHANGE = (
    update(RESERVATIONS)
    .where(RESERVATIONS.c.id == bindparam("its_id"))
    .values(nano=RESERVATIONS.c.nano + bindparam("more"))
    .returning(RESERVATIONS.c.nano)
)


class TopUp:
    """A transaction that makes reservations for runs and takes or enlarges leases."""

    def __init__(
        self,
        busy: tuple[ReserveRequest, ...],
        known: Mapping[Bucket, Lease],
        owner: str,
        *,
        now: float,
        expires: float,
    ) -> None:
        """Set up; `now` is a time of the monotonic clock, `expires` seconds since the epoch."""
        self._busy = busy
        self._sizes = {bucket: lease.next_size(now) for bucket, lease in known.items()}
        self._known = {bucket: lease.id for bucket, lease in known.items()}
        self._owner = owner
        self._expires = expires
        self._free = {bucket: lease.free for bucket, lease in known.items()}
        self._fresh = {
            bucket: LEASE_PREFIX + secrets.token_hex(8)
            for request in busy
            for bucket in request.reservation.buckets
            if bucket not in known
        }
        self.alive: set[str] = set()
        """Ids of the known leases that have not ended."""
        self.nano: dict[Bucket, int] = {}
        """Billionths held by leases that were created or enlarged."""
        self.new: dict[Bucket, str] = {}
        """The ids of the created leases."""

    @property
    def new_ids(self) -> tuple[str, ...]:
        """The ids of the leases that may be created."""
        return tuple(self._fresh.values())

    def write(
        self, connection: Connection, sums: Mapping[Bucket, int], rows: list[dict[str, object]]
    ) -> None:
        """Write the reservations, then the leases, in the caller's transaction.

        Raises:
            BudgetFullError: a budget has no room for the reservations.
        """
        known = list(self._known.values())
        if known:  # locked before the totals, as in every transaction, to avoid deadlocks
            chosen = select(RESERVATIONS.c.id).where(RESERVATIONS.c.id.in_(known))
            self.alive = set(connection.execute(chosen.with_for_update()).scalars())
        room = reserve_in_buckets(connection, sums, rows)
        for request in self._busy:
            self._extend(connection, request, room)

    def _extend(
        self, connection: Connection, request: ReserveRequest, room: dict[Bucket, int]
    ) -> None:
        """Take or enlarge leases in all budgets of the request, as each run reserves in all."""
        buckets = request.reservation.buckets
        known = [self._known[bucket] for bucket in buckets if bucket in self._known]
        part = min(room[bucket] for bucket in buckets) // _PARTS
        least = _LEAST_CALLS * request.reservation.nano
        if part < least or not self.alive.issuperset(known):
            return
        for bucket in sorted(buckets, key=lambda bucket: bucket.account_period):
            size = min(part, max(least, self._sizes.get(bucket, 0)))
            more = size - self._free.get(bucket, 0)
            if more <= 0:
                continue
            self._add(connection, request, bucket, more)
            reserve_in_bucket(connection, bucket, more)
            room[bucket] -= more
            self._free[bucket] = size

    def _add(
        self, connection: Connection, request: ReserveRequest, bucket: Bucket, more: int
    ) -> None:
        old = self._known.get(bucket) or self.new.get(bucket)
        if old is not None:
            self.nano[bucket] = connection.execute(
                _CHANGE, {"its_id": old, "more": more}
            ).scalar_one()
            return
        self.new[bucket] = self._fresh[bucket]
        row = request.row(self._owner, more, self._expires)
        row |= {
            "id": self._fresh[bucket],
            "run_id": f"{LEASE_PREFIX}{self._owner}-{request.tenant}",
            "model": "",
            "key": request.key if bucket.account.startswith("key:") else None,
            "buckets": encode_periods((bucket,)),
        }
        connection.execute(insert(RESERVATIONS), [row])
        self.nano[bucket] = more
