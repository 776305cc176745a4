"""Tokens of calls and their cost, added by `+`; calls of unknown price are counted, not free."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """A number of calls, which may be 0, and their tokens.

    Raises:
        ValueError: `cached` plus `cache_write` exceeds `input`, or `reasoning` exceeds `output`.
    """

    calls: int = 0
    input: int = 0
    """Prompt tokens, including tokens read from or written to a cache."""
    cached: int = 0
    """Tokens of `input` that were read from the provider's cache."""
    cache_write: int = 0
    """Tokens of `input` that were written to the provider's cache."""
    output: int = 0
    """Completion tokens, reasoning included."""
    reasoning: int = 0
    """Tokens of `output` that were spent on hidden or visible reasoning."""
    estimated: int = 0
    """Calls with estimated tokens, because the provider reported none."""

    def __post_init__(self) -> None:
        if self.cached + self.cache_write > self.input or self.reasoning > self.output:
            raise ValueError(
                "cached and cache_write together must not exceed input, nor reasoning output: "
                f"{self}"
            )

    @property
    def total(self) -> int:
        """Input and output tokens together."""
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        if other is ZERO_USAGE:
            return self
        if self is ZERO_USAGE:
            return other
        return Usage(
            calls=self.calls + other.calls,
            input=self.input + other.input,
            cached=self.cached + other.cached,
            cache_write=self.cache_write + other.cache_write,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            estimated=self.estimated + other.estimated,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars of the calls that have a price, and the number of calls that have none."""

    usd: Decimal = Decimal(0)
    unpriced_calls: int = 0

    @property
    def is_unknown(self) -> bool:
        """True if nothing of the cost is known: there are unpriced calls, and no dollars."""
        return bool(self.unpriced_calls) and not self.usd

    def __add__(self, other: Cost) -> Cost:
        if other is ZERO_COST:
            return self
        if self is ZERO_COST:
            return other
        return Cost(self.usd + other.usd, self.unpriced_calls + other.unpriced_calls)


MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars per million tokens, except `call` and `search`.

    Raises:
        ValueError: a price is negative.
    """

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    """Price of input read from a cache; None: the price of `input`."""
    cache_write: Decimal | None = None
    """Price of input written to a cache; None: the price of `input`."""
    audio: Decimal | None = None
    """Price of audio input; None: the price of `input`."""
    call: Decimal = Decimal(0)
    """Dollars per call, in addition to its tokens."""
    search: Decimal | None = None
    """Dollars per search that the provider runs while its model answers; None: unknown."""

    def __post_init__(self) -> None:
        parts = (
            self.input,
            self.output,
            *filter(None, (self.cached, self.cache_write, self.audio, self.call, self.search)),
        )
        if any(part < 0 for part in parts):
            raise ValueError(f"a price must not be negative: {self}")

    @property
    def hour_cache_write(self) -> Decimal:
        """Price of input cached for an hour: twice `input`, or `cache_write` if that is more."""
        return max(2 * self.input, self.cache_write or Decimal(0))

    def of(self, usage: Usage) -> Decimal:
        """Return the dollars of the tokens and calls, without searches and surcharges."""
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_write is None else self.cache_write
        plain = usage.input - usage.cached - usage.cache_write
        dollars = plain * self.input + usage.cached * cached
        dollars += usage.cache_write * written + usage.output * self.output
        return dollars / MILLION + (usage.calls * self.call if self.call else 0)


def hour_cache_surcharge(price: Price, tokens: int) -> Decimal:
    """Return the dollars beyond the `cache_write` price for tokens that are cached for an hour."""
    written = price.input if price.cache_write is None else price.cache_write
    return tokens * (price.hour_cache_write - written) / MILLION


def audio_surcharge(price: Price, tokens: int) -> Decimal:
    """Return the dollars that audio tokens of the input cost beyond text; may be negative."""
    audio_price = price.input if price.audio is None else price.audio
    return tokens * (audio_price - price.input) / MILLION


ASSUMED_SEARCH = Decimal("0.01")
"""Dollars that limits count for a provider's search of unknown price."""
ASSUMED_PRICE = Price(input=Decimal(15), output=Decimal(75), search=ASSUMED_SEARCH)
"""Default price by which limits, budgets and estimates count a call of unknown price.

The recorded cost of such a call stays unknown.
"""


def usage_cost(usage: Usage, price: Price | None) -> Cost:
    """Return the cost of `usage` without searches; if `price` is None, the calls are unpriced."""
    return Cost(unpriced_calls=usage.calls) if price is None else Cost(price.of(usage))


ZERO_USAGE = Usage()
ZERO_COST = Cost()
