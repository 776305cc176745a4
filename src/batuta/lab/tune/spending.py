"""The budget of a tuning run: a call is made only if its worst case fits the remaining budget."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, final

from batuta.clients.cache import open_journal_file
from batuta.clients.providers import Identity, client_identity
from batuta.clients.replay import request_fingerprint
from batuta.core import (
    CallListener,
    Client,
    Cost,
    Delta,
    Failure,
    Limits,
    Pool,
    Price,
    Reply,
    Request,
    Task,
    Usage,
    Worker,
    WorkerId,
    user_message,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.cost_bound import bound_call_cost
from batuta.engine.budget import Budget, Hold
from batuta.errors import CircuitOpenError, ClientError, LimitReachedError, StoreError
from batuta.usage import ASSUMED_PRICE, ZERO_USAGE

_TABLE = "CREATE TABLE IF NOT EXISTS paid (id INTEGER PRIMARY KEY, usd TEXT NOT NULL, call BLOB)"
"""`call` identifies a call in flight, and is NULL once the call has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The budget of a tuning run; None stands for no limit of that kind.

    Raises:
        ValueError: there is no limit of any kind.
    """

    usd: Decimal | None = None
    calls: int | None = None
    minutes: float | None = None
    unknown: Price = ASSUMED_PRICE
    """The price that is assumed for calls of unknown price."""

    def __post_init__(self) -> None:
        if self.usd is None and self.calls is None and self.minutes is None:
            raise ValueError("a tuning needs a budget: dollars, calls or minutes")


class PaidCall(NamedTuple):
    """A row of the list of paid calls."""

    number: int
    """The row's id."""
    usd: Decimal
    """The dollars reserved for the call while it is in flight, then its cost."""


def bound_pool_costs(pool: Pool, tasks: Sequence[Task], unknown: Price) -> dict[WorkerId, Decimal]:
    """Return each worker's maximum dollars for a call with the longest question."""
    longest = max(tasks, key=lambda task: len(task.question))
    request = Request(messages=(user_message(longest.question),))
    return {one.id: bound_call_cost(request, one, unknown, whole=True).max_usd for one in pool}


@final
class PaidCalls:
    """The cost of every call, on disk: the reserved dollars before the call, then its real cost.

    Without a limit in dollars 0 is reserved. A call that was in flight when the process was killed
    or interrupted keeps the reserved dollars, unless `TuneBudget` uses its row for the same call.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            StoreError: the file cannot be opened or is of another kind.
        """
        self.path = path
        self._file = open_journal_file(path, _TABLE, "the list of paid calls")
        columns = self._execute("PRAGMA table_info(paid)")
        if "call" not in {column[1] for column in columns}:  # created by an earlier version
            self._execute("ALTER TABLE paid ADD COLUMN call BLOB")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()

    def sum_up(self) -> tuple[int, Decimal]:
        """Return the number of calls and their total dollars.

        Raises:
            StoreError: the file cannot be read.
        """
        rows = self._execute("SELECT usd FROM paid")
        return len(rows), sum((Decimal(row[0]) for row in rows), Decimal(0))

    def unfinished_calls(self) -> dict[bytes, PaidCall]:
        """Return the calls that have not ended: in flight, or cut by the end of a process.

        Each call's key is the `call` given to `add`.

        Raises:
            StoreError: the file cannot be read.
        """
        rows = self._execute("SELECT call, id, usd FROM paid WHERE call IS NOT NULL")
        return {call: PaidCall(number, Decimal(usd)) for call, number, usd in rows}

    def add(self, usd: Decimal, call: bytes) -> int:
        """Add a call that is about to be made, with its maximum dollars; return the row's number.

        Raises:
            StoreError: the disk is full or the file cannot be written.
        """
        added = "INSERT INTO paid (usd, call) VALUES (?, ?) RETURNING id"
        return int(self._execute(added, str(usd), call)[0][0])

    def settle(self, number: int, usd: Decimal) -> None:
        """Record the end of a call and its dollars.

        Raises:
            StoreError: the disk is full or the file cannot be written.
        """
        self._execute("UPDATE paid SET usd = ?, call = NULL WHERE id = ?", str(usd), number)

    def remove(self, number: int) -> None:
        """Remove a call that was not made.

        Raises:
            StoreError: the disk is full or the file cannot be written.
        """
        self._execute("DELETE FROM paid WHERE id = ?", number)

    def _execute(self, statement: str, *values: str | int | bytes) -> list[Any]:
        try:
            return self._file.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the list of paid calls {self.path}: {error}") from None


