"""What is known of well-known models: price, context window, abilities, what their makers say.

Prices, windows and descriptions are read from the package `genai-prices`, which is loaded when a
model is looked up for the first time (0.3 s of CPU) and never reaches for the network. A pool
file's own `price` goes before them, and a model that is not known has no price rather than a
price of 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from batuta.clients.model_names import plain_name
from batuta.core import Price

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

_PROVIDERS = {"gemini": "google", "vertex": "google", "bedrock": "aws"}
"""Names of ours that `genai-prices` spells in another way."""
_LOCAL = {"ollama", "vllm", "sglang", "llamacpp", "lmstudio", "python"}
"""Servers on one's own machine: what their models cost elsewhere says nothing of them."""
_ABLE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"o1-mini|o1-preview|deepseek-r1|gemma|phi|smollm", ()),
    (r"o3-mini|gpt-3\.5|gpt-oss|deepseek|codestral|devstral|magistral|ministral", ("tools",)),
    (r"gpt-audio|gpt-4o(?:-mini)?-audio", ("audio", "tools")),
    (r"gpt-4o|gpt-4-1|gpt-5|gpt-6|o1|o3|o4|claude", ("vision", "tools", "files")),
    (r"gemini", ("vision", "tools", "files", "audio")),
    (r"pixtral|llama4|qwen[\d-]*vl|mistral-(?:small|medium|large)-?[34]", ("vision", "tools")),
    (r"gpt-4|qwen|llama3|mistral|mixtral|grok|glm|kimi|command|minimax", ("tools",)),
)
"""Families of models whose abilities are known, by the beginning of their plain names; the first
that fits counts."""
_SAID = 160
"""Characters of what a maker says of a model."""
_SENTENCE = re.compile(r"(?<=[.!?])\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of a model."""

    price: Price | None = None
    """Of a prompt of ordinary length; some providers ask more for very long ones."""
    context_window: int | None = None
    """Tokens."""
    tags: tuple[str, ...] = ()
    description: str = ""
    """What its maker says of it."""


def find_model_facts(provider: str, model: str, base_url: str = "") -> ModelFacts | None:
    """What is known of a model; None: nothing.

    Args:
        provider: a name in `PROVIDERS`.
        model: the model's name as that provider spells it.
        base_url: where it is reached; tells what `compatible` means.
    """
    tags = abilities_of(model)
    known_as = _PROVIDERS.get(provider, provider)
    info = None if provider in _LOCAL else _model_info(known_as, model, base_url)
    if info is None:
        return ModelFacts(tags=tags) if tags else None
    about = info.description or _description_elsewhere(model)
    said = _SENTENCE.split(" ".join(about.split()))[0]
    return ModelFacts(
        price=_dearest_price(info, datetime.now(UTC)),
        context_window=info.context_window,
        tags=tags,
        description=f"Its maker says: {shorten(said, _SAID, placeholder=' …')}" if said else "",
    )


def list_price(provider: str, model: str) -> Price | None:
    """The list price of a model; None: not known, which is not free."""
    facts = find_model_facts(provider, model)
    return None if facts is None else facts.price


def abilities_of(model: str) -> tuple[str, ...]:
    """Tags that the model's family is known to deserve; empty: it is not known to us."""
    name = plain_name(model)
    return next((tags for pattern, tags in _ABLE if re.match(pattern, name)), ())


def _description_elsewhere(model: str) -> str:
    """What the maker says of a model that another provider offers as `maker/model`."""
    maker, _, name = model.rpartition("/")
    info = _model_info(maker, name, "") if maker else None
    return info.description or "" if info else ""


@cache
def _model_info(provider: str, model: str, base_url: str) -> ModelInfo | None:
    """The model as `genai-prices` has it."""
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - 0.3 s, not for all

    prices = get_snapshot()
    named = {"provider_id": provider, "provider_api_url": None}
    if provider == "compatible":
        if not base_url:
            return None
        named = {"provider_id": None, "provider_api_url": base_url}
    try:
        return prices.find_provider_model(model.removeprefix("models/"), None, **named)[1]
    except LookupError:
        return None


def _dearest_price(info: ModelInfo, now: datetime) -> Price | None:
    """Today's price in the dearest hour, so that a budget holds all day."""
    hours = (now.replace(hour=0, minute=45) + timedelta(hours=hour) for hour in range(24))
    embeds = "embed" in info.id  # such a model has no output
    prices = [price for hour in hours if (price := _price_of(info.get_prices(hour), embeds))]
    return max(prices, key=lambda price: price.output) if prices else None


def _price_of(prices: Any, embeds: bool) -> Price | None:  # noqa: FBT001 - what kind it is
    paid, output = _base_price(prices.input_mtok), _base_price(prices.output_mtok)
    output = Decimal(0) if embeds and output is None else output
    if paid is None or output is None:
        return None
    return Price(
        input=paid,
        output=output,
        cached=_base_price(prices.cache_read_mtok),
        cache_write=_base_price(prices.cache_write_mtok),
        audio=_base_price(prices.input_audio_mtok),
    )


def _base_price(amount: Any) -> Decimal | None:
    """Dollars per million tokens, of a prompt of ordinary length."""
    amount = getattr(amount, "base", amount)
    return amount if isinstance(amount, Decimal) else None
