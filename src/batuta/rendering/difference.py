"""Compares two texts word by word; long texts in a process with a time limit."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Literal

from batuta.offload import (
    SHARED_PROCESSES,
    ProcessDiedError,
    ProcessStartError,
    ProcessTimeoutError,
)

MAX_CHARACTERS = 20_000
"""Maximum number of characters of a text that are compared word by word."""
MAX_INLINE_CHARACTERS = 400
"""Maximum number of characters of both texts together that are compared in this process."""
CPU_SECONDS = 1.0
_WORDS = re.compile(r"\s+|[^\s\w]|\w+")
_MAX_WORDS = 4000

DiffPiece = tuple[Literal["same", "gone", "new"], str]


async def compare_texts(one: str, other: str) -> list[DiffPiece]:
    """Return `diff_words`; if it fails or is too slow, the first text as gone, the other as new."""
    if len(one) + len(other) <= MAX_INLINE_CHARACTERS:
        return diff_words(one, other)
    try:
        return await SHARED_PROCESSES.call(diff_words, one, other, cpu_seconds=CPU_SECONDS)
    except (ProcessTimeoutError, ProcessDiedError, ProcessStartError):
        return [("gone", one), ("new", other)]


def diff_words(one: str, other: str) -> list[DiffPiece]:
    """Return the difference in pieces: same (in both), gone (first only) or new (second only).

    Texts with very many words, and what follows the first `MAX_CHARACTERS` characters, are compared
    as a whole.
    """
    before, after = _WORDS.findall(one[:MAX_CHARACTERS]), _WORDS.findall(other[:MAX_CHARACTERS])
    if max(len(before), len(after)) > _MAX_WORDS:
        return _compare_wholes(one, other)
    pieces: list[DiffPiece] = []
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for kind, start, end, first, last in matcher.get_opcodes():
        if kind == "equal":
            pieces.append(("same", "".join(before[start:end])))
            continue
        gone, new = "".join(before[start:end]), "".join(after[first:last])
        if gone:
            pieces.append(("gone", gone))
        if new:
            pieces.append(("new", new))
    return pieces + _compare_wholes(one[MAX_CHARACTERS:], other[MAX_CHARACTERS:])


def _compare_wholes(one: str, other: str) -> list[DiffPiece]:
    pieces: list[DiffPiece] = [("same", one)] if one == other else [("gone", one), ("new", other)]
    return [piece for piece in pieces if piece[1]]
