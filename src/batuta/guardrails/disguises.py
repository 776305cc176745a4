"""Letters that look like others, or like nothing: what detectors read in place of a disguised text.

A language model reads a key in full-width letters, one with a zero-width space in every gap, and
orders in Unicode's invisible tags as if they were plain; so do detectors. Letters of other
alphabets that look like Latin ones are left as they are.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import regex

from batuta.guardrails.guardrail import Detector, TextSpan

_INVISIBLE = regex.compile(r"[\p{Default_Ignorable_Code_Point}\p{Cf}]")
_TAGS = range(0xE0020, 0xE007F)
"""Invisible, and each stands for the ASCII character that many places below it."""
_TAG_OFFSET = 0xE0000
_PIECE = 100_000
"""Characters that are translated in one piece."""
_LOOKALIKES = (
    range(0x80, 0x10000),
    range(0x1D400, 0x1D800),
    range(0x1F100, 0x1F200),
    range(0x1FBF0, 0x1FBFA),
)
"""Ranges in which Unicode has other forms of ASCII characters."""


def find_matches(pattern: Any, text: str) -> Iterator[Any]:
    """Find the matches without the interpreter's lock: in a thread it holds nobody up."""
    return pattern.finditer(text, concurrent=True)


def see_through_disguises(detect: Detector) -> Detector:
    """Return `detect` shown the text as it is and, where that is another one, without disguises.

    The spans are those of the text as it is.
    """
    _plain_letters()  # ahead of time, so that no question has to wait for it
    _invisible_characters()

    def find(text: str) -> Iterator[TextSpan]:
        yield from detect(text)
        if text.isascii():
            return
        plain = _without_forms(text)
        gaps = _invisible_places(plain)
        if gaps or plain != text:
            yield from _find_between(detect, plain, gaps)
        if any(ord(plain[at]) in _TAGS for at in gaps):
            shown = plain.translate(_TAG_LETTERS)
            yield from _find_between(detect, shown, _invisible_places(shown))

    return find


def _without_forms(text: str) -> str:
    """Return the text in plain letters, made piece by piece: each holds the interpreter's lock."""
    letters = _plain_letters()
    pieces = range(0, len(text), _PIECE)
    return "".join(text[at : at + _PIECE].translate(letters) for at in pieces)


def _find_between(detect: Detector, text: str, gaps: list[int]) -> Iterator[TextSpan]:
    """Yield findings in the text without the characters at `gaps`, as spans of the whole text."""
    kept = _cut_out(text, gaps)
    # In front of the character that is the n-th of those left, this many were cut out.
    cut_before = [gap - number for number, gap in enumerate(gaps)]
    for start, end in detect(kept):
        if start < end:
            yield start + bisect_right(cut_before, start), end + bisect_right(cut_before, end - 1)


def _cut_out(text: str, places: Iterable[int]) -> str:
    """Return the text without the characters at those places, which ascend."""
    pieces: list[str] = []
    begin = 0
    for place in places:
        pieces.append(text[begin:place])
        begin = place + 1
    return "".join([*pieces, text[begin:]])


def _invisible_places(text: str) -> list[int]:
    hidden = _invisible_characters()
    return [place for place, character in enumerate(text) if character in hidden]


@cache
def _invisible_characters() -> frozenset[str]:
    # One look at each place of a text is ten times as fast as the expression on that text.
    return frozenset(
        _INVISIBLE.findall("".join(map(chr, (*range(0xD800), *range(0xE000, 0xE1000)))))
    )


@cache
def _plain_letters() -> dict[int, str]:
    """Return every character that is another form of one ASCII character, and that one."""
    found: dict[int, str] = {}
    for code in (code for block in _LOOKALIKES for code in block):
        plain = unicodedata.normalize("NFKC", chr(code))
        if len(plain) == 1 and plain.isascii():
            found[code] = plain
    return found


_TAG_LETTERS = {code: chr(code - _TAG_OFFSET) for code in _TAGS}
