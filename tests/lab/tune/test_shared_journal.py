"""A tuning whose calls were all made before, by whomever: it asks nobody and finds the same."""

import json
import re

import anyio
import pytest

from fakes.openai import FakeOpenAI
from fakes.server import KEY

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
QUESTIONS = 40


def says(body):
    """One worker knows even numbers, the other odd ones."""
    number = int(re.findall(r"number (\d+)", json.dumps(body["messages"]))[-1])
    knows = number % 2 == (body["model"] == "model-b")
    return f"Answer: {number if knows else -1}"


async def tuned(command_line, folder, out, *more, is_paid=False):
    """What a tuning finds; `is_paid` if another one has paid for all of its calls."""
    env = {"BATUTA_HOME": str(folder / "home"), "HOME": str(folder), "TEST_KEY": KEY}
    args = ("tune", "--pool", "pool.toml", "--tasks", "own.jsonl", "--calls", "200", "--no-rewrite")
    done = await anyio.to_thread.run_sync(
        lambda: command_line.run(*args, "--out", out, *more, cwd=folder, env=env)
    )
    assert done.returncode == 0, done.stderr
    assert ("$0.0000 of that were paid for by this tuning" in done.stdout) == is_paid
    return (folder / out / "workflows.jsonl").read_bytes()


async def test_a_second_tuning_with_the_journal_of_the_first_asks_nobody(tmp_path, command_line):
    async with FakeOpenAI(says, strict_openai=False) as server:
        workers = (
            f'[[workers]]\nid = "{name}"\nmodel = "model-{name}"\nbase_url = "{server.url}"\n'
            f'key_env = "TEST_KEY"\nprice = {{ input = 1.0, output = 1.0 }}\n'
            for name in "ab"
        )
        (tmp_path / "pool.toml").write_text("\n".join(workers))
        asked = ({"question": f"What is number {n}?", "answer": n} for n in range(QUESTIONS))
        (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, asked)))
        first = await tuned(command_line, tmp_path, "one", "--journal", "calls.db")
        assert server.requests and not (tmp_path / "one" / "calls.db").exists()
        server.requests.clear()
        again = await tuned(command_line, tmp_path, "two", "--journal", "calls.db", is_paid=True)
        assert again == first and not server.requests
        other = await tuned(command_line, tmp_path, "three")
        assert server.requests and other == first and (tmp_path / "three" / "calls.db").exists()
