"""Facts about well-known models: price, context window, abilities, published results.

Prices, windows and descriptions are read from the package `genai-prices`, which is loaded when a
model is first looked up (0.3 s of CPU) and makes no network requests. A `price` in a pool file
takes precedence, and an unknown model has no price rather than a price of 0.

Results on public leaderboards are priors, not our own measurements; each board names the source of
its rows. Skills measured here or set in a pool file take precedence; a model that is not in the
table has no prior.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from batuta.clients.providers import PROVIDERS
from batuta.core import Price, Skill, Worker, WorkerId

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

_PROVIDERS = {"gemini": "google", "vertex": "google", "bedrock": "aws"}
"""Our provider names that `genai-prices` spells differently."""
_LOCAL = {provider.name for provider in PROVIDERS.values() if provider.local}
"""Providers on the user's own machine, to which other providers' prices do not apply."""
_ABILITIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"o1-mini|o1-preview|deepseek-r1|gemma|phi|smollm", ()),
    (r"o3-mini|gpt-3\.5|gpt-oss|deepseek|codestral|devstral|magistral|ministral", ("tools",)),
    (r"gpt-audio|gpt-4o(?:-mini)?-audio", ("audio", "tools")),
    (r"gpt-4o|gpt-4-1|gpt-5|gpt-6|o1|o3|o4|claude", ("vision", "tools", "files")),
    (r"gemini", ("vision", "tools", "files", "audio")),
    (r"pixtral|llama4|qwen[\d-]*vl|mistral-(?:small|medium|large)-?[34]", ("vision", "tools")),
    (r"gpt-4|qwen|llama3|mistral|mixtral|grok|glm|kimi|command|minimax", ("tools",)),
)
"""Abilities by a pattern for the beginning of plain names; the first match counts."""
_ABOUT_CHARACTERS = 160
"""Maximum number of characters of a maker's description."""
_BILLIONS = re.compile(r"(?<![a-z\d.])(\d+(?:\.\d+)?)\s*(b|m)(?![a-z\d])", re.IGNORECASE)
_FREE_PRICE = Price(input=Decimal(0), output=Decimal(0))
_SENTENCE = re.compile(r"(?<=[.!?])\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about a model."""

    price: Price | None = None
    """Price for prompts of ordinary length, as some providers charge more for very long prompts.

    None if it is unknown.
    """
    context_window: int | None = None
    """In tokens; None if it is unknown."""
    tags: tuple[str, ...] = ()
    description: str = ""
    """`Its maker says:` and the start of the maker's description; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A model in a server's list."""

    name: str
    context_window: int | None = None
    """In tokens; None if the server does not state it."""
    parameters: float | None = None
    """In billions; None if it is unknown."""
    tags: tuple[str, ...] | None = None
    """The model's abilities; None if the server does not state them."""
    thinks: bool | None = None
    """Whether the model accepts a reasoning effort; None if the server does not state it."""


def find_model_facts(provider: str, model: str, base_url: str = "") -> ModelFacts | None:
    """Return the facts about a model; None if none are known.

    Args:
        provider: a name in `PROVIDERS`.
        model: the model's name as that provider spells it.
        base_url: the server's URL; identifies the provider behind `compatible`.
    """
    tags = abilities_of(model)
    known_as = _PROVIDERS.get(provider, provider)
    info = None if provider in _LOCAL else _model_info(known_as, model, base_url)
    if info is None:
        return ModelFacts(tags=tags) if tags else None
    about = info.description or _description_elsewhere(model)
    sentence = _SENTENCE.split(" ".join(about.split()))[0]
    return ModelFacts(
        price=_highest_price(info, datetime.now(UTC)),
        context_window=info.context_window,
        tags=tags,
        description=f"Its maker says: {shorten(sentence, _ABOUT_CHARACTERS, placeholder=' …')}"
        if sentence
        else "",
    )


def abilities_of(model: str) -> tuple[str, ...]:
    """Return the ability tags of the model's family; empty if the family is unknown."""
    name = plain_name(model)
    return next((tags for pattern, tags in _ABILITIES if re.match(pattern, name)), ())


def _description_elsewhere(model: str) -> str:
    """Return the maker's description of a model that another provider offers as `maker/model`."""
    maker, _, name = model.rpartition("/")
    info = _model_info(maker, name, "") if maker else None
    return info.description or "" if info else ""


@cache
def _model_info(provider: str, model: str, base_url: str) -> ModelInfo | None:
    """Return the model's entry in `genai-prices`; None if there is none."""
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - 0.3 s, not always needed

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


def _highest_price(info: ModelInfo, now: datetime) -> Price | None:
    """Return today's price in the most expensive hour, so that a budget holds all day."""
    hours = (now.replace(hour=0, minute=45) + timedelta(hours=hour) for hour in range(24))
    embeds = "embed" in info.id  # such a model has no output
    prices = [price for hour in hours if (price := _price_of(info.get_prices(hour), embeds))]
    return max(prices, key=lambda price: price.output) if prices else None


def _price_of(prices: Any, embeds: bool) -> Price | None:  # noqa: FBT001 - private
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
    """Return the dollars per million tokens, for prompts of ordinary length."""
    amount = getattr(amount, "base", amount)
    return amount if isinstance(amount, Decimal) else None


_DATE = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|20\d{6}|latest|preview$|beta$)(?=-|$)")
_FORM = re.compile(r"-(?:instruct|it|hf|gguf|awq|gptq|fp8|fp16|bf16|q\d(?:-[a-z0-9]+)*)(?=-|$)")
_BEDROCK = re.compile(r"-v\d+:\d+$")
_REGION = re.compile(r"^(?:us|eu|apac|global|regional)\.")
_FAMILY = re.compile(r"^(llama|qwen|gemma|phi)-(?=\d)")
_MAKER = re.compile(r"^(?:anthropic|amazon|meta|mistral|cohere|deepseek|openai|qwen)\.")


