"""The final answer in a reply, and the answer that most replies give."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from batuta.core import Reply

_STATED = re.compile(r"\banswer\b[*_\s]*(?:is\b|:|=)[*_\s:]*(.+)", re.IGNORECASE)
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_EDGES = " \t*_`\"'$."


def stated(text: str) -> str | None:
    """What the reply calls its answer: behind the last "Answer:" or "answer is", or boxed."""
    for line in reversed(text.splitlines()):
        found = _BOXED.findall(line) or _STATED.findall(line)
        if found and (answer := found[-1].strip(_EDGES)):
            return answer
    return None


def final(text: str) -> str | None:
    """The stated answer, else the last line; None if the text is empty."""
    lines = [line.strip(_EDGES) for line in text.splitlines() if line.strip(_EDGES)]
    return stated(text) or (lines[-1] if lines else None)


def normal(answer: str) -> str:
    """The answer in the form in which two that mean the same are mostly equal."""
    return " ".join(answer.split()).strip(_EDGES).casefold()


def majority(replies: Iterable[Reply]) -> Reply | None:
    """The first of the replies that give the most frequent answer; None if there are none.

    Replies that state no answer vote only where none does. Of answers equally frequent, the
    one that was given first wins.
    """
    said = [(stated(reply.text), reply) for reply in replies]
    votes = [(normal(answer), reply) for answer, reply in said if answer is not None]
    votes = votes or [(normal(final(reply.text) or ""), reply) for _, reply in said]
    if not votes:
        return None
    winner, _ = Counter(answer for answer, _ in votes).most_common(1)[0]
    return next(reply for answer, reply in votes if answer == winner)
