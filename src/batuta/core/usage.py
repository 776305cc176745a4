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
    audio: Decimal | None = None
    """Of input that is a recording; None: as `input`."""

    def __post_init__(self) -> None:
        parts = (
            self.input,
            self.output,
            *filter(None, (self.cached, self.cache_write, self.audio)),
        )
        if any(part < 0 for part in parts):
            raise ValueError(f"a price is not negative: {self}")

    @property
    def hour_cache_write(self) -> Decimal:
        """Of input written to a cache for an hour: twice the input's, as Anthropic bills it."""
        return max(2 * self.input, self.cache_write or Decimal(0))

    def of(self, usage: Usage) -> Decimal:
        """The dollars that `usage` costs."""
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_write is None else self.cache_write
        plain = usage.input - usage.cached - usage.cache_write
        dollars = plain * self.input + usage.cached * cached
        return (dollars + usage.cache_write * written + usage.output * self.output) / MILLION


def hour_cache_surcharge(price: Price, tokens: int) -> Decimal:
    """The dollars that so many tokens cost beyond `cache_write` where they are kept an hour."""
    written = price.input if price.cache_write is None else price.cache_write
    return tokens * (price.hour_cache_write - written) / MILLION


def audio_surcharge(price: Price, tokens: int) -> Decimal:
    """The dollars that so many tokens of recordings cost beyond those of text; may be negative."""
    heard = price.input if price.audio is None else price.audio
    return tokens * (heard - price.input) / MILLION


ASSUMED_PRICE = Price(input=Decimal(15), output=Decimal(75))
"""What a call of unknown price counts as under a limit or a budget, and nowhere else."""


def usage_cost(usage: Usage, price: Price | None) -> Cost:
    """The cost of `usage`; without a price its calls are counted as unpriced."""
    return Cost(unpriced_calls=usage.calls) if price is None else Cost(price.of(usage))


ZERO_USAGE = Usage()
ZERO_COST = Cost()
