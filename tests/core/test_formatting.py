"""Numbers as people read them."""

from decimal import Decimal

import pytest

from batuta.core import Cost
from batuta.core.formatting import (
    format_age,
    format_bytes,
    format_cost,
    format_count,
    format_percent,
    format_seconds,
    format_usd,
    join_words,
)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "$0"), ("0.0014", "$0.0014"), ("0.5", "$0.50"), ("1.4", "$1.40"), (1400, "$1,400"), (-2, "-$2.00")],
)  # fmt: skip
def test_dollars_have_as_many_digits_as_tell_something(amount, text):
    assert format_usd(Decimal(amount)) == text


def test_a_cost_of_which_a_part_is_unknown_is_a_lower_bound():
    assert format_cost(Cost(usd=Decimal("0.5"))) == "$0.50"
    assert format_cost(Cost(usd=Decimal("0.5"), unpriced_calls=1)) == "≥ $0.50"
    assert format_cost(Cost(unpriced_calls=3)) == "unpriced"


def test_times_counts_and_shares():
    assert [format_seconds(s) for s in (0.09, 1.44, 125)] == ["90 ms", "1.4 s", "2 min 05 s"]
    shown = [format_seconds(s) for s in (0.9996, 59.96, 3599.6)]
    assert shown == ["1.0 s", "1 min 00 s", "1 h 00 min"]
    assert [format_bytes(n) for n in (999, 999_999, 999_999_999)] == ["999 B", "1 MB", "1.0 GB"]
    assert format_count(1054) == "1,054" and format_percent(0.424) == "42\u00a0%"
    assert format_percent(17.84) == "1,784\u00a0%"
    assert [format_age(0, now) for now in (1, 120, 3599, 7200, 200_000)] == [
        "just now", "2 min ago", "59 min ago", "2 h ago", "2 d ago",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")],
)
def test_words_are_listed_as_a_sentence_lists_them(words, text):
    assert join_words(words) == text
