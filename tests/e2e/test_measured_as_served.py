"""What is measured is what is served: ask, serve, eval and Python make the same calls of one system."""

import json
import os
from contextlib import AsyncExitStack

import anyio
import numpy as np
import orjson
import pytest

import batuta
from batuta.conductors.workflow_selector import (
    WorkflowSelector,
    fit_reader,
    open_workflow_selector,
    save_workflow_selector,
)
from batuta.core import Step, WorkerId, Workflow
from batuta.lab.evals.setup import SubjectSetup
from fakes.openai import FakeOpenAI
from fakes.server import KEY
from fakes.serving import Server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
FIRST = Workflow((Step(subtask="", worker=A), Step(subtask="Check it.", worker=B, access=(0,))))
MORE = Workflow((Step(subtask="Say who is right.", worker=C, previous=True),))
QUESTION = f"My key is sk-{'a1B2' * 8}. Add up 3 and 10 and name the total."
SAYS = {"model-a": "Answer: 1", "model-b": "Answer: 2", "model-c": "Answer: 13"}


def pool_text(url, more=""):
    workers = "".join(
        f'[[workers]]\nid = "{name}"\nmodel = "model-{name}"\nbase_url = "{url}"\nkey_env = "TEST_KEY"\n'
        f"price = {{ input = 1, output = 2 }}\n"
        for name in ("a", "b", "c")
    )
    rule = '[[policies]]\nname = "no-keys"\nkind = "secrets"\non = ["input", "between", "output"]\n'
    return f"{workers}{rule}{more}"


def written(folder, url, more='[ultra]\nselector = "selector"\n'):
    """A pool, a selector whose workflows go on where their answers differ, one question."""
    (folder / "pool.toml").write_text(pool_text(url, more))
    texts = [f"Add up {n} and {n + 7} and name the total." for n in range(30)]
    selector = WorkflowSelector(
        title="made-up",
        reader=fit_reader(texts, np.zeros(30, np.intp)),
        groups=("sums",),
        workflows=(FIRST,),
        continuations=(MORE,),
        rank_glw=np.array([[[0]]]),
        safest_w=np.array([0]),
        ease_gl=np.empty((1, 0), np.float32),
    )
    save_workflow_selector(selector, folder / "selector")
    (folder / "own.jsonl").write_text(json.dumps({"question": QUESTION, "answer": 13}))


def environ(folder):
    words = ("API_KEY", "BASE_URL", "OLLAMA", "BATUTA")
    clean = {k: v for k, v in os.environ.items() if not any(word in k for word in words)}
    return {**clean, "TEST_KEY": KEY, "BATUTA_HOME": str(folder / "home")}


def taken(server):
    """The calls since the last look: which model got which prompt."""
    found = [(one.body["model"], json.dumps(one.body["messages"])) for one in server.requests]
    server.requests.clear()
    return found


async def run(command_line, folder, *args):
    done = await anyio.to_thread.run_sync(
        lambda: command_line.run(*args, cwd=folder, env=environ(folder))
    )
    assert done.returncode == 0, done.stderr
    return done


async def asked(command_line, folder, *more):
    return await run(
        command_line, folder, "ask", "--pool", "pool.toml", "--no-store", *more, QUESTION
    )


async def measured(command_line, folder, systems, out, *more):
    await run(
        command_line, folder, "eval", "--pool", "pool.toml", "--tasks", "own.jsonl",
        "--systems", systems, "--out", out, *more,
    )  # fmt: skip
    return json.loads((folder / out / "report.json").read_text())["systems"][systems]


async def served(folder, model, **more):
    async with Server(folder, "--pool", str(folder / "pool.toml"), **environ(folder)) as server:
        body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], **more}
        async with server.http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            return (await response.json())["choices"][0]["message"]["content"]


@pytest.mark.slow
async def test_one_question_of_a_selector_that_needs_several_rounds(tmp_path, command_line):
    async with FakeOpenAI(lambda body: SAYS[body["model"]], strict_openai=False) as server:
        written(tmp_path, server.url)
        done = await asked(command_line, tmp_path)
        first = taken(server)
        assert "Answer: 13" in done.stdout
        assert [model for model, _ in first] == ["model-a", "model-b", "model-c"]
        assert "removed by no-keys" in first[0][1] and "a1B2" not in str(first)

        assert await served(tmp_path, "batuta-ultra") == "Answer: 13"
        assert taken(server) == first
        assert await served(tmp_path, "batuta-ultra", reasoning_effort="high") == "Answer: 13"
        assert taken(server) == first

        figures = await measured(command_line, tmp_path, "ultra", "out")
        assert (figures["accuracy"], figures["rounds"]) == (1.0, 2)
        assert taken(server) == first
        figures = await measured(command_line, tmp_path, "ultra+recursion", "more")
        assert figures["accuracy"] == 1.0 and taken(server) == first

        limits, known = batuta.Limits(usd=1.0), {"TEST_KEY": KEY}
        pool = tmp_path / "pool.toml"
        async with batuta.open(pool, limits=limits, environ=known) as session:
            assert (await session.ask(QUESTION)).answer == "Answer: 13"
        assert taken(server) == first


