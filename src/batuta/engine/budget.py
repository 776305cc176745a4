"""The tokens and dollars that a run has spent, and the dollars reserved for calls in flight.

The maximum cost of a call is reserved before the call: from the run's own limit in dollars and, if
the run also spends a budget of its key, tenant or session, from that budget (`Funds`). So no call
that keeps to its bound (`core.cost_bound`) exceeds either limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import ROUND_UP, Decimal
from functools import partial
from typing import Protocol

import anyio

from batuta.core import Cost, Limits, Request, Usage, Worker
from batuta.core.cost_bound import CallCostBound, bound_call_cost
from batuta.core.formatting import format_usd
from batuta.errors import LimitReachedError
from batuta.offload.threads import read_off_loop
from batuta.usage import ZERO_COST, ZERO_USAGE, usage_cost

ZERO_USD = Decimal(0)


class Funds(Protocol):
    """Shared budgets that a run spends from: of its key, its tenant or its session."""

    @property
    def granted(self) -> Decimal:
        """Dollars set apart for the run so far, including the dollars already spent."""
        ...

    def count(self, usd: Decimal) -> None:
        """Receive the dollars that the run has spent or reserved for calls in flight.

        A cancelled call counts with its whole reservation: its provider may bill all of it.
        """
        ...

    async def raise_to(self, usd: Decimal, least: Decimal) -> Decimal:
        """Raise `granted` to `usd`, or at least to `least`; return the new value.

        Raises:
            LimitReachedError: a budget cannot grant even `least`, or cannot be checked now.
        """
        ...


@dataclass(slots=True, eq=False)
class Hold:
    """A reservation for one call."""

    request: Request
    """The request to send; its output is capped if dollars are limited and the call is not free."""
    usd: Decimal = ZERO_USD
    """Reserved dollars; 0 if dollars are not limited, if the call is free, or once the reservation
    was released or joined to another."""


class Budget:
    """A run's budget: a call's maximum cost is reserved, and replaced by its real cost."""

    def __init__(self, limits: Limits, funds: Funds | None = None) -> None:
        self.limits = limits
        self.funds = funds
        self.usage = ZERO_USAGE
        self.cost = ZERO_COST
        self._spent = ZERO_USD
        self._billed = ZERO_USD
        """Dollars counted against `funds`. A completed call without reported usage counts here with
        its estimated cost, and in `_spent` with its whole reservation."""
        self._held = ZERO_USD
        self._unfunded = ZERO_USD
        """The part of `_held` that `funds` has not granted yet; those calls are not sent yet."""
        self._holds = 0
        """Number of reservations in `_held`."""
        self._usd = None if limits.usd is None else Decimal(str(limits.usd))
        self._funds_lock: anyio.Lock | None = None
        """Serializes requests to `funds`; created on first use."""
        self._released = 0
        """Number of times that a reservation was lowered or released."""
        self._waiting: anyio.Event | None = None
        """Set when a reservation ends or shrinks; None if no call waits for that."""

    @property
    def usd(self) -> Decimal:
        """Dollars that count as spent.

        A call of unknown price counts at the limits' assumed price. A call whose provider
        reported no usage counts with its whole reservation.
        """
        return self._spent

    @property
    def reserved(self) -> Decimal:
        """Dollars reserved for the calls in flight."""
        return self._held

    async def reserve(
        self, request: Request, worker: Worker, *, whole: bool = False, waits: bool = True
    ) -> Hold:
        """Reserve the call's maximum cost; `charge` or `release` must follow.

        A call that exceeds the run's limit waits for the calls in flight. If there are none, or
        `waits` is False, its output cap is lowered, down to `core.cost_bound.MIN_OUTPUT_TOKENS`. If
        `funds` grants too little, the cap is lowered at once, and the call waits only if even the
        lowest cap costs too much.

        Args:
            request: the request to be sent.
            worker: the worker to be called.
            whole: whether the output cap must not be lowered.
            waits: whether to wait for calls in flight.

        Raises:
            LimitReachedError: the tokens are used up, or the remaining dollars do not suffice.
        """
        self.check()
        if self._usd is None and self.funds is None:
            return Hold(request)
        bind = partial(bound_call_cost, request, worker, self.limits.unknown, whole=whole)
        bound = await read_off_loop(request.messages, bind)
        self.check()
        if not bound.max_usd:
            return Hold(request)
        while True:
            released = self._released
            try:
                return await self._reserve_all(request, bound, shortens=not (waits and self._holds))
            except LimitReachedError:
                if not (waits and self._holds):
                    raise
            if self._released == released:
                await self._wait_for_release()
            self.check()

    def charge(
        self,
        usage: Usage,
        cost: Cost,
        hold: Hold | None = None,
        *,
        cancelled: bool = False,
        keeps: Decimal = ZERO_USD,
    ) -> None:
        """Replace a call's reservation by what the call consumed.

        Args:
            usage: tokens of the call.
            cost: dollars of the call.
            hold: the call's reservation; None if nothing was reserved.
            cancelled: whether the run cancelled the call, so that its provider may bill the whole
                reservation.
            keeps: dollars of the reservation that stay reserved.
        """
        self.usage += usage
        self.cost += cost
        usd = cost.usd
        if cost.unpriced_calls:
            usd += usage_cost(usage, self.limits.unknown).usd
        at_most = usd if hold is None else max(usd, hold.usd - keeps)
        self._billed += at_most if cancelled else usd
        self._spent += at_most if usage.estimated else usd
        if hold is not None:
            self.lower_hold(hold, keeps)
        self._report_to_funds()

    def release(self, hold: Hold) -> None:
        """Release the call's reservation, and let waiting calls try again."""
        if hold.usd:
            self._cancel_hold(hold)
            self._released += 1
            self._notify_waiters()
            self._report_to_funds()

    def join_holds(self, hold: Hold, other: Hold) -> None:
        """Merge `other` into `hold`; `other` is empty afterwards."""
        if hold.usd and other.usd:
            self._holds -= 1
        hold.usd += other.usd
        other.usd = ZERO_USD

    def lower_hold(self, hold: Hold, usd: Decimal) -> None:
        """Lower a reservation to `usd`, or release it if that is 0; never raise it."""
        if not usd:
            self.release(hold)
        elif usd < hold.usd:
            self._held -= hold.usd - usd
            hold.usd = usd
            self._released += 1
            self._notify_waiters()
            self._report_to_funds()

    def check(self) -> None:
        """Check that a further call may be made.

        Raises:
            LimitReachedError: the tokens or the dollars are used up.
        """
        tokens = self.limits.tokens
        if tokens is not None and self.usage.total >= tokens:
            raise LimitReachedError("tokens", str(self.usage.total), str(tokens))
        if self._usd is not None and self.usd >= self._usd:
            raise LimitReachedError("usd", format_usd(self.usd), format_usd(self._usd))

    async def _wait_for_release(self) -> None:
        self._waiting = self._waiting or anyio.Event()
        await self._waiting.wait()

    def _notify_waiters(self) -> None:
        if self._waiting is not None:
            self._waiting.set()
            self._waiting = None

    async def _reserve_all(self, request: Request, bound: CallCostBound, *, shortens: bool) -> Hold:
        """Return a hold for the call, within all limits.

        Raises:
            LimitReachedError: the call does not fit.
        """
        hold = self._reserve_own(request, bound, shortens=shortens)
        unfunded = hold.usd
        self._unfunded += unfunded
        try:
            await self._reserve_funds(hold, bound)
        except BaseException:
            self._cancel_hold(hold)
            if not self._holds:  # without a call in flight, waiting calls would never be woken
                self._notify_waiters()
            raise
        finally:
            self._unfunded -= unfunded
            self._report_to_funds()
        return hold

    def _report_to_funds(self) -> None:
        if self.funds is not None:
            self.funds.count(self._billed + self._held - self._unfunded)

    def _cancel_hold(self, hold: Hold) -> None:
        self._held -= hold.usd
        self._holds -= 1
        hold.usd = ZERO_USD

    def _reserve_own(self, request: Request, bound: CallCostBound, *, shortens: bool) -> Hold:
        """Return a hold within the run's own limit."""
        output = bound.desired_output
        if self._usd is not None:
            output = bound.affordable_output(self._usd - self._spent - self._held)
        if output < (bound.min_output if shortens else bound.desired_output):
            raise self._limit_error(bound)
        if output != request.max_output:
            request = replace(request, max_output=output)
        hold = Hold(request, bound.usd(output))
        self._held += hold.usd
        self._holds += 1
        return hold

    async def _reserve_funds(self, hold: Hold, bound: CallCostBound) -> None:
        """Reserve the hold from `funds`; lower the hold and its output cap to what is granted.

        Raises:
            LimitReachedError: `funds` cannot grant the minimum that the call needs.
        """
        if self.funds is None:
            return
        if self._spent + self._held <= self.funds.granted:
            return
        self._funds_lock = self._funds_lock or anyio.Lock()
        async with self._funds_lock:
            needed = self._spent + self._held
            if needed <= self.funds.granted:
                return
            least = needed - hold.usd + bound.min_usd
            missing = needed - await self.funds.raise_to(needed, min(least, needed))
        if missing > 0:
            output = bound.affordable_output(hold.usd - missing)
            self._held -= hold.usd - bound.usd(output)
            hold.usd = bound.usd(output)
            hold.request = replace(hold.request, max_output=output)

    def _limit_error(self, bound: CallCostBound) -> LimitReachedError:
        usd = bound.min_usd
        # Rounded up, so that raising the limit by the named amount suffices.
        usd = usd.quantize(Decimal(1).scaleb(min(usd.adjusted() - 1, -2)), ROUND_UP)
        held = f", {format_usd(self._held)} more are reserved" if self._held else ""
        spent = f"{format_usd(self.usd)}{held}, and the next call may cost {format_usd(usd)},"
        return LimitReachedError("usd", spent, format_usd(self._usd or 0))
