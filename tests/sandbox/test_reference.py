"""Reference programs of public benchmarks pass their own tests, through the grader of code.

The data are where `BATUTA_DATA` says. With `-s`, each set prints its figure, its seconds and what
failed of it, with the cause.
"""

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio
import pytest

from batuta.core import Task, TaskId
from batuta.lab.tasks.datasets.coding import convert_human_eval, convert_leet_code, convert_mbpp
from batuta.lab.tasks.datasets.dataset import as_json
from batuta.lab.tasks.datasets.rows import read_rows
from batuta.lab.tasks.graders import GraderRegistry
from batuta.sandbox import Sandbox
from data_folder import FOLDER, needs_data

SECONDS = 300
"""Wall time of a test: some are long, and what is tested is not how busy this machine is."""

pytestmark = [
    needs_data("bench"),
    pytest.mark.timeout(3600),
]


@dataclass
class Patient:
    """A sandbox that gives programs more time."""

    sandbox: Sandbox

    @asynccontextmanager
    async def load(self, program, limits):
        async with self.sandbox.load(program, replace(limits, seconds=SECONDS)) as ready:
            yield ready


def rows(name):
    path = FOLDER / "bench" / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return list(read_rows(path))


async def passed(name, pairs):
    """How many programs earn the grade 1, of how many."""
    failed, began = [], time.monotonic()
    async with Sandbox.open(slots=2) as sandbox, anyio.create_task_group() as group:
        graders = GraderRegistry(sandbox=Patient(sandbox))

        async def judge(task, program):
            grade = await graders.grader_for(task).grade(program, task.target)
            if grade.score != 1:
                failed.append(f"  {task.id}: {grade.reason}")

        for pair in pairs:
            group.start_soon(judge, *pair)
    figure = f"{name} {len(pairs) - len(failed)}/{len(pairs)}"
    seconds = time.monotonic() - began
    print("", f"{figure} in {seconds:.0f} s, {sandbox.backend}", *failed, sep="\n")  # noqa: T201
    return len(pairs) - len(failed), len(pairs)


def foretold(row):
    """A row of CRUXEval as a program and what it must return."""
    tests = f"assert f({row['input']}) == {row['output']}"
    return Task(
        id=TaskId(row["id"]),
        question="",
        target="",
        grader="code-assert",
        data=as_json({"tests": tests}),
    )


@pytest.mark.slow
async def test_humaneval():
    read = rows("humaneval/test.jsonl")
    pairs = [(convert_human_eval(row), row["prompt"] + row["canonical_solution"]) for row in read]
    assert await passed("HumanEval", pairs) == (164, 164)


@pytest.mark.long
async def test_mbpp():
    pairs = [(convert_mbpp(row), row["code"]) for row in rows("mbpp/all.jsonl")]
    assert await passed("MBPP", pairs) == (974, 974)


@pytest.mark.long
async def test_cruxeval():
    pairs = [(foretold(row), row["code"]) for row in rows("cruxeval/test.jsonl")]
    assert await passed("CRUXEval", pairs) == (800, 800)


@pytest.mark.long
async def test_leetcode():
    pairs = [(convert_leet_code(row), row["completion"]) for row in rows("leetcode/test.jsonl.gz")]
    right, of = await passed("LeetCode", pairs)
    assert of == 228
    assert right >= 226
