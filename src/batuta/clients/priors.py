"""What public boards say of well-known models: priors, not measurements of ours.

Every row was read from the source that its board names. What is measured here, or set in a pool
file, goes before it; a model that is not in the table has no prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from batuta.clients.model_names import plain_name
from batuta.core import Skill


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A public board, or the published answers behind one."""

    title: str
    """As the conductor sees it, with the year of the results."""
    family: str
    """What its questions are about."""
    source: str
    """Where the figures were read, and on which day."""


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
"""Plain names (`model_names.plain_name`) and per cent right.

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
"""Other plain names of the same weights, as Ollama and OpenRouter give them."""


def priors_of(model: str) -> tuple[Skill, ...]:
    """The model's skills on public boards, by whatever name a provider calls it."""
    name = plain_name(model)
    return _by_name().get(_ALIASES.get(name, name), ())


@cache
def _by_name() -> dict[str, tuple[Skill, ...]]:
    found: dict[str, tuple[Skill, ...]] = {}
    for board, rows in _ROWS.items():
        for spelled, percent in rows.items():
            share = round(percent / 100, 4)
            skill = Skill(family=board.family, share=share, board=board.title)
            name = plain_name(spelled)
            found[name] = (*found.get(name, ()), skill)
    return found
