"""No answer ends an evaluation: whatever a grader raises becomes an ungraded answer."""

import asyncio
import importlib.util
import math
import time
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core import Grade, Task, TaskId
from batuta.errors import ConfigError, SandboxError
from batuta.lab.evals.grading import grade_by_task, open_answer_grader
from batuta.lab.tasks.graders import grade_answer

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[4]
TASK = Task(id=TaskId("t/1"), question="?", target="1", grader="exact")


def fuzzer():
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "bench" / "fuzz_graders.py")
    module = importlib.util.module_from_spec(spec)  # pyright: ignore[reportArgumentType]
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("answer", ["Answer: {{'a': 1}}", "{[1]: 2}", "{{1}}", "{**1}", "-" * 9999])
async def test_an_answer_that_no_literal_can_have_is_wrong(graders, answer):
    assert (await grade_by_task(TASK, answer)).score == 0
    assert (await graders.grader_for(TASK).grade(answer, "1")).score == 0


class Strange(Exception):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize(
    "error",
    [
        TypeError("no"), RecursionError("deep"), MemoryError(), TimeoutError(), Strange(),
        SystemExit(1), SandboxError("it is gone"), ExceptionGroup("two", [ValueError("one")]),
    ],
    ids=repr,
)  # fmt: skip
async def test_whatever_is_raised_leaves_the_answer_ungraded(error):
    async def fail(task, answer):
        raise error

    found = await grade_answer(fail, TASK, "1")
    assert found.score is None
    assert found.reason.startswith(f"not graded: {type(error).__name__}")


async def test_endless_recursion_in_a_grader_is_caught():
    async def dive(task, answer):
        def deeper():
            return deeper()

        return deeper()

    assert "RecursionError" in (await grade_answer(dive, TASK, "1")).reason


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 1.1])
async def test_a_score_that_is_none_is_not_taken(score):
    async def grade(task, answer):
        return Grade(score, "1")

    found = await grade_answer(grade, TASK, "1")
    assert (found.score, found.extracted) == (None, "1")


async def test_what_is_missing_and_cancellation_pass_through():
    async def lacking(task, answer):
        raise ConfigError("install it")

    async def waiting(task, answer):
        await anyio.sleep(60)

    with pytest.raises(ConfigError):
        await grade_answer(lacking, TASK, "1")
    with anyio.move_on_after(0.01) as scope:
        await grade_answer(waiting, TASK, "1")  # pyright: ignore[reportArgumentType]
    assert scope.cancelled_caught


async def test_evaluations_grade_behind_the_boundary():
    strange = Task(
        id=TaskId("t/2"),
        question="?",
        target="1",
        grader="json-schema",
        data='{"$ref": "#/nowhere"}',
    )
    async with open_answer_grader([TASK]) as grade:
        assert (await grade(TASK, "1")).score == 1
        found = await grade(strange, "1")
    assert found.score is None
    assert "the JSON schema cannot be used" in found.reason


@given(st.integers(0, 2**32))
@settings(max_examples=settings().max_examples * 15 // 100, deadline=None)
def test_strange_answers_raise_in_no_grader(seed):
    """A small part of `python bench/fuzz_graders.py`; each begins with a process for its algebra."""
    found = asyncio.run(fuzzer().fuzz(1000, seed, algebra_each=10**9))
    assert found["escaped"] == []
    assert found["caught"] == {}, found["first"]


@pytest.mark.parametrize(
    "answer", ["1e400nancm;", "1e400 km", "1e308 km", "<answer>" + "$" * 20_000]
)
async def test_sizes_that_no_float_holds_and_signs_by_the_thousand_are_graded(graders, answer):
    task = Task(id=TaskId("t/3"), question="?", target="3 mm", grader="freeform")
    started = time.process_time()
    found = await graders.grade(task, answer)
    assert found.score != 1
    assert time.process_time() - started < 2
