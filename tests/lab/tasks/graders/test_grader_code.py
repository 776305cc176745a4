"""Programs: what is extracted, what is compared, and when running stops."""

import json
import secrets
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from batuta.core import Task, TaskId
from batuta.errors import ConfigError, SandboxError, SourceError
from batuta.lab.tasks.graders import CodeGrader, GraderRegistry
from batuta.lab.tasks.graders.code import is_same_output
from batuta.lab.tasks.graders.code_extraction import extract_program
from batuta.sandbox import CallTest, EndReason, ProgramResult, Sandbox, ScriptTest

pytestmark = pytest.mark.anyio


class Subprocess:
    """Runs programs without any isolation: these tests wrote them."""

    def __init__(self):
        self.ran = []

    @asynccontextmanager
    async def load(self, program, limits):
        self.program, self.limits = program, limits
        yield self

    async def run(self, test):
        self.ran.append(test)
        token = secrets.token_hex(8)
        if isinstance(test, ScriptTest):
            source, stdin = self.program.source, test.stdin
        elif isinstance(test, CallTest):
            called = f"{test.entry}(*map(json.loads, {test.arguments!r}))"
            source, stdin = (
                f"{self.program.source}\nimport json\nprint({token!r} + json.dumps({called}))",
                "",
            )
        else:
            source, stdin = f"{self.program.source}\n{test.code}\nprint({token!r})", ""
        done = subprocess.run(
            [sys.executable, "-c", source],
            input=stdin,
            capture_output=True,
            check=False,
            text=True,
            timeout=30,
        )
        if done.returncode:
            return ProgramResult(
                end=EndReason.RAISED, stdout=done.stdout, stderr=done.stderr, status=done.returncode
            )
        if isinstance(test, ScriptTest):
            return ProgramResult(
                end=EndReason.RETURNED, stdout=done.stdout, stderr=done.stderr, status=0
            )
        before, found, value = done.stdout.rpartition(token)
        end = EndReason.RETURNED if found else EndReason.EXITED
        value = json.loads(value) if found and isinstance(test, CallTest) else None
        return ProgramResult(end=end, stdout=before, stderr=done.stderr, value=value, status=0)


class Gone:
    """A sandbox that goes away."""

    @asynccontextmanager
    async def load(self, program, limits):
        yield self

    async def run(self, test):
        return ProgramResult(end=EndReason.LOST)


def task(grader, **data):
    return Task(
        id=TaskId("t/1"), question="Write it.", target="", grader=grader, data=json.dumps(data)
    )


async def graded(grader, answer, runner=None, **data):
    with GraderRegistry(sandbox=runner or Subprocess()) as graders:
        return await graders.grader_for(task(grader, **data)).grade(answer, "")


ADD = "Read two numbers:\n```python\na, b = map(int, input().split())\nprint(a + b)\n```\nDone."
SUMS = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 -5\n", "output": "0"}]


async def test_scripts():
    grade = await graded("code-stdin", ADD, tests=SUMS)
    assert (grade.score, grade.reason) == (1, "passes all 2 tests")
    grade = await graded("code-stdin", ADD.replace("+", "*"), tests=SUMS)
    assert (grade.score, grade.reason) == (0, "test 1 of 2: wrong output")


async def test_running_stops_at_the_first_failure():
    runner = Subprocess()
    grade = await graded("code-stdin", "```python\nraise ValueError('no')\n```", runner, tests=SUMS)
    assert grade.score == 0
    assert "ValueError: no" in grade.reason
    assert len(runner.ran) == 1


CLASS = "```python\nclass Solution:\n    def pick(self, items, n):\n        return items[:n]\n```"
PICKS = [{"input": "[1, 2, 3]\n2", "output": "[1, 2]"}, {"input": '["a"]\n0', "output": "[]"}]


