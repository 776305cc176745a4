"""Common parts of pools whose workers are drawn from a seed, named `WORLD[:SEED[:COUNT]]`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

_Drawn = TypeVar("_Drawn")
DEFAULT_SEED, DEFAULT_COUNT = 1, 7
MOST_WORKERS = 2000
MOST_DIGITS = 18
"""Maximum digits of a seed or count; Python does not parse numbers of thousands of digits."""
CARD_QUESTIONS = 30
"""Number of questions of each family on which a card's figures are measured."""
CARD_SEED = 8_500_000
"""Seed of the cards' questions, which neither training nor tests draw."""
_ONSETS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def parse_drawn_source(source: str) -> tuple[int, int] | None:
    """Return the seed and the number of workers, by default 1 and 7; None if it is not valid."""
    _, *parts = source.split(":")
    if len(parts) > 2 or not all(part.isdecimal() and part.isascii() for part in parts):  # noqa: PLR2004
        return None
    if any(len(part) > MOST_DIGITS for part in parts):
        return None
    seed, count, *_ = (*map(int, parts), *(DEFAULT_SEED, DEFAULT_COUNT)[len(parts) :])
    return (seed, count) if 1 <= count <= MOST_WORKERS else None


def draw_name(rng: random.Random) -> str:
    """Return a random name of two meaningless syllables."""
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(2))


def draw_named(rng: random.Random, count: int, draw: Callable[[str], _Drawn]) -> tuple[_Drawn, ...]:
    """Return `count` workers with different names, which `draw` draws one after another."""
    found: dict[str, _Drawn] = {}
    while len(found) < count:
        name = draw_name(rng)
        found.setdefault(name, draw(name))
    return tuple(found.values())


def mean_share(outcomes: list[bool] | list[float]) -> float:
    """Return the share of true outcomes, or the mean of shares."""
    return sum(outcomes) / len(outcomes)
