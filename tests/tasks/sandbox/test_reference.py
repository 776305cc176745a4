"""Reference programs of public benchmarks pass their own tests (data where `BATUTA_DATA` says)."""

import gzip
import json
import os
from pathlib import Path

import anyio
import pytest

from batuta.tasks.sandbox import Check, End, Limits, Program, Sandbox

LIMITS = Limits(seconds=120)
DATA = Path(os.environ.get("BATUTA_DATA", ""), "bench")

pytestmark = [
    pytest.mark.skipif(not os.environ.get("BATUTA_DATA"), reason="BATUTA_DATA is not set"),
    pytest.mark.timeout(3600),
]


def rows(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


async def passed(pairs):
    """How many programs reach the end of their check."""
    failed = []
    async with Sandbox.open() as sandbox, anyio.create_task_group() as group:

        async def judge(name, source, code):
            (outcome,) = await sandbox.run(Program(source), (Check(code),), LIMITS)
            if outcome.end is not End.RETURNED:
                failed.append((name, outcome.end, outcome.stderr[-300:]))

        for pair in pairs:
            group.start_soon(judge, *pair)
    print(*failed, sep="\n")  # noqa: T201 - shown when fewer pass
    return len(pairs) - len(failed)


async def test_humaneval():
    pairs = [
        (
            row["task_id"],
            row["prompt"] + row["canonical_solution"],
            f"{row['test']}\ncheck({row['entry_point']})",
        )
        for row in rows("humaneval/test.jsonl")
    ]
    assert (await passed(pairs), len(pairs)) == (164, 164)


@pytest.mark.long
async def test_mbpp():
    pairs = [
        (
            row["task_id"],
            row["code"],
            "\n".join([row["test_setup_code"], *row["test_list"], *row["challenge_test_list"]]),
        )
        for row in rows("mbpp/all.jsonl")
    ]
    assert (await passed(pairs), len(pairs)) == (974, 974)


@pytest.mark.long
async def test_cruxeval():
    pairs = [
        (row["id"], row["code"], f"assert f({row['input']}) == {row['output']}")
        for row in rows("cruxeval/test.jsonl")
    ]
    assert (await passed(pairs), len(pairs)) == (800, 800)


@pytest.mark.long
async def test_leetcode():
    pairs = [
        (
            row["task_id"],
            f"{row['prompt']}\n{row['completion']}",
            f"{row['test']}\ncheck({row['entry_point']})",
        )
        for row in rows("leetcode/test.jsonl.gz")
    ]
    assert len(pairs) == 228
    assert await passed(pairs) >= 226