async def test_functions():
    grade = await graded("code-functional", CLASS, entry="Solution().pick", tests=PICKS)
    assert grade.score == 1
    wrong = CLASS.replace("[:n]", "[n:]")
    grade = await graded("code-functional", wrong, entry="Solution().pick", tests=PICKS)
    assert (grade.score, grade.reason) == (0, "test 1 of 2: wrong value")


@pytest.mark.parametrize(
    ("body", "score"),
    [
        ("return n * 2", 1),
        ("return n * 3", 0),
        ("import sys; sys.exit(0)", 0),
        ("import os; os._exit(0)", 0),
        ("print('passed'); raise SystemExit", 0),
    ],
)
async def test_checks(body, score):
    answer = f"```python\ndef double(n):\n    {body}\n```"
    data = {"preamble": "import math", "tests": "assert double(4) == 8\n"}
    assert (await graded("code-assert", answer, **data)).score == score


async def test_what_the_sandbox_lost_is_undecided():
    grade = await graded("code-stdin", ADD, Gone(), tests=SUMS)
    assert (grade.score, grade.reason) == (None, "the sandbox was lost")


async def test_the_real_sandbox_runs_all_three_kinds():
    try:
        async with Sandbox.open() as sandbox:
            assert (await graded("code-stdin", ADD, sandbox, tests=SUMS)).score == 1
            functional = {"entry": "Solution().pick", "tests": PICKS}
            assert (await graded("code-functional", CLASS, sandbox, **functional)).score == 1
            leaving = "```python\ndef double(n):\n    import sys; sys.exit(0)\n```"
            check = "assert double(4) == 8\n"
            assert (await graded("code-assert", leaving, sandbox, tests=check)).score == 0
    except SandboxError as error:
        pytest.skip(str(error))


async def test_expected_outputs_stay_here():
    runner = Subprocess()
    tests = [{"input": "1 2", "output": "424242"}]
    await graded("code-stdin", ADD, runner, tests=tests)
    assert runner.ran == [ScriptTest("1 2")]
    assert "424242" not in runner.program.source


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("First\n```python\nx = 1\n```\nbetter\n```py\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\nOutput:\n```text\n1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("x = 1", "x = 1"),
        ("```python\nx = 1", None),
        ("```python\nx = 1\n```\nand\n```python\nx =", None),
        ("```bash\nls\n```", None),
        ("<think>```python\nx = 1\n```</think>", None),
        ("", None),
    ],
)
def test_the_last_whole_block_is_the_program(answer, program):
    assert extract_program(answer) == program


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("3\n", "3", True),
        ("1 2 3\n", " 1 2  3 ", True),
        ("1.0", "1", True),
        ("0.5 1e3", ".50 1000.0", True),
        ("a\nb", "a\nb\n\n", True),
        ("a\nb", "a", False),
        ("a b", "a  b", False),
        ("yes", "Yes", False),
        ("0.1", "0.10000001", False),
        ("nan", "nan", True),
        ("1", "nan", False),
        ("12", "1 2", False),
        ("", "", True),
        ("", "0", False),
    ],
)
def test_outputs(expected, printed, same):
    assert is_same_output(expected, printed) is same


def test_what_is_missing_is_said():
    with pytest.raises(ConfigError, match="open a sandbox"):
        GraderRegistry().grader_for(task("code-stdin", tests=SUMS))
    graders = GraderRegistry(sandbox=Subprocess())
    for data in ({}, {"tests": []}, {"tests": [{"input": "1"}]}, {"tests": 5}):
        with pytest.raises(SourceError, match=r"t/1 .* code-stdin"):
            graders.grader_for(task("code-stdin", **data))
    with pytest.raises(SourceError, match="entry"):
        graders.grader_for(task("code-functional", tests=PICKS))
    deep = [{"input": "1", "output": "[" * 5000 + "]" * 5000}]
    with pytest.raises(SourceError, match="do not fit its grader"):
        graders.grader_for(task("code-functional", entry="f", tests=deep))


def test_a_program_without_tests_is_not_right():
    with pytest.raises(ValueError, match="without tests"):
        CodeGrader(Subprocess(), [])
