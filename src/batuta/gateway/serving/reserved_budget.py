"""A run's share of its caller's budgets: grows in the store before a call that needs more."""

from __future__ import annotations

import logging
from decimal import Decimal
from typing import final

import anyio

from batuta.core.formatting import format_usd
from batuta.errors import LimitReachedError, StoreError
from batuta.store.budgets import Budgets
from batuta.store.ledger import Reservation, nano_to_usd, usd_to_nano
from batuta.store.totals import BudgetStatus

_LOG = logging.getLogger(__name__)


@final
class ReservedBudget:
    """What is reserved for a run of a key with a budget."""

    def __init__(self, budgets: Budgets, reservation: Reservation) -> None:
        """Begins with what was reserved before the run."""
        self._budgets = budgets
        self._reservation = reservation

    @property
    def granted(self) -> Decimal:
        """Dollars that are reserved by now."""
        return nano_to_usd(self._reservation.nano)

    async def raise_to(self, usd: Decimal, least: Decimal) -> Decimal:
        """Reserves more, and says how much there is then: between `least` and `usd`.

        Raises:
            LimitReachedError: a budget has not even that, or it cannot be checked now.
        """
        has = self._reservation.nano
        more, enough = usd_to_nano(usd) - has, max(0, usd_to_nano(least) - has)
        try:
            found = await self._grow(more, enough)
        except StoreError as error:
            _LOG.error("budgets cannot be checked: %s", error)
            raise LimitReachedError("usd", "the budget cannot be checked now", "any") from None
        if isinstance(found, BudgetStatus):
            owner = found.bucket.account.partition(":")[0]
            message = (
                f"the next call may cost {format_usd(nano_to_usd(enough))} more and the {owner} has"
            )
            raise LimitReachedError(
                "usd", message, f"{format_usd(nano_to_usd(found.remaining))} left"
            )
        _LOG.debug("more is reserved: %s", found.nano)
        self._reservation = found
        return self.granted

    async def _grow(self, more: int, enough: int) -> Reservation | BudgetStatus:
        """The grown reservation; shielded, else it might grow and nobody would know."""
        with anyio.CancelScope(shield=True):
            return await self._budgets.grow(self._reservation, more, enough)
        raise AssertionError("a shielded scope swallows nothing")
