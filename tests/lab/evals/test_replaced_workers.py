"""Another model behind a worker's id: it is said, it is asked anew, and nobody else is."""

import json
import re
import sqlite3
from collections import Counter
from contextlib import AsyncExitStack
from decimal import Decimal

import anyio
import pytest

from batuta.clients import CallCache, CallCacheClient
from batuta.clients.providers import client_identity
from batuta.core import Price, Request, Sampling, Worker, WorkerId, user_message
from batuta.lab.train.rollout_setup import RolloutSetup
from batuta.lab.tune.spending import BudgetedClient, DollarLimit
from batuta.language import PromptOptions
from fakes.openai import FakeOpenAI
from fakes.server import KEY

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
QUESTIONS = 6


def says(body):
    """Whatever is plain is right; whatever was changed is wrong."""
    if "boss" in body["model"]:
        right = not body["model"].endswith("-2")
        return (
            f'model_id = ["{"a" if right else "b"}"]\nsubtasks = ["Solve it."]\naccess_list = [[]]'
        )
    number = int(re.findall(r"number (\d+)", json.dumps(body["messages"]))[-1])
    plain = (
        body["model"] == "model-a" and body.get("temperature") is None and "reasoning" not in body
    )
    return f"Answer: {number if plain else -1}"


def written(folder, url, *, a="", model="model-a", more=""):
    lines = [
        f'[[workers]]\nid = "{name}"\nmodel = "{of}"\nbase_url = "{where}"\nkey_env = "TEST_KEY"\n{extra}'
        for name, of, where, extra in (("a", model, url, a), ("b", "model-b", url, ""))
    ]
    (folder / "pool.toml").write_text("\n".join(lines) + more)
    asked = ({"question": f"What is number {n}?", "answer": n} for n in range(QUESTIONS))
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, asked)))


async def measured(command_line, folder, systems="a,b", *more):
    env = {"BATUTA_HOME": str(folder / "home"), "HOME": str(folder), "TEST_KEY": KEY}
    args = ("eval", "--pool", "pool.toml", "--tasks", "own.jsonl", "--systems", systems, *more)
    done = await anyio.to_thread.run_sync(
        lambda: command_line.run(*args, "--out", "out", cwd=folder, env=env)
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "out" / "report.json").read_text())["systems"]
    return {name: figures["accuracy"] for name, figures in found.items()}, done.stderr


def taken(*servers):
    found = Counter(one.body["model"] for server in servers for one in server.requests)
    for server in servers:
        server.requests.clear()
    return found


CHANGES = {
    "model": {"model": "model-a-2"},
    "sampling": {"a": "sampling = { temperature = 0.5 }\n"},
    "extra_body": {"a": 'extra_body = { reasoning = { effort = "low" } }\n'},
}


@pytest.mark.parametrize("what", [*CHANGES, "base_url"])
async def test_it_is_said_and_only_the_changed_worker_is_asked(tmp_path, command_line, what):
    async with (
        FakeOpenAI(says, strict_openai=False) as here,
        FakeOpenAI(lambda _: "Answer: -1", strict_openai=False) as there,
    ):
        written(tmp_path, here.url)
        before, said = await measured(command_line, tmp_path)
        assert before == {"a": 1.0, "b": 0.0} and "before" not in said
        assert taken(here) == {"model-a": QUESTIONS, "model-b": QUESTIONS}

        if what == "base_url":
            written(tmp_path, here.url)
            text = (tmp_path / "pool.toml").read_text().replace(here.url, there.url, 1)
            (tmp_path / "pool.toml").write_text(text)
        else:
            written(tmp_path, here.url, **CHANGES[what])
        now, said = await measured(command_line, tmp_path)
        assert now == {"a": 0.0, "b": 0.0}
        (line,) = [line for line in said.splitlines() if "changed since out was last used" in line]
        assert line.startswith(f"batuta: a ({what}") and "asked again" in line
        assert set(taken(here, there)) <= {"model-a", "model-a-2"}

        now, said = await measured(command_line, tmp_path)
        assert now["a"] == 0.0 and "before" not in said and not taken(here, there)
        written(tmp_path, here.url)
        back, said = await measured(command_line, tmp_path)
        assert back == before and "a (" in said and not taken(here, there), "it was paid already"


