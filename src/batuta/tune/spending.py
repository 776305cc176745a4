"""One budget for a whole tuning: no call is made whose worst case does not fit what is left."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Self, final

from batuta.core import (
    CallListener,
    Client,
    Cost,
    Delta,
    Failure,
    Limits,
    Price,
    Reply,
    Request,
    Usage,
    Worker,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.usage import ASSUMED_PRICE, ZERO_USAGE
from batuta.engine.budget import Budget, Hold
from batuta.errors import ClientError, LimitReachedError, StoreError

_TABLE = "CREATE TABLE IF NOT EXISTS paid (id INTEGER PRIMARY KEY, usd TEXT NOT NULL)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a tuning may spend; None: as much as it likes of that."""

    usd: Decimal | None = None
    calls: int | None = None
    minutes: float | None = None
    unknown: Price = ASSUMED_PRICE
    """What a call of unknown price counts as against the dollars."""

    def __post_init__(self) -> None:
        if self.usd is None and self.calls is None and self.minutes is None:
            raise ValueError("a tuning needs a budget: dollars, calls or minutes")


@final
class PaidCalls:
    """What every call has cost, on disk: its worst case before it is made, then what it was.

    A call that was in flight when the process was killed stays there with its worst case.
    """

    def __init__(self, path: Path) -> None:
        """Opens or makes the file.

        Raises:
            StoreError: the file cannot be opened or is none of this kind.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, isolation_level=None)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"the list of paid calls {path} cannot be opened: {error}") from None

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
        """How many calls there are and what they cost together.

        Raises:
            StoreError: the file cannot be read.
        """
        rows = self._execute("SELECT usd FROM paid")
        return len(rows), sum((Decimal(row[0]) for row in rows), Decimal(0))

    def add(self, usd: Decimal) -> int:
        """A call that is about to be made, and what it costs at most; gives its number.

        Raises:
            StoreError: the disk is full or the file cannot be written.
        """
        return int(self._execute("INSERT INTO paid (usd) VALUES (?) RETURNING id", str(usd))[0][0])

    def settle(self, number: int, usd: Decimal) -> None:
        """What that call has cost.

        Raises:
            StoreError: the disk is full or the file cannot be written.
        """
        self._execute("UPDATE paid SET usd = ? WHERE id = ?", str(usd), number)

    def _execute(self, statement: str, *values: str | int) -> list[tuple[str]]:
        try:
            return self._file.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the list of paid calls {self.path}: {error}") from None


@final
class TuneBudget:
    """The budget that every call draws on; what earlier processes have paid counts."""

    def __init__(
        self,
        allowance: Allowance,
        paid: PaidCalls,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes over what earlier processes of the same tuning have spent.

        Args:
            allowance: what may be spent in all.
            paid: the calls so far.
            clock: seconds; minutes count from now on.

        Raises:
            StoreError: the paid calls cannot be read.
        """
        usd = None if allowance.usd is None else float(allowance.usd)
        self.allowance = allowance
        self._paid = paid
        self.calls, spent = paid.sum_up()
        """Calls that were made, those of earlier processes included."""
        self._budget = Budget(Limits(usd=usd, unknown=allowance.unknown))
        self._budget.charge(ZERO_USAGE, Cost(spent))
        self._clock = clock
        self._end = None if allowance.minutes is None else clock() + 60 * allowance.minutes
        self._numbers: dict[Hold, int] = {}
        """The numbers of the calls in flight."""
        self.refused: LimitReachedError | None = None
        """The first refusal, if a call was refused."""

    @property
    def usd(self) -> Decimal:
        """Dollars that count as spent."""
        return self._budget.usd

    async def reserve(self, request: Request, worker: Worker) -> Hold:
        """Sets apart what the call can cost at most; `charge` must follow.

        Raises:
            LimitReached: it does not fit the dollars, calls or minutes that are left.
        """
        try:
            hold = await self._reserve(request, worker)
        except LimitReachedError as error:
            self.refused = self.refused or error
            raise
        return hold

    async def _reserve(self, request: Request, worker: Worker) -> Hold:
        self._check_rest()
        hold = await self._budget.reserve(request, worker, whole=True)
        try:
            self._check_rest()  # others may have called while this one waited
        except LimitReachedError:
            self._budget.release(hold)
            raise
        self.calls += 1
        self._numbers[hold] = self._paid.add(hold.usd)
        return hold

    def _check_rest(self) -> None:
        most = self.allowance.calls
        if most is not None and self.calls >= most:
            raise LimitReachedError("calls", str(self.calls), str(most))
        if self._end is not None and self._clock() >= self._end:
            minutes = f"{self.allowance.minutes:g} minutes"
            raise LimitReachedError("minutes", minutes, minutes)

    def charge(self, reply: Reply | Failure, hold: Hold) -> None:
        """Counts what the call consumed, in the place of what was reserved for it.

        Raises:
            StoreError: it cannot be written down.
        """
        before = self._budget.usd
        self._budget.charge(reply.usage, reply.cost, hold)
        self._paid.settle(self._numbers.pop(hold), self._budget.usd - before)


_CUT = Failure(code="cancelled", message="the call was cut", usage=Usage(calls=1, estimated=1))


@final
class BudgetedClient:
    """A worker's client each of whose attempts is reserved before it is made."""

    def __init__(self, client: Client, worker: Worker, budget: TuneBudget) -> None:
        self._client = client
        self._worker = worker
        self._budget = budget

    def __repr__(self) -> str:
        return f"BudgetedClient({self._client!r})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """The reply of the client.

        Raises:
            LimitReached: the call may cost more than is left.
            ClientError: the call gave no usable reply.
        """
        hold = await self._budget.reserve(request, self._worker)
        attempts = _Attempts(self._worker, self._budget, listener, hold)
        try:
            reply = await self._client.complete(hold.request, attempts)
        except ClientError as error:
            attempts.end(Failure.of(error))
            raise
        except BaseException:  # cut: it may have cost all that was reserved
            attempts.end(_CUT)
            raise
        attempts.end(reply)
        return reply


class _Attempts:
    """Hears the client's own retries: charges the failed attempt, reserves the next."""

    def __init__(
        self, worker: Worker, budget: TuneBudget, listener: CallListener, hold: Hold
    ) -> None:
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
        request = self._hold.request if self._hold else None
        self.end(failure)
        await self._listener.on_failure(failure)
        if request is not None:
            self._hold = await self._budget.reserve(request, self._worker)

    def end(self, result: Reply | Failure) -> None:
        """The attempt has ended; charged once."""
        hold, self._hold = self._hold, None
        if hold is not None:
            self._budget.charge(result, hold)