@final
class TuneBudget:
    """The budget of all calls, including calls that earlier processes paid for."""

    def __init__(
        self,
        allowance: Allowance,
        paid: PaidCalls,
        clock: Callable[[], float] = time.monotonic,
        *,
        replays: bool = True,
    ) -> None:
        """Start from the spending of earlier processes of the same tuning run.

        Minutes count from now; `clock` returns seconds. With `replays`, a call that was in flight
        when an earlier process ended counts once if it is made again. Otherwise both calls count,
        because both may be billed.

        Raises:
            StoreError: the paid calls cannot be read.
        """
        usd = None if allowance.usd is None else float(allowance.usd)
        self.allowance = allowance
        self._paid = paid
        self.calls, spent = paid.sum_up()
        """The number of calls made or in flight, including the calls of earlier processes."""
        self._budget = Budget(Limits(usd=usd, unknown=allowance.unknown))
        self._budget.charge(ZERO_USAGE, Cost(spent))
        self._clock = clock
        self._end = None if allowance.minutes is None else clock() + 60 * allowance.minutes
        self._numbers: dict[Hold, int] = {}
        """The row's number of each call in flight."""
        self._lost = paid.unfinished_calls() if replays else {}
        """Calls that were in flight when an earlier process ended."""
        self.refused: LimitReachedError | None = None
        """The first refusal; None if no call was refused."""

    @property
    def usd(self) -> Decimal:
        """Dollars that count as spent."""
        return self._budget.usd

    async def reserve(self, request: Request, worker: Worker) -> Hold:
        """Reserve the maximum cost of the call, perhaps after a wait; `charge` must follow.

        Raises:
            LimitReachedError: the call exceeds the remaining dollars, calls or minutes.
            StoreError: the list of paid calls cannot be written.
        """
        try:
            hold = await self._reserve(request, worker)
        except LimitReachedError as error:
            self.refused = self.refused or error
            raise
        return hold

    async def _reserve(self, request: Request, worker: Worker) -> Hold:
        call = worker.id.encode() + request_fingerprint(request)
        lost = self._lost.pop(call, None)
        if lost is None:
            hold = await self._reserve_new(request, worker)
            self._numbers[hold] = self._paid.add(hold.usd, call)
            return hold
        self._count_lost(-1, -lost.usd)
        try:
            hold = await self._reserve_new(request, worker)
        except BaseException:
            self._count_lost(1, lost.usd)
            self._lost[call] = lost
            raise
        self._numbers[hold] = lost.number
        return hold

    def _count_lost(self, calls: int, usd: Decimal) -> None:
        """Add a lost call to the sums, or subtract it when the call is made again."""
        self.calls += calls
        self._budget.charge(ZERO_USAGE, Cost(usd))

    async def _reserve_new(self, request: Request, worker: Worker) -> Hold:
        self._check_rest()
        hold = await self._budget.reserve(request, worker, whole=True)
        try:
            self._check_rest()  # other calls may have been made during the wait
        except LimitReachedError:
            self._budget.release(hold)
            raise
        self.calls += 1
        return hold

    def _check_rest(self) -> None:
        most = self.allowance.calls
        if most is not None and self.calls >= most:
            raise LimitReachedError("calls", str(self.calls), str(most))
        if self._end is not None and self._clock() >= self._end:
            minutes = f"{self.allowance.minutes:g} minutes"
            raise LimitReachedError("minutes", minutes, minutes)

    def charge(self, reply: Reply | Failure, hold: Hold) -> None:
        """Replace the reservation by the cost that `Budget.charge` counts.

        A cancelled call keeps its row with the reservation. A call that an open breaker kept from
        being sent does not count.

        Raises:
            StoreError: the list of paid calls cannot be written.
        """
        before = self._budget.usd
        self._budget.charge(reply.usage, reply.cost, hold)
        number = self._numbers.pop(hold)
        if isinstance(reply, Failure) and reply.code == CircuitOpenError.code:
            self.calls -= 1
            self._paid.remove(number)
        elif reply is not _CANCELLED:
            self._paid.settle(number, self._budget.usd - before)


