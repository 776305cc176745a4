"""The words in which two texts differ; of long ones, in a process that is killed in time."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Literal

from batuta.offload import NotStarted, ProcessDied, TookTooLong, call_in_process

LONGEST = 20_000
"""Characters of an answer that are compared word by word."""
SHORT = 400
"""Characters of both texts that are compared in this process."""
CPU_SECONDS = 1.0
_WORDS = re.compile(r"\s+|[^\s\w]|\w+")
_MOST_WORDS = 4000

Piece = tuple[Literal["same", "gone", "new"], str]


async def compare_texts(one: str, other: str) -> list[Piece]:
    """`difference`; where it takes too long, the one text as gone and the other as new."""
    if len(one) + len(other) <= SHORT:
        return difference(one, other)
    try:
        return await call_in_process(difference, one, other, cpu_seconds=CPU_SECONDS)
    except (TookTooLong, ProcessDied, NotStarted):
        return [("gone", one), ("new", other)]


def difference(one: str, other: str) -> list[Piece]:
    """The words of two texts: what both have, what only the first has, what only the second."""
    before, after = _WORDS.findall(one[:LONGEST]), _WORDS.findall(other[:LONGEST])
    if max(len(before), len(after)) > _MOST_WORDS:
        return [("gone", one), ("new", other)]
    pieces: list[Piece] = []
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
    return pieces