async def test_a_selector_that_is_named_on_the_command_line(tmp_path, command_line):
    async with FakeOpenAI(lambda body: SAYS[body["model"]], strict_openai=False) as server:
        written(tmp_path, server.url, more="")
        conductor = ("--conductor", "selector")
        assert "Answer: 13" in (await asked(command_line, tmp_path, *conductor)).stdout
        first = taken(server)
        assert (await measured(command_line, tmp_path, "ultra", "out", *conductor))["accuracy"] == 1
        assert taken(server) == first and len(first) == 3


async def test_fewer_rounds_that_the_settings_name_hold_everywhere_and_are_said(
    tmp_path, command_line
):
    fewer = '[ultra]\nselector = "selector"\n[limits]\nmax_rounds = 1\n'
    note = "[limits] max_rounds allows 1 of the 3 rounds that workflow-selector/made-up@"
    async with FakeOpenAI(lambda body: SAYS[body["model"]], strict_openai=False) as server:
        written(tmp_path, server.url, fewer)
        done = await asked(command_line, tmp_path)
        first = taken(server)
        assert "Answer: 2" in done.stdout and done.stderr.count(note) == 1 and len(first) == 2
        assert await served(tmp_path, "batuta-ultra") == "Answer: 2"
        assert taken(server) == first
        done = await run(
            command_line, tmp_path, "eval", "--pool", "pool.toml", "--tasks", "own.jsonl",
            "--systems", "ultra", "--out", "out",
        )  # fmt: skip
        assert taken(server) == first and done.stderr.count(note) == 1
        # Who asks for all of them gets no more than the settings allow; more may be set than is needed.
        written(tmp_path, server.url, fewer.replace("= 1", "= 3"))
        assert "Answer: 13" in (await asked(command_line, tmp_path)).stdout
        taken(server)
        done = await asked(command_line, tmp_path, "--rounds", "1")
        assert "--rounds allows 1 of the 3 rounds" in done.stderr and taken(server) == first


async def test_the_mini_that_the_settings_name_is_the_mini_that_is_measured(tmp_path, command_line):
    async with FakeOpenAI(lambda body: SAYS[body["model"]], strict_openai=False) as server:
        written(tmp_path, server.url, '[mini]\nconductor = "single/c"\n')
        assert await served(tmp_path, "batuta-mini") == "Answer: 13"
        first = taken(server)
        assert (await measured(command_line, tmp_path, "mini", "out"))["accuracy"] == 1.0
        assert taken(server) == first and len(first) == 1


async def test_a_model_of_the_settings_own_is_measured_under_its_name(tmp_path, command_line):
    team = '[models.team]\nconductor = "fusion"\nworkers = ["a", "c"]\neffort = "max"\n'
    method = '[models.method]\nbaseline = "moa"\n'
    async with FakeOpenAI(lambda body: SAYS[body["model"]], strict_openai=False) as server:
        written(tmp_path, server.url, team + method)
        done = await asked(command_line, tmp_path, "--model", "team")
        first = sorted(taken(server))
        assert "Answer: " in done.stdout and {model for model, _ in first} == {"model-a", "model-c"}
        assert await served(tmp_path, "team") in done.stdout
        assert sorted(taken(server)) == first
        await measured(command_line, tmp_path, "team", "out")
        assert sorted(taken(server)) == first
        written(tmp_path, server.url, team.replace('"max"', '"low"'))
        await measured(command_line, tmp_path, "team", "out")
        assert taken(server), "what was measured on other terms is not shown for these"

        written(tmp_path, server.url, method)
        refused = await anyio.to_thread.run_sync(
            lambda: command_line.run(
                "eval", "--pool", "pool.toml", "--tasks", "own.jsonl", "--systems", "method",
                cwd=tmp_path, env=environ(tmp_path),
            )
        )  # fmt: skip
        assert refused.returncode == 2 and "method is the baseline moa" in refused.stderr


def test_a_folder_without_the_figure_is_read_and_one_with_it_keeps_its_version(tmp_path):
    written(tmp_path, "http://127.0.0.1:9/v1")
    folder = tmp_path / "selector"
    card = orjson.loads((folder / "batuta.json").read_bytes())
    whole = open_workflow_selector(folder)
    assert card.pop("rounds") == whole.needed_rounds == 3
    (folder / "batuta.json").write_bytes(orjson.dumps(card))
    old = open_workflow_selector(folder)
    assert old.needed_rounds == 3 and old.name == whole.name
    for wrong in (0, 9, "many", None):
        (folder / "batuta.json").write_bytes(orjson.dumps({**card, "rounds": wrong}))
        with pytest.raises(batuta.errors.ConfigError, match="no usable workflow selector"):
            open_workflow_selector(folder)


@pytest.mark.parametrize(
    "more", ["[resilience]\nstep_timeout_s = 5\n", "[limits]\nmax_rounds = 2\n", ""]
)
async def test_whatever_decides_an_answer_decides_where_its_result_is_kept(tmp_path, more):
    plain = pool_text("http://127.0.0.1:9/v1").replace('key_env = "TEST_KEY"\n', "")
    texts = [plain, plain + more if more else plain.replace('on = ["input", ', "on = [")]
    keys = set()
    for text in texts:
        (tmp_path / "pool.toml").write_text(text)
        async with AsyncExitStack() as stack:
            subject = await SubjectSetup(pool=str(tmp_path / "pool.toml")).open_subject(stack)
            keys.add(subject.key_text)
    assert len(keys) == 2