_CANCELLED = Failure(
    code="cancelled", message="the call was cancelled", usage=Usage(calls=1, estimated=1)
)


@final
class DollarLimit:
    """A limit in dollars: the worst case of each call is reserved before the call is made."""

    def __init__(self, usd: Decimal, unknown: Price = ASSUMED_PRICE) -> None:
        """Start with nothing spent.

        Args:
            usd: the limit, which includes retries and failed calls.
            unknown: the price that is assumed for calls of unknown price.
        """
        self._budget = Budget(Limits(usd=float(usd), unknown=unknown))

    @property
    def usd(self) -> Decimal:
        """Dollars that count as spent."""
        return self._budget.usd

    async def reserve(self, request: Request, worker: Worker) -> Hold:
        """Reserve the maximum cost of the call, perhaps after a wait; `charge` must follow.

        Raises:
            LimitReachedError: the maximum cost exceeds the remaining dollars.
        """
        return await self._budget.reserve(request, worker, whole=True)

    def charge(self, reply: Reply | Failure, hold: Hold) -> None:
        """Replace the reservation by the cost that `Budget.charge` counts."""
        self._budget.charge(reply.usage, reply.cost, hold)


CallBudget = TuneBudget | DollarLimit


@final
class BudgetedClient:
    """A worker's client that reserves the cost of every attempt before it is made."""

    def __init__(self, client: Client, worker: Worker, budget: CallBudget) -> None:
        self._client = client
        self._worker = worker
        self._budget = budget

    def __repr__(self) -> str:
        return f"BudgetedClient({self._client!r})"

    @property
    def identity(self) -> Identity:
        """The identity of the wrapped client."""
        return client_identity(self._client)

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply of the wrapped client.

        Raises:
            LimitReachedError: the remaining budget does not allow the call or a retry.
            ClientError: the call gave no usable reply.
            StoreError: the list of paid calls cannot be written.
        """
        hold = await self._budget.reserve(request, self._worker)
        attempts = _Attempts(self._worker, self._budget, listener, hold=hold, request=request)
        try:
            reply = await self._client.complete(hold.request, attempts)
        except ClientError as error:
            attempts.end(Failure.of(error))
            raise
        except BaseException:  # cancelled, so the call may have cost all that was reserved
            attempts.end(_CANCELLED)
            raise
        attempts.end(reply)
        return reply


class _Attempts:
    """Listens to a call's attempts: charges each failed attempt, and reserves the next attempt."""

    def __init__(
        self,
        worker: Worker,
        budget: CallBudget,
        listener: CallListener,
        *,
        hold: Hold,
        request: Request,
    ) -> None:
        self._request = request
        self._worker = worker
        self._budget = budget
        self._listener = listener
        self._hold: Hold | None = hold

    @property
    def streaming(self) -> bool:
        return self._listener.streaming

    async def before_call(self, request: Request, worker: Worker) -> Request:
        return await self._listener.before_call(request, worker)

    async def on_delta(self, delta: Delta) -> None:
        await self._listener.on_delta(delta)

    async def on_failure(self, failure: Failure) -> None:
        is_reserved = self._hold is not None
        self.end(failure)
        await self._listener.on_failure(failure)
        if is_reserved:
            self._hold = await self._budget.reserve(self._request, self._worker)

    def end(self, result: Reply | Failure) -> None:
        """Charge the attempt, unless it was charged before."""
        hold, self._hold = self._hold, None
        if hold is not None:
            self._budget.charge(result, hold)
