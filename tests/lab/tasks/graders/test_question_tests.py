"""Tests that questions show: found, run on answers, and passed over where there are none."""

import json
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from batuta.core import Pool, Task, TaskId, Worker, WorkerId
from batuta.errors import SandboxError
from batuta.lab.evals.setup import SubjectSetup
from batuta.lab.evals.subject import Subject
from batuta.lab.tasks.graders.question_tests import QuestionTestRunner, find_question_tests
from batuta.sandbox import Sandbox
from data_folder import FOLDER, needs_data

pytestmark = pytest.mark.anyio
MBPP = "Write a function to double.\nIt must pass these tests:\n\nassert double(2) == 4\nassert double(0) == 0"  # fmt: skip
HUMAN_EVAL = '''Complete this function.

```python
import math

def double(x):
    """Twice x.
    >>> double(2)
    4
    >>> print(double(3))
    6
    >>> double(1.5)
    3.0
    """
```'''
RIGHT = "```python\ndef double(x):\n    return 2 * x\n```"
WRONG = "```python\ndef double(x):\n    return x + 1\n```"


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def run_tests(anyio_backend):
    try:
        opening = Sandbox.open()
        sandbox = await opening.__aenter__()
    except SandboxError as error:
        pytest.skip(str(error))
    yield QuestionTestRunner(sandbox)
    await opening.__aexit__(None, None, None)


@pytest.mark.parametrize(
    "question",
    [
        ">>> f(1)\n{[1]: 2}\n",
        f">>> f({'-' * 900}1)\n2\n",
        f">>> f({'-' * 100_000}1)\n2\n",
        f"assert f(1) == {'-' * 100_000}1",
    ],
)
def test_what_python_cannot_read_is_no_test(question):
    assert find_question_tests(question) is None


def test_assertions_and_examples_are_found():
    asserted, examples = find_question_tests(MBPP), find_question_tests(HUMAN_EVAL)
    assert asserted is not None
    assert asserted.code == "assert double(2) == 4\nassert double(0) == 0\n"
    assert examples is not None
    assert examples.code == "assert (double(2)) == (4)\nassert (double(1.5)) == (3.0)\n"
    assert examples.imports == "import math\n"


@pytest.mark.parametrize(
    "question",
    ["What is 2+2?", "We assert that x is 1.", "assert True", "assert f(", ">>> f(\n3", ">>> f(1)\nError: x"],
)  # fmt: skip
def test_what_cannot_be_run_is_no_test(question):
    assert find_question_tests(question) is None


@pytest.mark.parametrize("question", [MBPP, HUMAN_EVAL])
async def test_answers_are_tried(run_tests, question):
    assert await run_tests(question, RIGHT) is True
    assert await run_tests(question, WRONG) is False
    assert await run_tests(question, "no program") is False
    assert await run_tests("What is 2+2?", RIGHT) is None


async def test_a_program_that_ends_early_does_not_pass(run_tests):
    assert await run_tests(MBPP, "```python\nimport os\nos._exit(0)\n```") is False


@pytest.mark.slow
@needs_data("bench/humaneval")
async def test_published_solutions_pass_what_their_questions_show(run_tests):
    lines = (FOLDER / "bench/humaneval/test.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[:40]]
    shown = [row for row in rows if find_question_tests(row["prompt"])]
    assert len(shown) >= 25
    for row in shown:
        answer = f"```python\n{row['prompt']}{row['canonical_solution']}\n```"
        assert await run_tests(row["prompt"], answer), row["task_id"]


async def test_an_evaluation_executes_only_where_questions_show_tests(anyio_backend):
    quiet = Task(id=TaskId("a"), question="Double it.", target="", grader="code-assert")
    shown = replace(quiet, question=MBPP)
    words = replace(shown, grader="exact")
    worker = Worker(id=WorkerId("ann"), model="ann")
    nobody = Subject(pool=Pool((worker,)), clients={}, conductor=None)
    async with AsyncExitStack() as stack:
        for tasks in ([quiet], [words]):
            assert (await SubjectSetup().open_tests(tasks, nobody, stack)).run_tests is None
        try:
            found = await SubjectSetup().open_tests([quiet, shown], nobody, stack)
        except SandboxError as error:
            pytest.skip(str(error))
        assert found.run_tests is not None
        assert await found.run_tests(MBPP, RIGHT) is True
        assert found.key_text != nobody.key_text