def plain_name(model: str) -> str:
    """Return the model name without maker, date and packaging.

    `anthropic/claude-sonnet-4.5:beta` becomes `claude-sonnet-4-5`, and Ollama's `qwen3:32b-q4_K_M`
    becomes `qwen3-32b`. A short date as in `deepseek-r1-0528` stays, as it names another model.
    """
    name = _BEDROCK.sub("", model.lower().rpartition("/")[2].removesuffix(".gguf"))
    name = _MAKER.sub("", _REGION.sub("", name))
    name = re.sub(r"[:._@ ]+", "-", name).strip("-")
    return _FAMILY.sub(r"\1", _FORM.sub("", _DATE.sub("", name))) or name


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A public leaderboard, or the published answers behind one."""

    title: str
    """The title shown to the conductor, with the year of the results."""
    family: str
    """The subject of its questions."""
    source: str
    """The source of the figures, and the day on which they were read."""


MATHARENA = Board(
    title="MathArena AIME 2025",
    family="competition maths",
    source="github.com/IsThatYou/auto-bench-audit at f743419, benchmarks/leaderboards/aime2425: a "
    "mirror of MathArena's outputs for AIME 2025, 30 problems, mean over up to 4 tries; read "
    "2026-11-23",
)
AIDER = Board(
    title="Aider polyglot, spring 2025",
    family="code editing",
    source="github.com/Aider-AI/aider at 0153842, aider/website/_data/polyglot_leaderboard.yml: "
    "225 exercises, pass_rate_2, runs of 2024-12-21 to 2025-04-30; read 2026-11-23",
)
MMLU_PRO = Board(
    title="MMLU-Pro, 2024",
    family="expert knowledge",
    source="github.com/TIGER-AI-Lab/MMLU-Pro at f418b11, eval_results: answers to 12,032 "
    "questions, share right; read 2026-11-23",
)

_ROWS: dict[Board, dict[str, float]] = {
    MATHARENA: {
        "gpt-5-2": 100.0,
        "gpt-5-1": 94.2,
        "gpt-5": 95.0,
        "gpt-5-mini": 87.5,
        "gpt-5-nano": 85.0,
        "gpt-oss-120b": 90.0,
        "gpt-oss-20b": 89.2,
        "gpt-4o": 11.7,
        "o1": 81.7,
        "o3": 89.2,
        "o3-mini": 76.7,
        "o4-mini": 84.2,
        "claude-sonnet-4-5": 84.2,
        "claude-opus-4": 70.0,
        "claude-3-7-sonnet": 49.2,
        "claude-3-5-sonnet": 3.3,
        "gemini-3-pro": 95.0,
        "gemini-3-flash": 97.5,
        "gemini-2-5-pro": 87.5,
        "gemini-2-5-flash": 70.8,
        "gemini-2-0-flash": 27.5,
        "deepseek-r1": 70.0,
        "deepseek-r1-0528": 89.2,
        "deepseek-v3": 25.0,
        "deepseek-v3-0324": 50.0,
        "deepseek-r1-distill-llama-70b": 55.0,
        "deepseek-r1-distill-qwen-32b": 60.0,
        "deepseek-r1-distill-qwen-14b": 49.2,
        "deepseek-r1-distill-qwen-1-5b": 20.0,
        "grok-4": 92.5,
        "glm-4-5": 93.3,
        "glm-4-5-air": 83.3,
        "glm-4-6": 91.7,
        "glm-4-7": 97.2,
        "glm-5": 96.7,
        "kimi-k2-thinking": 92.5,
        "kimi-k2-5": 95.8,
        "llama4-maverick": 22.5,
        "phi-4-reasoning-plus": 74.2,
        "qwen3-235b-a22b": 80.8,
        "qwen3-30b-a3b": 70.0,
        "qwq-32b": 65.8,
    },
    AIDER: {
        "o3": 79.6,
        "gemini-2-5-pro": 72.9,
        "o4-mini": 72.0,
        "qwen3-235b-a22b": 65.3,
        "o1": 61.7,
        "claude-3-7-sonnet": 60.4,
        "deepseek-r1": 56.9,
        "deepseek-v3-0324": 55.1,
        "o3-mini": 53.8,
        "grok-3": 53.3,
        "gpt-4-1": 52.4,
        "claude-3-5-sonnet": 51.6,
        "deepseek-v3": 48.4,
        "gemini-2-5-flash": 47.1,
        "qwen3-32b": 45.8,
        "gpt-4-1-mini": 32.4,
        "claude-3-5-haiku": 28.0,
        "gpt-4o": 23.1,
        "qwq-32b": 20.9,
        "qwen2-5-coder-32b": 16.4,
        "llama4-maverick": 15.6,
        "command-a-03-2025": 12.0,
        "gpt-4-1-nano": 8.9,
        "gemma3-27b": 4.9,
        "gpt-4o-mini": 3.6,
    },
    MMLU_PRO: {
        "gpt-4o": 72.1,
        "gemini-1-5-pro-002": 70.2,
        "gemini-1-5-flash-002": 64.1,
        "deepseek-coder-v2": 63.6,
        "llama3-1-70b": 62.8,
        "llama3-1-8b": 44.2,
        "mathstral-7b": 42.0,
        "mixtral-8x7b": 41.9,
        "phi-3-mini-4k": 41.5,
        "mistral-7b-v0-2": 28.8,
    },
}
"""Plain names (see `plain_name`) and per cent correct.

