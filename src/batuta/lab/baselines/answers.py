"""Finds the final answer in a reply, and the answer that most replies give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from batuta.core import Question, Reply
from batuta.lab.tasks.graders.answer_form import canonical_answer, strip_edges
from batuta.language import answer_extraction

AnswerExtractor = Callable[[Question, Reply], str | None]
"""Extracts the answer of a reply to a question; None if there is none."""
_MARKS_AROUND = " \t*_`\"'$"


def find_stated_answer(text: str) -> str | None:
    """Return the answer that the reply marks, without surrounding markup; None if it marks none."""
    return strip_edges(answer_extraction.stated_answer(text) or "", _MARKS_AROUND) or None


def find_final_answer(text: str) -> str | None:
    """Return the answer that the reply marks, else its last line; None if there is none."""
    return strip_edges(answer_extraction.final_answer(text) or "", _MARKS_AROUND) or None


def normalize_answer(answer: str) -> str:
    """Return the answer in a canonical form, equal for most equivalent answers."""
    return canonical_answer(answer)


def majority_reply(replies: Iterable[Reply]) -> Reply | None:
    """Return the first of the replies with the most frequent answer; None if there are no replies.

    Only marked answers are counted; if no reply marks an answer, the replies' last lines are. Among
    equally frequent answers the first wins.
    """
    answers = [(find_stated_answer(reply.text), reply) for reply in replies]
    stated = [(normalize_answer(answer), reply) for answer, reply in answers if answer is not None]
    votes = [(answer, reply) for answer, reply in stated if answer] or [
        (normalize_answer(find_final_answer(reply.text) or ""), reply) for _, reply in answers
    ]
    if not votes:
        return None
    winner, _ = Counter(answer for answer, _ in votes).most_common(1)[0]
    return next(reply for answer, reply in votes if answer == winner)
