"""Prices, and what usage costs by them; an unknown price is counted, never zero."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from batuta.usage import Cost, Usage

MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars per million tokens."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    """Of input read from a cache; None: as `input`."""
    cache_write: Decimal | None = None
    """Of input written to a cache; None: as `input`."""

    def __post_init__(self) -> None:
        parts = (self.input, self.output, self.cached or 0, self.cache_write or 0)
        if any(part < 0 for part in parts):
            raise ValueError(f"a price is not negative: {self}")

    def of(self, usage: Usage) -> Decimal:
        """The dollars that `usage` costs."""
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_write is None else self.cache_write
        plain = usage.input - usage.cached - usage.cache_write
        dollars = plain * self.input + usage.cached * cached
        return (dollars + usage.cache_write * written + usage.output * self.output) / MILLION


ASSUMED_PRICE = Price(input=Decimal(15), output=Decimal(75))
"""What a call of unknown price counts as under a limit or a budget, and nowhere else."""


def usage_cost(usage: Usage, price: Price | None) -> Cost:
    """The cost of `usage`; without a price its calls are counted as unpriced."""
    return Cost(unpriced_calls=usage.calls) if price is None else Cost(price.of(usage))


ZERO_USAGE = Usage()
ZERO_COST = Cost()