MathArena: high effort for GPT-5, o3 and gpt-oss, medium for o1, o3-mini and o4-mini, with thinking
for Claude from 3.7 on and Gemini 2.5. Aider: high effort for o1, o3 and o4-mini, medium for
o3-mini, no thinking for Claude, the better of two edit formats."""

_ALIASES = {
    "deepseek-r1-70b": "deepseek-r1-distill-llama-70b",
    "deepseek-r1-32b": "deepseek-r1-distill-qwen-32b",
    "deepseek-r1-14b": "deepseek-r1-distill-qwen-14b",
    "deepseek-r1-1-5b": "deepseek-r1-distill-qwen-1-5b",
    "claude-opus-4-0": "claude-opus-4",
    "qwen3-30b": "qwen3-30b-a3b",
    "qwen3-235b": "qwen3-235b-a22b",
    "qwq": "qwq-32b",
    "llama4-maverick-17b-128e": "llama4-maverick",
    "mixtral-8x7b-v0-1": "mixtral-8x7b",
    "deepseek-chat-v3": "deepseek-v3",
    "deepseek-chat-v3-0324": "deepseek-v3-0324",
}
"""Other plain names of the same weights, used by Ollama and OpenRouter."""


def priors_of(model: str) -> tuple[Skill, ...]:
    """Return the model's skills on public leaderboards; empty if it is on none of them.

    Other names of the model are recognized by `plain_name` and `_ALIASES`.
    """
    name = plain_name(model)
    return _by_name().get(_ALIASES.get(name, name), ())


@cache
def _by_name() -> dict[str, tuple[Skill, ...]]:
    skills: dict[str, tuple[Skill, ...]] = {}
    for board, rows in _ROWS.items():
        for spelled, percent in rows.items():
            share = round(percent / 100, 4)
            skill = Skill(family=board.family, share=share, board=board.title)
            name = plain_name(spelled)
            skills[name] = (*skills.get(name, ()), skill)
    return skills


def parameters_in(text: str) -> float | None:
    """Return the billions of parameters that a name or size such as `qwen3:8b` or `135M` states.

    If the text has several such numbers, the largest is returned; None if it has none.
    """
    sizes = _BILLIONS.findall(text.replace("_", "-"))
    return max((float(n) / (1000 if unit in {"m", "M"} else 1) for n, unit in sizes), default=None)


def known_worker(provider: str, model: ListedModel, base_url: str = "") -> Worker:
    """Return a worker named `provider/model`, from its server's listing and the known facts.

    Args:
        provider: a name in `PROVIDERS`.
        model: the model as its server lists it.
        base_url: the server's URL.
    """
    facts = find_model_facts(provider, model.name, base_url) or ModelFacts()
    local = provider in _LOCAL
    name = model.name.rpartition("/")[2] if model.name.endswith(".gguf") else model.name
    tags = facts.tags if model.tags is None else model.tags
    size = model.parameters or parameters_in(model.name)
    about = facts.description or (f"{size:.3g} billion parameters." if size else "")
    return Worker(
        id=WorkerId(f"{provider}/{name.removesuffix('.gguf')}"),
        model=model.name,
        description=about,
        tags=(*tags, "local") if local else tags,
        context_window=model.context_window or facts.context_window,
        price=_FREE_PRICE if local else facts.price,
        skills=priors_of(model.name),
        parameters=size,
    )
