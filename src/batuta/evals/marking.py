"""How answers to one's own questions are graded: exact, integer or contains."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal

from batuta.baselines import final, normal
from batuta.core import Grade, Task

Marking = Callable[[Task, str], Awaitable[Grade]]
"""Judges an answer; never raises for a wrong or strange one."""

_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_INTEGER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)")


async def mark(task: Task, answer: str) -> Grade:
    """Whether `answer` is right, by the task's grader; 1 or 0."""
    extracted = final(answer)
    if extracted is None:
        return Grade(0.0, None, "no answer")
    right = MARKS[task.grader](answer, task.target)
    return Grade(float(right), extracted, "right" if right else f"expected {task.target}")


def _exact(answer: str, target: str) -> bool:
    return normal(final(answer) or "") == normal(target)


def _integer(answer: str, target: str) -> bool:
    found: list[str] = _NUMBER.findall(final(answer) or "")
    return bool(found) and _number(found[-1]) == _number(target)


def _contains(answer: str, target: str) -> bool:
    return normal(target) in normal(answer)


def is_integer(text: str) -> bool:
    """Whether the whole text is an integer."""
    return _INTEGER.fullmatch(text.strip()) is not None


def _number(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


MARKS: Mapping[str, Callable[[str, str], bool]] = {
    "exact": _exact,
    "integer": _integer,
    "contains": _contains,
}
"""By the grader's name: (answer, target) to right or wrong."""
