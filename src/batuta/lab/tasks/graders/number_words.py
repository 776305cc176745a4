"""Reads numbers in English words."""

from __future__ import annotations

import re
from fractions import Fraction

_SMALL_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_SMALL = {word: value for value, word in enumerate(_SMALL_WORDS.split())}
_TEN_WORDS = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = {word: 10 * value for value, word in enumerate(_TEN_WORDS.split(), start=2)}
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8,
          "tenth": 10}  # fmt: skip
_WHOLE = {"a": 1, "an": 1, "dozen": 12, **_SMALL}
_OPEN = frozenset({"", "hundred", *SCALES})
"""The words, and "" for the start, after which another number may begin."""
_DIGITS = frozenset(list(_SMALL)[1:10])
HUNDRED = 100
_MAX_LENGTH = 100
"""Maximum length of a number in words, in characters."""


def parse_number_words(text: str) -> Fraction | None:
    """Return a number in English words, such as `two and a half`; None if the text is not one."""
    if len(text) > _MAX_LENGTH:
        return None
    words = re.sub(r"[-\s]+", " ", text.strip().casefold()).strip(" .").split(" ")
    if words in (["a", "dozen"], ["one", "dozen"], ["dozen"]):
        return Fraction(12)
    if words[-1].removesuffix("s") in _PARTS or words[-1] == "halves":
        return _with_part(words)
    value = _parse_whole_number(words)
    return None if value is None else Fraction(value)


def _with_part(words: list[str]) -> Fraction | None:
    """Read `three quarters`, `half`, or `two and a half`."""
    last = "half" if words[-1] == "halves" else words[-1].removesuffix("s")
    before = words[:-1]
    whole = 0
    if "and" in before:
        at = len(before) - 1 - before[::-1].index("and")
        spoken = _parse_whole_number(before[:at])
        if spoken is None:
            return None
        whole, before = spoken, before[at + 1 :]
    above = _WHOLE.get(before[0]) if len(before) == 1 else 1 if not before else None
    return None if above is None else whole + Fraction(above, _PARTS[last])


def _parse_whole_number(words: list[str]) -> int | None:
    total = current = 0
    last = ""
    for word in words:
        if word == "and" and last in {"hundred", *SCALES}:
            continue
        step = _add_word(word, last, current)
        if step is None:
            return None
        current = step
        if word in SCALES:
            total, current = total + current * SCALES[word], 0
        last = word
    return total + current if last else None


def _add_word(word: str, last: str, current: int) -> int | None:
    """Return the value after one more word; None if the word does not fit."""
    if word in _SMALL:
        behind_tens = last in _TENS and word in _DIGITS
        return current + _SMALL[word] if behind_tens or last in _OPEN else None
    if word in _TENS:
        return current + _TENS[word] if last in _OPEN else None
    if word in {"a", "an"}:
        return 1 if not last else None
    if word == "hundred":
        return current * HUNDRED if 0 < current < HUNDRED else None
    return current if word in SCALES and current else None
