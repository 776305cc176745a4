"""Undoes disguises by look-alike and invisible characters, so that detectors see the plain text.

A language model reads a key in full-width letters, a key with zero-width spaces between its
letters, and instructions in Unicode's invisible tags like plain text, so detectors must do the
same. Letters of other alphabets that look like Latin letters are left unchanged.
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
"""Invisible tag characters; each stands for the ASCII character `_TAG_OFFSET` below it."""
_TAG_OFFSET = 0xE0000
_PIECE = 100_000
"""Number of characters that are translated in one step."""
_LOOKALIKES = (
    range(0x80, 0x10000),
    range(0x1D400, 0x1D800),
    range(0x1F100, 0x1F200),
    range(0x1FBF0, 0x1FBFA),
)
"""Ranges in which Unicode has alternative forms of ASCII characters."""


def find_matches(pattern: Any, text: str) -> Iterator[Any]:
    """Yield the matches of a pattern that `regex` compiled.

    The search does not hold the GIL, so that other threads can run.
    """
    return pattern.finditer(text, concurrent=True)


def see_through_disguises(detect: Detector) -> Detector:
    """Return a detector that searches a text both as it is and without disguises.

    Its spans are positions in the text as it is.
    """
    _plain_letters()  # both are computed ahead of time, so that no question waits for them
    _invisible_characters()

    def find(text: str) -> Iterator[TextSpan]:
        yield from detect(text)
        if text.isascii():
            return
        plain = _without_forms(text)
        gaps = _invisible_positions(plain)
        if gaps or plain != text:
            yield from _find_between(detect, plain, gaps)
        if any(ord(plain[at]) in _TAGS for at in gaps):
            shown = plain.translate(_TAG_LETTERS)
            yield from _find_between(detect, shown, _invisible_positions(shown))

    return find


def _without_forms(text: str) -> str:
    """Return the text in plain letters, translated in pieces so that other threads can run."""
    letters = _plain_letters()
    pieces = range(0, len(text), _PIECE)
    return "".join(text[at : at + _PIECE].translate(letters) for at in pieces)


def _find_between(detect: Detector, text: str, gaps: list[int]) -> Iterator[TextSpan]:
    """Search the text without the characters at `gaps`; yield spans of the whole text."""
    kept = _remove_characters(text, gaps)
    # For each gap, its position in the text without gaps.
    gap_positions = [gap - number for number, gap in enumerate(gaps)]
    for start, end in detect(kept):
        if start < end:
            yield (
                start + bisect_right(gap_positions, start),
                end + bisect_right(gap_positions, end - 1),
            )


def _remove_characters(text: str, positions: Iterable[int]) -> str:
    """Return the text without the characters at those positions, given in ascending order."""
    pieces: list[str] = []
    begin = 0
    for position in positions:
        pieces.append(text[begin:position])
        begin = position + 1
    return "".join([*pieces, text[begin:]])


def _invisible_positions(text: str) -> list[int]:
    hidden = _invisible_characters()
    return [position for position, character in enumerate(text) if character in hidden]


@cache
def _invisible_characters() -> frozenset[str]:
    # Looking each character up in a set is ten times as fast as the expression on a text.
    return frozenset(
        _INVISIBLE.findall("".join(map(chr, (*range(0xD800), *range(0xE000, 0xE1000)))))
    )


@cache
def _plain_letters() -> dict[int, str]:
    """Return the alternative forms of ASCII characters by code, each with its ASCII character."""
    found: dict[int, str] = {}
    for code in (code for block in _LOOKALIKES for code in block):
        plain = unicodedata.normalize("NFKC", chr(code))
        if len(plain) == 1 and plain.isascii():
            found[code] = plain
    return found


_TAG_LETTERS = {code: chr(code - _TAG_OFFSET) for code in _TAGS}
