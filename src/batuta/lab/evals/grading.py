"""Grades answers with the grader that each task names."""

from __future__ import annotations

import atexit
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache

from batuta.core import Client, Grade, Task
from batuta.lab.tasks.graders import GraderRegistry, grade_answer
from batuta.sandbox import Sandbox, SandboxBackend

AnswerGrader = Callable[[Task, str], Awaitable[Grade]]
"""Returns the grade of an answer to a task; it is undecided if grading fails."""

PROGRAM_PREFIX = "code-"
"""The prefix of the names of graders that run programs."""
_INTEGER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)")


async def grade_by_task(task: Task, answer: str) -> Grade:
    """Grade by the task's own grader, without a sandbox and without a judge.

    Raises:
        ConfigError: there is no such grader, or it needs an extra, a sandbox or a judge.
    """
    return await grade_answer(_shared_graders().grade, task, answer)


@cache
def _shared_graders() -> GraderRegistry:
    graders = GraderRegistry()
    atexit.register(graders.__exit__, None, None, None)
    return graders


@asynccontextmanager
async def open_answer_grader(
    tasks: Iterable[Task],
    judge: Client | None = None,
    backend: SandboxBackend | str = SandboxBackend.AUTO,
) -> AsyncGenerator[AnswerGrader]:
    """Open the graders of those tasks, with a sandbox if one of them runs programs.

    The grader of every task is made now, before anything is paid for. Without a judge, free-form
    answers that no rule decides stay undecided. The `backend` of the sandbox may be `none`, which
    runs programs without isolation.

    Raises:
        ConfigError: there is no such grader, or it needs an extra or a judge that is missing.
        SandboxError: programs cannot be isolated here.
        SourceError: a task's data or answer do not fit its grader.
    """
    asked = tuple(tasks)
    async with AsyncExitStack() as stack:
        sandbox = None
        if any(task.grader.startswith(PROGRAM_PREFIX) for task in asked):
            sandbox = await stack.enter_async_context(Sandbox.open(backend))
        graders = stack.enter_context(GraderRegistry(sandbox=sandbox, judge=judge))
        for task in asked:
            graders.grader_for(task)

        async def grade(task: Task, answer: str) -> Grade:
            return await grade_answer(graders.grade, task, answer)

        yield grade


def is_integer(text: str) -> bool:
    """Return whether the text is an integer, perhaps with a sign and commas between thousands."""
    return _INTEGER.fullmatch(text.strip()) is not None
