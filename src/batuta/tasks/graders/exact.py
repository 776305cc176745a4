"""Answers that are right in one wording only, or as one literal of Python."""

from __future__ import annotations

import ast
import warnings
from typing import Any, final

from batuta.core import Grade
from batuta.tasks.graders import answer_extraction

_LONGEST = 4096
_EDGES = " \t\n*_`$."
_UNREADABLE = object()


@final
class ExactGrader:
    """Judges the marked answer or the last line; white space and capitals do not count.

    Where the target is a Python literal, the answer must have its value: `[1,2]` for `[1, 2]`,
    but not `'A'` for `'a'`. 1 or 0.
    """

    async def grade(self, answer: str, target: str) -> Grade:
        """The grade of `answer`."""
        found = answer_extraction.final_answer(answer)
        if found is None:
            return Grade(0.0, None, "no answer")
        right = _is_same_answer(found[:_LONGEST], target)
        return Grade(float(right), found[:_LONGEST], "right" if right else f"expected {target}")


def _is_same_answer(found: str, target: str) -> bool:
    wanted = _parse_literal(target)
    if wanted is not _UNREADABLE:
        given = _parse_literal(found.strip(_EDGES))
        return type(given) is type(wanted) and given == wanted
    return _normalize_text(found) == _normalize_text(target)


def _parse_literal(text: str) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return _UNREADABLE


def _normalize_text(text: str) -> str:
    return " ".join(text.split()).strip(_EDGES).casefold()
