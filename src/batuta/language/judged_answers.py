"""The correct answer of a run with feedback: from the comment, or the run's own answer."""

from __future__ import annotations

import re
from dataclasses import replace

from batuta.core import Question, Sampling
from batuta.language.answer_extraction import final_answer

RIGHT_SCORE = 0.99
"""Minimum score with which an answer counts as correct."""
MAX_ANSWER_CHARACTERS = 64
"""Maximum number of characters of an answer that can be compared with another."""
_EXPECTED = re.compile(r"^[^\S\n]*+expected\s*+[:=]\s*+(\S[^\n]*)", re.IGNORECASE | re.MULTILINE)
_MARKS_AROUND = " \t*_`\"'$"


def is_plain_text(question: Question) -> bool:
    """Return True if the question is one user message of text, apart from sampling settings.

    Such a question can be asked again from its text.
    """
    return replace(question, sampling=Sampling()) == Question.of(question.text)


def find_expected_answer(comment: str | None) -> str | None:
    """Return the answer of a comment's first line `Expected: ANSWER`.

    Return None if there is no such line, or if its answer is too long to be compared.
    """
    match = _EXPECTED.search(comment or "")
    return _short_answer(match[1].rstrip() if match else "")


def find_confirmed_answer(answer: str | None, score: float | None) -> str | None:
    """Return a run's final answer if it was judged correct and can be compared; else None."""
    if (score or 0.0) < RIGHT_SCORE:
        return None
    return _short_answer(
        (final_answer(answer or "") or "").strip(_MARKS_AROUND).rstrip(f".{_MARKS_AROUND}")
    )


def _short_answer(answer: str) -> str | None:
    return answer if 0 < len(answer) <= MAX_ANSWER_CHARACTERS else None
