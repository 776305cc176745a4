"""A run's reservation in its session's dollars, which grows before a call that needs more."""

from __future__ import annotations

from decimal import Decimal
from typing import final

import anyio

from batuta.core.formatting import format_usd
from batuta.engine.budget import Funds
from batuta.errors import LimitReachedError
from batuta.gateway.serving.session_call import SessionCall
from batuta.gateway.serving.tenant_memory import SessionMemory


@final
class SessionFunds:
    """Reserves dollars of a session with a limit, so that concurrent runs share them.

    If a server dies, the reservations of its runs stay in Redis until the session expires.
    """

    def __init__(self, memory: SessionMemory, call: SessionCall, also: Funds | None) -> None:
        """Start without a reservation.

        Args:
            memory: the states of sessions.
            call: the request in its session, which has a limit.
            also: the budgets of the key and the tenant, which must also suffice; None: no budgets.
        """
        self._memory = memory
        self._call = call
        self._also = also
        self._held = Decimal(0)

    @property
    def granted(self) -> Decimal:
        """The dollars that the run may spend so far."""
        return self._held if self._also is None else min(self._held, self._also.granted)

    def count(self, usd: Decimal) -> None:
        """Set the dollars that limits and budgets count for the run."""
        self._call.counted = usd
        if self._also is not None:
            self._also.count(usd)

    async def raise_to(self, usd: Decimal, least: Decimal) -> Decimal:
        """Raise the reservation to `usd`, or to what is left; return the new amount.

        Raises:
            LimitReachedError: the session or a budget allows less than `least`, or a budget cannot
                be checked now.
        """
        most = self._call.max_cost_usd or Decimal(0)
        held = await self._hold(usd, least, most)
        if held is None:
            self._call.is_refused = True
            more = format_usd(max(Decimal(0), least - self._held))
            message = f"the next call may cost {more} more, too much for what is left"
            raise LimitReachedError("usd", message, f"the session's {format_usd(most)}")
        self._held = held
        return held if self._also is None else await self._also.raise_to(held, least)

    async def _hold(self, usd: Decimal, least: Decimal, most: Decimal) -> Decimal | None:
        """Reserve dollars in the session; return None if it has less than `least` left.

        This is shielded, so that a cancellation does not lose the reservation.
        """
        call = self._call
        with anyio.CancelScope(shield=True):
            return await self._memory.hold(
                call.tenant, call.id, call.run, usd=usd, least=least, most=most
            )
        raise AssertionError("a shielded scope swallows nothing")
