"""A pool that is paid for: killed and gone on with, nothing is paid twice; what is private stays so."""

import csv
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from functools import partial

import anyio
import pytest

from fakes.environ import clean_environ
from fakes.openai import FakeOpenAI
from fakes.server import KEY

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
QUESTIONS = 12
SYSTEMS = "a,self-consistency@3,ultra"
SECRET = "zyzzyva"
"""A word of a private question."""


def said_by(body):
    """`a` is right on even questions, `b` always; the conductor writes a workflow."""
    text = body["messages"][-1]["content"]
    if body["model"] == "model-boss":
        return 'model_id = [1]\nsubtasks = ["Solve it."]\naccess_list = [[]]'
    number = int(re.search(r"number (\d+)", text)[1])
    return f"It is {SECRET}.\nAnswer: {number if body['model'] == 'model-b' or number % 2 == 0 else -1}"


def written(folder, url):
    (folder / "batuta.toml").write_text(
        "".join(
            f'[[workers]]\nid = "{name}"\nmodel = "model-{name}"\nbase_url = "{url}"\n'
            f'key_env = "TEST_KEY"\nprice = {{ input = 1, output = 2 }}\n'
            for name in ("a", "b", "boss")
        )
        + '[conductor]\nworker = "boss"\n'
    )
    lines = ({"question": f"What is number {n}?", "answer": n} for n in range(QUESTIONS))
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))


COMMAND = ("eval", "--pool", "batuta.toml", "--out", "out")


def environ(folder):
    return clean_environ(TEST_KEY=KEY, BATUTA_HOME=str(folder / "home"))


async def started(folder, *args):
    """The command as a process that goes on."""
    return await anyio.open_process(
        [sys.executable, "-m", "batuta", *COMMAND, *args],
        cwd=folder, env=environ(folder), stdout=subprocess.DEVNULL, stderr=None,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path, command_line):
    """The command from its beginning to its end; its exit status."""

    async def run(*args):
        run = partial(command_line.run, *COMMAND, *args, cwd=tmp_path, env=environ(tmp_path))
        return (await anyio.to_thread.run_sync(run)).returncode

    return run


def asked(server):
    """How often each request came."""
    bodies = (json.dumps(received.body, sort_keys=True) for received in server.requests)
    return Counter(bodies)


def journaled(folder):
    with sqlite3.connect(folder / "out" / "calls.db") as journal:
        return journal.execute("SELECT count(*) FROM calls").fetchone()[0]


async def test_after_kill_9_no_finished_call_is_paid_again(tmp_path, run):
    args = ("--tasks", "own.jsonl", "--systems", SYSTEMS, "--concurrency", "2", "--limit", "12")
    async with FakeOpenAI(said_by, latency=0.05, strict_openai=False) as server:
        written(tmp_path, server.url)
        victim = await started(tmp_path, *args)
        while len(server.requests) < QUESTIONS + 8:
            assert victim.returncode is None
            await anyio.sleep(0.01)
        os.kill(victim.pid, signal.SIGKILL)
        await victim.wait()
        await anyio.sleep(0.2)
        before, kept = len(server.requests), journaled(tmp_path)
        assert 0 < kept <= before

        assert await run(*args) == 0
        found = asked(server)
        assert len(server.requests) == before + len(found) - kept
        assert max(found.values()) <= 2 and not server.wrong
        assert journaled(tmp_path) == len(found) == QUESTIONS * (1 + 3 + 2)

        done = len(server.requests)
        assert await run(*args) == 0
        assert len(server.requests) == done
    systems = json.loads((tmp_path / "out" / "report.json").read_text())["systems"]
    assert {name: s["accuracy"] for name, s in systems.items()} == {
        "a": 0.5,
        "self-consistency@3": 0.5,
        "ultra": 1.0,
    }
    assert [s["calls"] for s in systems.values()] == [1, 3, 2]


async def test_a_conductor_that_writes_no_workflow_is_asked_on_every_question(tmp_path, run):
    """Serving would skip it after three questions, and nothing would be known of the others."""

    def says(body):
        return "Let me think." if body["model"] == "model-boss" else said_by(body)

    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        args = ("--tasks", "own.jsonl", "--systems", "ultra", "--limit", str(QUESTIONS))
        assert await run(*args) == 0
        drafts = [each for each in server.requests if each.body["model"] == "model-boss"]
    (report,) = json.loads((tmp_path / "out" / "report.json").read_text())["systems"].values()
    assert (report["n"], report["unscored"]) == (QUESTIONS, 0)
    prompts = [str(each.body["messages"]) for each in drafts]
    questions = {re.findall(r"What is number (\d+)", prompt)[-1] for prompt in prompts}
    assert len(questions) == QUESTIONS


async def test_of_a_private_benchmark_nothing_but_ids_is_written(tmp_path, run):
    columns = ("Record ID", "Question", "Correct Answer", "High-level domain")
    wrong = tuple(f"Incorrect Answer {n}" for n in (1, 2, 3))
    with (tmp_path / "gpqa.csv").open("w", newline="") as file:
        sheet = csv.writer(file)
        sheet.writerow((*columns, *wrong))
        for n in range(3):
            sheet.writerow(
                (
                    f"rec{n}",
                    f"Which {SECRET} is number {n}?",
                    f"{SECRET} {n}",
                    "Physics",
                    "x",
                    "y",
                    "z",
                )
            )
    async with FakeOpenAI(lambda body: f"The {SECRET}.\nAnswer: A") as server:
        written(tmp_path, server.url)
        args = ("--tasks", "gpqa-diamond", "--from-file", "gpqa.csv", "--systems", "a")
        assert await run(*args, "--report", "shown") == 0
        assert len(server.requests) == 3
    files = [path for part in ("out", "shown") for path in (tmp_path / part).rglob("*")]
    assert {path.name for path in files} >= {"results.jsonl", "report.html", "report.md"}
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path
    assert "gpqa-diamond/rec0" in (tmp_path / "out" / "results.jsonl").read_text()
