"""The final answer in a reply, and the answer that most replies give."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from batuta.core import Reply
from batuta.tasks.graders.answer_form import canonical_answer

_STATED_ANSWER = re.compile(r"\banswer\b[*_\s]*(?:is\b|:|=)[*_\s:]*(.+)", re.IGNORECASE)
_BOXED_ANSWER = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_STRIPPED_CHARACTERS = " \t*_`\"'$."


def find_stated_answer(text: str) -> str | None:
    """What the reply calls its answer: behind the last "Answer:" or "answer is", or boxed."""
    for line in reversed(text.splitlines()):
        found = _BOXED_ANSWER.findall(line) or _STATED_ANSWER.findall(line)
        if found and (answer := found[-1].strip(_STRIPPED_CHARACTERS)):
            return answer
    return None


def find_final_answer(text: str) -> str | None:
    """The stated answer, else the last line; None if the text is empty."""
    lines = [
        line.strip(_STRIPPED_CHARACTERS)
        for line in text.splitlines()
        if line.strip(_STRIPPED_CHARACTERS)
    ]
    return find_stated_answer(text) or (lines[-1] if lines else None)


def normalize_answer(answer: str) -> str:
    """The answer in the form in which two that mean the same are mostly equal."""
    return canonical_answer(answer)


def majority_reply(replies: Iterable[Reply]) -> Reply | None:
    """The first of the replies that give the most frequent answer; None if there are none.

    Replies that state no answer vote only where none does. Of answers equally frequent, the
    one that was given first wins.
    """
    said = [(find_stated_answer(reply.text), reply) for reply in replies]
    stated = [(normalize_answer(answer), reply) for answer, reply in said if answer is not None]
    votes = [(answer, reply) for answer, reply in stated if answer] or [
        (normalize_answer(find_final_answer(reply.text) or ""), reply) for _, reply in said
    ]
    if not votes:
        return None
    winner, _ = Counter(answer for answer, _ in votes).most_common(1)[0]
    return next(reply for answer, reply in votes if answer == winner)
