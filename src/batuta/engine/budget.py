"""What a run has spent, and whether it may spend more."""

from __future__ import annotations

from decimal import Decimal

from batuta.core import Cost, Limits, Usage
from batuta.core.usage import FREE, ZERO, cost_of
from batuta.errors import LimitReached


class Budget:
    """Checked before every call, charged after it; so at most the calls in flight overrun."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.usage = ZERO
        self.cost = FREE
        self._assumed = Decimal(0)
        self._usd = None if limits.usd is None else Decimal(str(limits.usd))

    @property
    def usd(self) -> Decimal:
        """Dollars spent, calls of unknown price counted at what the limits say."""
        return self.cost.usd + self._assumed

    def charge(self, usage: Usage, cost: Cost) -> None:
        """Count what a call consumed."""
        self.usage += usage
        self.cost += cost
        if cost.unpriced_calls:
            self._assumed += cost_of(usage, self.limits.unknown).usd

    def check(self) -> None:
        """Nothing, if another call may be made.

        Raises:
            LimitReached: tokens or dollars are used up.
        """
        tokens = self.limits.tokens
        if tokens is not None and self.usage.total >= tokens:
            raise LimitReached("tokens", str(self.usage.total), str(tokens))
        if self._usd is not None and self.usd >= self._usd:
            raise LimitReached("usd", f"${self.usd:.6f}", f"${self._usd}")
