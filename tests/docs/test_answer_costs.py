"""The table of the quick start is what the list prices give."""

import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version

import pytest

from batuta.clients.providers import PROVIDERS
from docs.shell import ROOT

PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def test_the_models_of_the_table_are_those_that_a_key_gives():
    for name in ("openai", "anthropic", "gemini", "openrouter", "deepseek"):
        models = ", ".join(f"`{model}`" for model in PROVIDERS[name].models)
        assert f"| {name} | {models} |" in PAGE


def test_the_dollars_of_the_table_are_computed_by_its_command():
    if f"genai-prices {version('genai-prices')}" not in PAGE:
        pytest.skip("the table is of another list of prices")
    command = [sys.executable, ROOT / "bench" / "answer_costs.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(rows) == 5
    compared = [row for row in rows if not has_new_price(row.split(" | ")[1])]
    for row in compared:
        assert row in PAGE


def has_new_price(models):
    """Whether the list itself has another price of one of these models since the page's day."""
    from genai_prices.data_snapshot import get_snapshot

    said = re.search(r"looked up on (\d+ \w+ \d{4})", PAGE)
    assert said is not None
    day = datetime.strptime(said[1], "%d %B %Y").replace(tzinfo=UTC).date()
    prices = [
        price
        for provider in get_snapshot().providers
        for model in provider.models
        if f"`{model.id}`" in models and isinstance(model.prices, list)
        for price in model.prices
    ]
    starts = [getattr(price.constraint, "start_date", None) for price in prices]
    return any(start is not None and day < start <= datetime.now(UTC).date() for start in starts)


def test_a_price_that_begins_later_is_not_that_of_the_table(monkeypatch):
    assert not has_new_price("`gemini-4-argon`")
    monkeypatch.setattr(f"{__name__}.PAGE", PAGE.replace("1 December 2026", "28 November 2026"))
    assert has_new_price("`gpt-6.1-sol`, `gemini-4-argon`") and not has_new_price("`gpt-6.1-sol`")
