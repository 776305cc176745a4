"""A run's share of its session's dollars, held before each call that needs more of them."""

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
    """The dollars of a session with a limit, of which its runs hold what their calls may cost.

    So requests that run at the same time pass it together no more than one alone, and what a run
    held whose server died stays held.
    """

    def __init__(self, memory: SessionMemory, call: SessionCall, also: Funds | None) -> None:
        """Hold nothing yet.

        Args:
            memory: the states of sessions.
            call: the request in its session, which has a limit.
            also: the money of its key or tenant, which is taken from too.
        """
        self._memory = memory
        self._call = call
        self._also = also
        self._held = Decimal(0)

    @property
    def granted(self) -> Decimal:
        """Dollars that the run may spend by now."""
        return self._held if self._also is None else min(self._held, self._also.granted)

    def count(self, usd: Decimal) -> None:
        """Note what the run counts as by now."""
        self._call.counted = usd
        if self._also is not None:
            self._also.count(usd)

    async def raise_to(self, usd: Decimal, least: Decimal) -> Decimal:
        """Hold more, and return how much there is then: between `least` and `usd`.

        Raises:
            LimitReachedError: the session, or another budget, has not even that.
        """
        most = self._call.max_cost_usd or Decimal(0)
        held = await self._hold(usd, least, most)
        if held is None:
            self._call.is_refused = True
            message = f"the next call may cost {format_usd(least)} and the session"
            raise LimitReachedError("usd", message, format_usd(most))
        self._held = held
        return held if self._also is None else await self._also.raise_to(held, least)

    async def _hold(self, usd: Decimal, least: Decimal, most: Decimal) -> Decimal | None:
        """Return what the session lets the run hold; shielded, else nobody might know of it."""
        call = self._call
        with anyio.CancelScope(shield=True):
            return await self._memory.hold(
                call.tenant, call.id, call.run, usd=usd, least=least, most=most
            )
        raise AssertionError("a shielded scope swallows nothing")
