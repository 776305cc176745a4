"""What is known of well-known models: price, context window, abilities.

Prices are the providers' list prices in dollars per million tokens, as known in early 2026 and
for prompts of ordinary length (Gemini asks more above 200,000 tokens). They are a convenience: a
pool file's own `price` goes before them, and a model that is not here has no price rather than a
price of 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from batuta.core import Price


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model."""

    price: Price
    context_window: int
    """Tokens."""
    tags: tuple[str, ...] = ("tools",)


_SEEN = ("vision", "tools")
_TEXT = ("tools",)
_K = 1_000

# provider, model, input, cached input, cache write (empty: as input), output, window, tags
_ROWS: tuple[tuple[str, str, str, str, str, str, int, tuple[str, ...]], ...] = (
    ("openai", "gpt-5.2", "1.75", "0.175", "", "14", 400 * _K, _SEEN),
    ("openai", "gpt-5.1", "1.25", "0.125", "", "10", 400 * _K, _SEEN),
    ("openai", "gpt-5", "1.25", "0.125", "", "10", 400 * _K, _SEEN),
    ("openai", "gpt-5-mini", "0.25", "0.025", "", "2", 400 * _K, _SEEN),
    ("openai", "gpt-5-nano", "0.05", "0.005", "", "0.4", 400 * _K, _SEEN),
    ("openai", "gpt-4.1", "2", "0.5", "", "8", 1_047_576, _SEEN),
    ("openai", "gpt-4.1-mini", "0.4", "0.1", "", "1.6", 1_047_576, _SEEN),
    ("openai", "gpt-4.1-nano", "0.1", "0.025", "", "0.4", 1_047_576, _SEEN),
    ("openai", "gpt-4o", "2.5", "1.25", "", "10", 128 * _K, _SEEN),
    ("openai", "gpt-4o-mini", "0.15", "0.075", "", "0.6", 128 * _K, _SEEN),
    ("openai", "o3", "2", "0.5", "", "8", 200 * _K, _SEEN),
    ("openai", "o3-mini", "1.1", "0.55", "", "4.4", 200 * _K, _TEXT),
    ("openai", "o4-mini", "1.1", "0.275", "", "4.4", 200 * _K, _SEEN),
    ("anthropic", "claude-opus-4-6", "5", "0.5", "6.25", "25", 200 * _K, _SEEN),
    ("anthropic", "claude-opus-4-5", "5", "0.5", "6.25", "25", 200 * _K, _SEEN),
    ("anthropic", "claude-opus-4-1", "15", "1.5", "18.75", "75", 200 * _K, _SEEN),
    ("anthropic", "claude-sonnet-4-6", "3", "0.3", "3.75", "15", 200 * _K, _SEEN),
    ("anthropic", "claude-sonnet-4-5", "3", "0.3", "3.75", "15", 200 * _K, _SEEN),
    ("anthropic", "claude-sonnet-4", "3", "0.3", "3.75", "15", 200 * _K, _SEEN),
    ("anthropic", "claude-haiku-4-5", "1", "0.1", "1.25", "5", 200 * _K, _SEEN),
    ("anthropic", "claude-3-5-haiku", "0.8", "0.08", "1", "4", 200 * _K, _SEEN),
    ("gemini", "gemini-3-pro-preview", "2", "0.2", "", "12", 1_048_576, _SEEN),
    ("gemini", "gemini-3-flash-preview", "0.5", "0.05", "", "3", 1_048_576, _SEEN),
    ("gemini", "gemini-2.5-pro", "1.25", "0.125", "", "10", 1_048_576, _SEEN),
    ("gemini", "gemini-2.5-flash", "0.3", "0.03", "", "2.5", 1_048_576, _SEEN),
    ("gemini", "gemini-2.5-flash-lite", "0.1", "0.01", "", "0.4", 1_048_576, _SEEN),
    ("gemini", "gemini-2.0-flash", "0.1", "0.025", "", "0.4", 1_048_576, _SEEN),
    ("deepseek", "deepseek-chat", "0.28", "0.028", "", "0.42", 128 * _K, _TEXT),
    ("deepseek", "deepseek-reasoner", "0.28", "0.028", "", "0.42", 128 * _K, _TEXT),
)


def _facts(
    paid: str, cached: str, written: str, output: str, window: int, tags: tuple[str, ...]
) -> ModelFacts:
    price = Price(
        input=Decimal(paid),
        output=Decimal(output),
        cached=Decimal(cached),
        cache_write=Decimal(written) if written else None,
    )
    return ModelFacts(price, window, tags)


_CATALOG = {(row[0], row[1]): _facts(*row[2:]) for row in _ROWS}
_DATE = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|latest|0)$")


def facts_of(provider: str, model: str) -> ModelFacts | None:
    """What is known of a model; a date or `-latest` at the end of its name is overlooked."""
    name = model.removeprefix("models/")
    found = _CATALOG.get((provider, name))
    return found or _CATALOG.get((provider, _DATE.sub("", name)))


def lookup(provider: str, model: str) -> Price | None:
    """The list price of a model; None: not known, which is not free."""
    facts = facts_of(provider, model)
    return None if facts is None else facts.price
