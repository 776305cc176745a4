"""Calls a grader safely: its errors become undecided grades."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from batuta.core import Grade, Task
from batuta.errors import ConfigError
from batuta.lab.tasks.graders.limits import MAX_SHOWN


async def grade_answer(
    grade: Callable[[Task, str], Awaitable[Grade]], task: Task, answer: str
) -> Grade:
    """Return the grade; an undecided one with the reason if the grader fails or returns no grade.

    Cancellation passes through, and so does an exit that a signal requested; an exit that a library
    requests does not.

    Raises:
        ConfigError: the grader needs an extra, a sandbox or a judge that is missing; that is not
            the answer's fault, and the next answer would fail as well.
    """
    try:
        found = await grade(task, answer)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - this is what the boundary is for
        return Grade(None, None, f"not graded: {describe_error(error)}"[:MAX_SHOWN])
    if found.score is None or (math.isfinite(found.score) and 0 <= found.score <= 1):
        return found
    return Grade(None, found.extracted, f"not graded: the score {found.score} is not in [0, 1]")


def describe_error(error: BaseException) -> str:
    """Return an exception as text, even if its own conversion to text fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its own __str__ raises
        return type(error).__name__
