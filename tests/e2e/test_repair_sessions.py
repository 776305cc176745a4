"""The recipe of repaired programs runs from end to end, and goes on where it was cut off."""

import json
import os
import re
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
    """The larger model knows the line that is wrong; the smaller one writes a wrong line and runs the tests."""

    def __init__(self, made):
        self.made = made

    def reply(self, body):
        said = [message["content"] for message in body["messages"]]
        form = body.get("response_format", {}).get("json_schema", {}).get("schema", {}).get("anyOf")
        if form is None:
            return "REDO: run the tests." if said.count("Done.") < 2 else "ACCEPT"
        mine = [json.loads(text) for text in said if text.startswith('{"tool"')]
        small = body["model"] == "qwen-0.5b"
        if "All tests passed." in said[-1] or (small and len(mine) > 5):
            assert {"const": "done"} in [one["properties"]["tool"] for one in form]
            return json.dumps({"tool": "done", "words": "Done."})
        if not mine:
            return json.dumps({"tool": "read_program"})
        if mine[-1]["tool"] != "write_line":
            right = {"line": 2, "text": "    nonsense"} if small else self.right(said)
            return json.dumps({"tool": "write_line", **right})
        return json.dumps({"tool": "run_tests"})

    def right(self, said):
        """The line as it should be, of the program whose name stands in what was read."""
        read = next(text for text in said if text.startswith("1: def "))
        numbered = dict(re.findall(r"^(\d+): (.*)$", read, re.MULTILINE))
        for one in self.made:
            lines = one.source.splitlines()
            if [numbered.get(str(n)) for n in range(1, len(lines) + 1)] == lines:
                text = lines[1] if self.undoes(said) else one.right
                return {"line": 2 if self.undoes(said) else one.line, "text": text}
        raise AssertionError(read)

    def undoes(self, said):
        """Whether the smaller one's line still stands in the program."""
        at = [text for text in said if text.startswith('{"tool": "write_line"')]
        return bool(at) and "nonsense" in at[-1]


async def run_recipe(models, out, **environ):
    """What it prints."""
    options = {"MODELS": models, "OUT": str(out), "PYTHON": sys.executable, "SYSTEMS": SYSTEMS}
    done = await anyio.run_process(
        [str(RECIPE / "run.sh")],
        env={**os.environ, "PROGRAMS": "3", **options, **environ},
        check=False,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout.decode()


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


async def test_a_session_that_fails_is_not_counted(tmp_path):
    async with FakeOpenAI("no JSON", check=False) as models:
        models.faults = []
        origin = models.origin
    status, said = await run_recipe(origin, tmp_path, PROGRAMS="1", SYSTEMS="worker/qwen-1.5b")
    assert status == 1
    assert "1 sessions failed" in said
    assert "nothing has been measured yet" in said


def test_a_hundred_programs_of_which_one_line_was_changed(programs):
    made = programs.make_programs()
    assert len(made) == len({one.source for one in made}) == 100
    assert programs.make_programs(10) == made[:10]
    for one in made:
        lines = one.source.splitlines()
        right = "\n".join([*lines[: one.line - 1], one.right, *lines[one.line :]]) + "\n"
        assert programs.passes(right, one.tests)
        assert not programs.passes(one.source, one.tests)
