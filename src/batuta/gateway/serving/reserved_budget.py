"""A run's reservation in its caller's budgets, which grows before a call that needs more."""

from __future__ import annotations

import logging
from decimal import Decimal
from typing import final

import anyio

from batuta.core.formatting import format_usd
from batuta.errors import LimitReachedError, StoreError
from batuta.gateway.errors import APIError
from batuta.store.budgets import Budgets
from batuta.store.ledger import BudgetStatus, Reservation, nano_to_usd, usd_to_nano

_RETRY = {"retry-after": "2", "retry-after-ms": "2000", "x-should-retry": "true"}
"""Headers that make clients retry soon: other runs may then have released a part of the budget."""
_NO_RETRY = {"x-should-retry": "false"}


def budget_error(found: BudgetStatus, cost_nano: int, own: int = 0) -> APIError:
    """Return the error for an exhausted budget: its owner, what remains of it, and what to do.

    Args:
        found: the budget.
        cost_nano: billionths of a dollar that the run needs besides `own`.
        own: billionths of a dollar that the run already holds.
    """
    bucket = found.bucket
    owner = "tenant" if bucket.account.startswith("tenant:") else "key"
    span = "day" if bucket.period.count("-") > 1 else "month"
    left = max(0, bucket.cap - found.spent - own)
    cap, remaining, needed = (_format_nano(nano) for nano in (bucket.cap, left, cost_nano))
    budget = f"The {owner}'s budget of {cap} a {span} has {remaining} left"
    held = describe_held(found, own)
    if held:
        budget += f", of which {held}"
    what = "the run's next call" if own else "this run"
    cost = f"{what} may cost {needed} even with a short answer"
    if cost_nano <= left:
        message = f"{budget}, and {cost}: try again when a running request has ended."
        return APIError(429, "budget_exceeded", message, headers=_RETRY)
    message = (
        f"{budget}, and {cost}: shorten the question, ask a cheaper model, or ask for a larger "
        "budget."
    )
    return APIError(429, "budget_exceeded", message, headers=_NO_RETRY)


def describe_held(found: BudgetStatus, own: int = 0) -> str:
    """Return what other runs hold of the budget, as text; empty if they hold nothing."""
    held = found.reserved - own
    if held <= 0:
        return ""
    count = max(1, found.holders - (1 if own else 0))
    who = "1 running request" if count == 1 else f"{count} running requests"
    return f"{_format_nano(held)} is held by {who}"


def _format_nano(nano: int) -> str:
    return format_usd(nano_to_usd(nano))


_LOG = logging.getLogger(__name__)
_UNCHECKED = "the budget cannot be checked now, so that the next call may spend none"


@final
class ReservedBudget:
    """The reservation for a run in the budgets of its key and tenant."""

    def __init__(self, budgets: Budgets, reservation: Reservation) -> None:
        """Start with the amount reserved before the run."""
        self._budgets = budgets
        self._reservation = reservation
        self._refused: tuple[BudgetStatus, int] | None = None
        """The budget that refused the next call, and the additional nanodollars needed."""
        self.counted = Decimal(0)
        """Dollars that budgets count for the run; an interrupted call counts as its reservation."""

    def refusal(self) -> APIError | None:
        """Return the error if a budget has refused a call of the run; else None."""
        if self._refused is None:
            return None
        found, cost_nano = self._refused
        return budget_error(found, cost_nano, self._reservation.nano)

    @property
    def granted(self) -> Decimal:
        """The dollars that are reserved for the run so far."""
        return nano_to_usd(self._reservation.nano)

    def count(self, usd: Decimal) -> None:
        """Set the dollars that budgets count for the run."""
        self.counted = usd

    async def raise_to(self, usd: Decimal, least: Decimal) -> Decimal:
        """Raise the reservation to `usd`, or to what the budgets allow; return the new amount.

        Raises:
            LimitReachedError: a budget allows less than `least`, or cannot be checked now.
        """
        has = self._reservation.nano
        more, enough = usd_to_nano(usd) - has, max(0, usd_to_nano(least) - has)
        try:
            found = await self._grow(more, enough)
        except StoreError as error:
            _LOG.error("budgets cannot be checked: %s", error)
            raise LimitReachedError("usd", _UNCHECKED, "it") from None
        if isinstance(found, BudgetStatus):
            owner = found.bucket.account.partition(":")[0]
            message = f"the next call may cost {format_usd(nano_to_usd(enough))} more, out"
            self._refused = (found, enough)
            held = describe_held(found, has)
            left = f"{format_usd(nano_to_usd(found.remaining))} that the {owner} has left"
            raise LimitReachedError("usd", message, f"{left}; {held}" if held else left)
        _LOG.debug("more is reserved: %s", found.nano)
        self._reservation = found
        return self.granted

    async def _grow(self, more: int, enough: int) -> Reservation | BudgetStatus:
        """Return the grown reservation, or the budget that refused it.

        This is shielded, so that a cancellation does not lose the reservation.
        """
        with anyio.CancelScope(shield=True):
            return await self._budgets.grow(self._reservation, more, enough)
        raise AssertionError("a shielded scope swallows nothing")
