"""Tokens and dollars of calls. Both are monoids under `+`; unknown is counted, never zero."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one call or of many."""

    calls: int = 0
    input: int = 0
    """Prompt tokens, those read from and written to a cache included."""
    cached: int = 0
    """Of `input`, read from the provider's cache."""
    cache_write: int = 0
    """Of `input`, written to the provider's cache."""
    output: int = 0
    """Completion tokens, reasoning included."""
    reasoning: int = 0
    """Of `output`, spent on hidden or shown reasoning."""
    estimated: int = 0
    """Of `calls`, those whose tokens are our estimate because the provider told none."""

    def __post_init__(self) -> None:
        if self.cached + self.cache_write > self.input or self.reasoning > self.output:
            raise ValueError(f"a part is larger than its whole: {self}")

    @property
    def total(self) -> int:
        """Input and output tokens together."""
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
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

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.usd + other.usd, self.unpriced_calls + other.unpriced_calls)
