"""Usage and cost add up like numbers, and an unknown price is never free."""

from decimal import Decimal

import pytest

from batuta.core import Cost, Price, Usage
from batuta.usage import ZERO_COST, ZERO_USAGE, usage_cost

PRICE = Price(input=Decimal(3), output=Decimal(15), cached=Decimal("0.3"))


def test_a_price_counts_each_token_once():
    usage = Usage(calls=1, input=1_000_000, cached=400_000, output=100_000)
    assert PRICE.of(usage) == Decimal("0.6") * 3 + Decimal("0.4") * Decimal("0.3") + Decimal("1.5")
    assert usage_cost(usage, PRICE) == Cost(usd=PRICE.of(usage))


def test_without_a_price_the_calls_are_counted_and_nothing_is_free():
    cost = usage_cost(Usage(calls=2, input=10, output=10), None)
    assert cost.usd == 0 and cost.unpriced_calls == 2 and cost != ZERO_COST
    assert Usage() == ZERO_USAGE


def test_a_negative_price_is_refused():
    with pytest.raises(ValueError, match="a price must not be negative"):
        Price(input=Decimal(-1), output=Decimal(0))