async def test_what_is_written_down_of_a_worker_holds_no_secret(tmp_path, command_line):
    async with FakeOpenAI(says, strict_openai=False) as here:
        written(tmp_path, here.url, a='extra_body = { reasoning = "hush-hush" }\n')
        await measured(command_line, tmp_path)
        for path in (tmp_path / "out").rglob("*"):
            assert b"hush-hush" not in path.read_bytes(), path


async def test_a_conductor_that_is_no_worker_and_a_judge(tmp_path, command_line):
    def boss(url, path=""):
        return f'[conductor]\nmodel = "boss{path}"\nbase_url = "{url}"\nkey_env = "TEST_KEY"\n'

    async with FakeOpenAI(says, strict_openai=False) as here, FakeOpenAI(says, strict_openai=False) as there:  # fmt: skip
        written(tmp_path, here.url, more=boss(here.url))
        assert (await measured(command_line, tmp_path, "ultra"))[0] == {"ultra": 1.0}
        taken(here)
        written(tmp_path, here.url, more=boss(there.url))
        _, said = await measured(command_line, tmp_path, "ultra")
        assert "the conductor (base_url)" in said
        assert taken(there) == {"boss": QUESTIONS} and not taken(here)
        _, said = await measured(command_line, tmp_path, "ultra", "--judge", "b")
        assert "the judge (worker nobody → b)" in said and not taken(here, there)


async def test_a_folder_of_an_earlier_version_is_gone_on_with(tmp_path, command_line):
    async with FakeOpenAI(says, strict_openai=False) as here:
        written(tmp_path, here.url)
        before = (await measured(command_line, tmp_path))[0]
        taken(here)
        (tmp_path / "out" / "workers.json").unlink()
        with sqlite3.connect(tmp_path / "out" / "calls.db") as journal:
            journal.execute("DROP TABLE reached")
        size = (tmp_path / "out" / "results.jsonl").stat().st_size
        now, said = await measured(command_line, tmp_path)
        assert now == before and not taken(here) and "before" not in said
        assert (tmp_path / "out" / "results.jsonl").stat().st_size == size
        (tmp_path / "out" / "workers.json").write_text('{"a": 3}')
        with pytest.raises(AssertionError, match=r"workers\.json is damaged: remove it"):
            await measured(command_line, tmp_path)


async def test_training_learns_nothing_from_a_model_that_is_gone(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    request = Request(messages=(user_message("What is number 3?"),), sampling=Sampling(seed=1))

    async def reply():
        setup = RolloutSetup(
            pool=str(tmp_path / "pool.toml"), rendering=PromptOptions(), kinds=(),
            journal=str(tmp_path / "calls.db"), scope=str(tmp_path), seconds=None,
        )  # fmt: skip
        async with AsyncExitStack() as stack:
            runner = await setup.open_runner(stack)
            return (await runner.clients[WorkerId("a")].complete(request)).text

    async with FakeOpenAI(says, strict_openai=False) as here:
        written(tmp_path, here.url)
        assert await reply() == await reply() == "Answer: 3"
        assert taken(here) == {"model-a": 1} and "before" not in capsys.readouterr().err
        written(tmp_path, here.url, model="model-a-2")
        assert await reply() == "Answer: -1" and taken(here) == {"model-a-2": 1}
        assert "a (model model-a → model-a-2)" in capsys.readouterr().err


async def test_a_client_around_a_client_knows_whose_replies_it_gives(tmp_path):
    class Known:
        def __init__(self):
            self.identity = {"model": "m"}

        async def complete(self, request, listener=None):
            raise AssertionError

    worker = Worker(id=WorkerId("a"), model="m", price=Price(input=Decimal(1), output=Decimal(1)))
    with CallCache(tmp_path / "calls.db") as journal:
        around = CallCacheClient(
            BudgetedClient(Known(), worker, DollarLimit(Decimal(1))), journal, "a"
        )
        assert client_identity(around) == {"model": "m"}
        assert await journal.name_worker("a", "x") == await journal.name_worker("a", "x") == "a"
        assert await journal.name_worker("a", "y") == "a y"
