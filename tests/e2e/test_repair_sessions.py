"""The recipe of repaired programs runs from end to end, and goes on where it was cut off."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import anyio
import pytest

from fakes.openai import FakeOpenAI

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "repair-sessions"
SYSTEMS = "worker/qwen-1.5b,worker/qwen-0.5b,pattern/escalate,pattern/gate"

pytestmark = pytest.mark.anyio


@pytest.fixture
def programs(monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPE))
    programs = import_module("programs")

    yield programs
    del sys.modules["programs"]


class Models:
    """The larger model knows the line that is wrong; the smaller one writes a wrong program and tests it."""

    def __init__(self, made):
        self.made = made

    def reply(self, body):
        said = [message["content"] for message in body["messages"]]
        if "in one block" not in said[0]:
            return "REDO: run the tests." if said.count("Done.") < 2 else "ACCEPT"
        small = body["model"] == "qwen-0.5b"
        if "All tests passed." in said[-1] or (small and said.count(WRONG) > 1):
            return "Done."
        return WRONG if small else self.right(said)

    def right(self, said):
        """The program as it should be, of the one that was shown."""
        for one in self.made:
            if said[1].startswith(one.source):
                lines = one.source.splitlines()
                lines[one.line - 1] = one.right
                return f"I see it.\n```python\n{chr(10).join(lines)}\n```"
        raise AssertionError(said[1])


WRONG = "Here it is.\n```python\nnonsense\n```"


async def run_recipe(models, out, **environ):
    """What it prints."""
    options = {"MODELS": models, "OUT": str(out), "PYTHON": sys.executable, "SYSTEMS": SYSTEMS}
    done = await anyio.run_process(
        [str(RECIPE / "run.sh")],
        env={**os.environ, "PROGRAMS": "3", "NICE": "0", **options, **environ},
        check=False,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout.decode()


@pytest.mark.slow
async def test_each_system_repairs_as_its_models_can(tmp_path, programs):
    async with FakeOpenAI(Models(programs.make_programs()).reply, check=False) as models:
        status, said = await run_recipe(models.origin, tmp_path)
        assert status == 0, said
        journal = tmp_path / "sessions.jsonl"
        rows = [json.loads(line) for line in journal.read_text().splitlines() if line]
        assert len(rows) == 12
        resolved = {system: sum(row["resolved"] for row in rows if row["system"] == system) for system in SYSTEMS.split(",")}  # fmt: skip
        assert resolved == {"worker/qwen-1.5b": 3, "worker/qwen-0.5b": 0, "pattern/escalate": 3, "pattern/gate": 0}  # fmt: skip
        assert all(row["usd"] > 0 and row["tokens"] > 0 for row in rows)
        assert "| `worker/qwen-1.5b` | 3 | 3 (100 %) |" in said
        assert "+0 −3 of 3" in said

        asked = len(models.requests)
        cut = journal.read_bytes()[: -len(json.dumps(rows[-1])) // 2]
        journal.write_bytes(cut)
        status, said = await run_recipe(models.origin, tmp_path)
        assert status == 0, said
        again = [(row["system"], row["program"]) for line in journal.read_text().splitlines() if (row := whole(line))]  # fmt: skip
        assert sorted(again) == sorted({(row["system"], row["program"]) for row in rows})
        assert 0 < len(models.requests) - asked < asked / 4


def whole(line):
    """The row; None if it was cut off."""
    try:
        return json.loads(line)
    except ValueError:
        return None


@pytest.mark.slow
async def test_a_session_that_fails_is_not_counted(tmp_path):
    async with FakeOpenAI("no JSON", check=False) as models:
        models.faults = []
        origin = models.origin
    status, said = await run_recipe(origin, tmp_path, PROGRAMS="1", SYSTEMS="worker/qwen-1.5b")
    assert status == 1
    assert "1 sessions failed" in said
    assert "nothing has been measured yet" in said


def test_a_hundred_programs_of_which_one_line_was_changed(programs):
    made = [*programs.make_programs(), *programs.make_programs(seen=True)]
    assert len(made) == len({one.source for one in made}) == 100
    assert programs.make_programs(10) == made[:10]
    assert len(programs.make_programs()) == 78
    for one in made:
        lines = one.source.splitlines()
        right = "\n".join([*lines[: one.line - 1], one.right, *lines[one.line :]]) + "\n"
        assert programs.passes(right, one.tests)
        assert not programs.passes(one.source, one.tests)
