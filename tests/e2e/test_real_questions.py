"""Real benchmark questions through the whole path, over a server that imitates an OpenAI model."""

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Outcome, Question
from batuta.engine import conduct
from data_folder import FOLDER, needs_data
from fakes.openai import FakeOpenAI

pytestmark = pytest.mark.anyio
FIXTURE = Path(__file__).parents[1] / "fixtures" / "real_questions.jsonl"
PER_SET = 100
WORKFLOW = """I need a plan, two opinions and a decision.
model_id = [0, 1, 2, 1]
subtasks = ["SUBTASK-PLAN", "SUBTASK-ONE", "SUBTASK-TWO", "SUBTASK-DECIDE"]
access_list = [[], [0], [], [1, 2]]"""
SEES = {"PLAN": set(), "ONE": {"PLAN"}, "TWO": set(), "DECIDE": {"ONE", "TWO"}}


def as_question(row):
    if "choices" in row:
        options = "\n".join(
            f"{letter}. {text}" for letter, text in zip("ABCD", row["choices"], strict=True)
        )
        return f"{row['question']}\n{options}\nAnswer with one letter."
    return row.get("question") or row.get("problem") or row["prompt"]


def rows(path):
    opened = (
        gzip.open(path, "rt", encoding="utf-8")
        if path.suffix == ".gz"
        else path.open(encoding="utf-8")
    )
    with opened as lines:
        return [json.loads(line) for line in islice(lines, PER_SET)]


def whole_path(tmp_path, url):
    workers = "".join(
        f'[[workers]]\nid = "{name}"\nmodel = "model-{name}"\nbase_url = "{url}"\nkey_env = "TEST_KEY"\n'
        for name in ("a", "b", "c", "conductor")
    )
    file = tmp_path / "batuta.toml"
    file.write_text(workers + '[conductor]\nworker = "conductor"\n')
    return file


def said_by(body):
    """The conductor writes the workflow; a worker says which subtask it had."""
    if body["model"] == "model-conductor":
        return WORKFLOW
    prompt = body["messages"][-1]["content"]
    task = prompt.rpartition("Your assigned subtask: SUBTASK-")[2].split("\n")[0]
    return f"REPLY-{task} by {body['model']}"


async def check(questions, tmp_path):
    async with FakeOpenAI(said_by, strict_openai=False) as server, HttpTransport() as http:
        ensemble = await load_config(
            http, pool=str(whole_path(tmp_path, server.url)), environ={"TEST_KEY": server.key}
        )
        for question in questions:
            before = len(server.requests)
            run = await conduct(
                Question.of(question), ensemble.conductor, ensemble.pool, ensemble.clients
            )
            assert (run.outcome, run.answer) == (Outcome.ANSWERED, "REPLY-DECIDE by model-b"), (
                run.error
            )
            plan, *calls = [r.body for r in server.requests[before:]]
            assert question in plan["messages"][0]["content"]
            assert [c["model"] for c in calls[-1:]] == ["model-b"] and len(calls) == 4
            for body in calls:
                prompt = body["messages"][-1]["content"]
                task = prompt.rpartition("Your assigned subtask: SUBTASK-")[2].split("\n")[0]
                assert f"<overall_task>\n{question}\n</overall_task>" in prompt
                assert {other for other in SEES if f"REPLY-{other}" in prompt} == SEES[task]
                assert {other for other in SEES if f"SUBTASK-{other}" in prompt} == SEES[task] | {
                    task
                }
        assert server.wrong == []


async def test_a_few_questions_of_each_set(tmp_path):
    questions = [
        as_question(json.loads(line)) for line in FIXTURE.read_text(encoding="utf-8").splitlines()
    ]
    assert len(questions) == 12
    await check(questions, tmp_path)


@needs_data("bench/gsm8k", "bench/mmlu", "bench/humaneval")
@pytest.mark.parametrize("name", ["gsm8k/test.jsonl", "mmlu/test.jsonl.gz", "humaneval/test.jsonl"])
async def test_many_questions(name, tmp_path):
    questions = [as_question(row) for row in rows(FOLDER / "bench" / name)]
    assert len(questions) == PER_SET
    await check(questions, tmp_path)
