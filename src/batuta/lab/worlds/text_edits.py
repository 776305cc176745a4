"""Family: manipulations of a short text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from random import Random

from batuta.lab.worlds.grammar import QuestionFamily, draw_steps, register_family
from batuta.lab.worlds.problem import (
    Problem,
    StepRule,
    StepValue,
    Transform,
    register_steps,
    solve_problem,
)
from batuta.lab.worlds.words import WORDS

_VOCABULARY: list[str] = WORDS["vocabulary"]["words"].split()
_CONSONANTS = "bcdfghjklmnpqrstvwxyz"


def _change_words(change: Callable[[list[str]], Iterable[str]]) -> Transform:
    """Return a step that changes the words of a text."""
    return lambda text, _: " ".join(change(text.split()))


def _caesar_shift(text: str, by: int) -> str:
    return " ".join("".join(_shift_letter(c, by) for c in word) for word in text.split())


def _shift_letter(letter: str, by: int) -> str:
    base = ord("A") if letter.isupper() else ord("a")
    return chr(base + (ord(letter) - base + by) % 26) if letter.isascii() else letter


def _swap_ends(words: list[str]) -> list[str]:
    first, *middle, last = words
    return [last, *middle, first]


def _capitalise_words(words: list[str], parity: int) -> list[str]:
    return [word.upper() if i % 2 == parity else word for i, word in enumerate(words)]


def _without_vowels(word: str) -> str:
    return "".join(c for c in word if c.lower() not in "aeiou")


def _count_letters(text: str, letters: str) -> int:
    return sum(c.lower() in letters for word in text.split() for c in word)


_STEPS = register_steps(
    "text",
    str,
    StepRule(
        "reverse words", _change_words(lambda words: words[::-1]), ("sort words", "swap ends")
    ),
    StepRule(
        "reverse letters", _change_words(lambda ws: [w[::-1] for w in ws]), ("reverse words",)
    ),
    StepRule(
        "capitals", _change_words(lambda words: _capitalise_words(words, 1)), ("odd capitals",)
    ),
    StepRule(
        "odd capitals", _change_words(lambda words: _capitalise_words(words, 0)), ("capitals",)
    ),
    StepRule("shift", _caesar_shift, number=(1, 5)),
    StepRule("drop vowels", _change_words(lambda ws: map(_without_vowels, ws)), ("capitals",)),
    StepRule("sort words", _change_words(lambda ws: sorted(ws, key=str.lower)), ("reverse words",)),
    StepRule("swap ends", _change_words(_swap_ends), ("reverse words",)),
    StepRule("drop word", _change_words(lambda words: words[1:]), ("swap ends",)),
    StepRule("initials", lambda text, _: "".join(w[0] for w in text.split())),
    StepRule("count vowels", lambda v, _: _count_letters(v, "aeiou"), ("count consonants",)),
    StepRule("count consonants", lambda v, _: _count_letters(v, _CONSONANTS), ("count vowels",)),
    final=("initials", "count vowels", "count consonants"),
)

_MIN_WORDS, _MAX_WORDS = 4, 6


def _draw_text(rng: Random, difficulty: int) -> Problem | None:
    start = " ".join(rng.sample(_VOCABULARY, rng.randint(_MIN_WORDS, _MAX_WORDS)))
    ends = difficulty > 1 and rng.random() < 0.4  # noqa: PLR2004  (some end in a count)
    ops = draw_steps(rng, [kind.name for kind in _STEPS if not kind.is_final], difficulty - ends)
    if ends:
        ops += draw_steps(rng, [kind.name for kind in _STEPS if kind.is_final], 1)
    names = [op.kind for op in ops]
    if len(set(names)) < len(names) or (ends and "drop vowels" in names):
        return None
    problem = Problem("text", start, ops)
    value = solve_problem(problem)
    return problem if value not in (None, "", start) else None


def _read_start(text: str) -> StepValue | None:
    return text if re.fullmatch(r"[A-Za-z]+(?: [A-Za-z]+){1,15}", text) else None


TEXT_FAMILY = register_family(
    QuestionFamily(
        name="text",
        skill="text",
        draw=_draw_text,
        read_start=_read_start,
        grader=lambda _, value: "integer" if isinstance(value, int) else "exact",
    )
)
