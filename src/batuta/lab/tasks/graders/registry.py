"""Maps the name of a task's grader to the grader.

To add a grader, write a module beside this one and add its name to `GraderRegistry`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, final

from batuta.core import Client, Grade, Grader, Task
from batuta.errors import ConfigError, SourceError
from batuta.lab.tasks.graders.choice import ChoiceGrader
from batuta.lab.tasks.graders.code import (
    CodeCase,
    CodeGrader,
    CodeRunner,
    call_cases,
    check_cases,
    script_cases,
)
from batuta.lab.tasks.graders.comparison_pool import MathsPool
from batuta.lab.tasks.graders.exact import ExactGrader, ReasoningGymGrader
from batuta.lab.tasks.graders.freeform import FreeFormGrader
from batuta.lab.tasks.graders.instructions import InstructionsGrader
from batuta.lab.tasks.graders.integer import IntegerGrader, parse_integer
from batuta.lab.tasks.graders.judge import RUBRIC, JudgeFallbackGrader, JudgeGrader
from batuta.lab.tasks.graders.limits import MAX_SHOWN
from batuta.lab.tasks.graders.maths import MathsGrader
from batuta.lab.tasks.graders.schema import JsonSchemaGrader


async def grade_answer(
    grade: Callable[[Task, str], Awaitable[Grade]], task: Task, answer: str
) -> Grade:
    """Return the grade by `grade`; undecided, with the reason, if it fails or is not in [0, 1].

    Cancellation and `KeyboardInterrupt` pass through; a `SystemExit`, which a library may raise,
    does not.

    Raises:
        ConfigError: the grader is unknown, or needs an extra, a sandbox or a judge that is missing,
            so every answer would fail.
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
    """Return an exception as text, even if its `__str__` raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its own __str__ raises
        return type(error).__name__


@final
class GraderRegistry:
    """Graders by name, and the resources they share: a comparison process, a sandbox, a judge.

    As a context manager it ends the comparison process on exit; sandbox and judge are the caller's.
    """

    def __init__(self, *, sandbox: CodeRunner | None = None, judge: Client | None = None) -> None:
        """Take the shared resources; nothing is started yet.

        Without a sandbox, code cannot be graded. Without a judge, tasks with the grader `judge`
        cannot be graded, and free-form answers that no rule decides stay undecided.
        """
        self._sandbox = sandbox
        self._judge = judge
        self._pool: MathsPool | None = None
        self._makers: Mapping[str, Callable[[Task], Grader]] = {
            "choice": _choice_grader,
            "code-assert": lambda task: self._code_grader(task, check_cases),
            "code-functional": lambda task: self._code_grader(task, call_cases),
            "code-stdin": lambda task: self._code_grader(task, script_cases),
            "exact": lambda _: ExactGrader(),
            "freeform": self._free_form_grader,
            "instructions": _instructions_grader,
            "integer": _integer_grader,
            "json-schema": lambda task: JsonSchemaGrader(_task_data(task)),
            "judge": self._judge_for,
            "math": lambda task: MathsGrader(self._shared_pool(), task.question),
            "reasoning-gym": ReasoningGymGrader,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()

    @property
    def names(self) -> tuple[str, ...]:
        """The names that a task's `grader` may have."""
        return tuple(self._makers)

    def grader_for(self, task: Task) -> Grader:
        """Return the grader that the task names, with the task's data.

        Raises:
            ConfigError: the grader is unknown, or needs an extra, a sandbox or a judge that is
                missing.
            SourceError: the task's data or its answer do not fit the grader.
        """
        make = self._makers.get(task.grader)
        if make is None:
            known = ", ".join(self.names)
            raise ConfigError(
                f"{task.id} names the unknown grader {task.grader!r}; choose among: {known}"
            )
        try:
            return make(task)
        except SourceError as error:
            raise SourceError(f"{task.id} cannot be graded: {error}") from None
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise SourceError(
                f"the data of {task.id} do not fit its grader {task.grader}: {error!r}"
            ) from None

    async def grade(self, task: Task, answer: str) -> Grade:
        """Return the grade of an answer by the task's grader; call it through `grade_answer`."""
        return await self.grader_for(task).grade(answer, task.target)

    def _free_form_grader(self, task: Task) -> Grader:
        grader = FreeFormGrader(self._shared_pool())
        return grader if self._judge is None else JudgeFallbackGrader(grader, self._judge_for(task))

    def _judge_for(self, task: Task) -> JudgeGrader:
        if self._judge is None:
            raise ConfigError(f"{task.id} is graded by a model: name a worker as the judge")
        return JudgeGrader(self._judge, task.question, _task_data(task).get("rubric", RUBRIC))

    def _code_grader(self, task: Task, cases: Callable[[Any], tuple[CodeCase, ...]]) -> CodeGrader:
        if self._sandbox is None:
            raise ConfigError(
                f"{task.id} is graded by running a program: open a sandbox, as "
                "open_answer_grader does"
            )
        data = _task_data(task)
        # an assertion test has its own preamble
        preamble = "" if cases is check_cases else data.get("preamble", "")
        return CodeGrader(self._sandbox, cases(data), preamble)

    def _shared_pool(self) -> MathsPool:
        if self._pool is None:
            self._pool = MathsPool()
        return self._pool


def _choice_grader(task: Task) -> ChoiceGrader:
    grader = ChoiceGrader(_task_data(task).get("options", ()))
    if not grader.is_letter(task.target):
        raise SourceError("its answer is not the letter of an option")
    return grader


def _integer_grader(task: Task) -> IntegerGrader:
    if len(task.target) <= MAX_SHOWN and parse_integer(task.target) is None:
        raise SourceError("its answer is not an integer: write one, or name another grader")
    return IntegerGrader()


def _instructions_grader(task: Task) -> InstructionsGrader:
    instructions = _task_data(task)["instructions"]
    return InstructionsGrader([(one["id"], one["arguments"]) for one in instructions])


def _task_data(task: Task) -> dict[str, Any]:
    return json.loads(task.data) if task.data else {}
