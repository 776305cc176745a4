"""Options that are scored by their likelihood: a server on loopback tells log probabilities."""

import json
import math
import re
from pathlib import Path

import pytest

from batuta.core import Reply, Request, Sampling, TokenLogprob, WorkerId, user_message
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import SourceError, UnsupportedFieldError
from batuta.evals.likelihood import likelihood_clients, option_log_likelihoods
from batuta.tasks.datasets.task_files import make_tasks
from batuta.tasks.datasets.task_suites import read_task_suite
from evals.test_paid import started
from fakes.openai import FakeOpenAI

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SUITE = """
scoring: log-likelihood
tasks:
  - {question: "Which is number 0?", options: [zero, one, two], answer: A}
  - {question: "Which is number 1?", options: [zero, one, two], answer: B}
  - {question: "Which is number 2?", options: [zero, one, two], answer: C}
"""


class Telling(FakeOpenAI):
    """It always writes "The", and finds the letter of the option that is asked for the likeliest.

    The model `unsure` finds A the likeliest, whatever is asked.
    """

    def logprobs(self, text, received):
        if received.body.get("logprobs") is not True or "logprobs" in self.ignored:
            return None
        assert received.body["top_logprobs"] == 20
        asked = received.body["messages"][-1]["content"]
        word = ("zero", "one", "two")[int(re.search(r"number (\d)", asked)[1])]
        right = re.search(rf"^(\w)\. {word}$", asked, re.MULTILINE)[1]
        best = "A" if received.body["model"] == "model-unsure" else right
        top = [("The", -0.4), (f" {best}", -1.6), (best, -2.0), ("A", -1.7), ("Z", -3.0)]
        told = [{"token": token, "logprob": value, "bytes": None} for token, value in top]
        return {"content": [{**told[0], "top_logprobs": told}]}


def write_pool(folder, url, names):
    (folder / "batuta.toml").write_text(
        "".join(
            f'[[workers]]\nid = "{name}"\nmodel = "model-{name}"\nbase_url = "{url}"\n'
            f'key_env = "TEST_KEY"\nprice = {{ input = 1, output = 2 }}\n'
            for name in names
        )
    )


async def test_the_likeliest_letter_is_the_answer(tmp_path):
    (tmp_path / "mine.yaml").write_text(SUITE)
    async with Telling("The", strict_openai=False) as server:
        write_pool(tmp_path, server.url, ("sure", "unsure"))
        run = await started(tmp_path, "--tasks", "mine.yaml", "--systems", "sure,unsure,vote")
        assert await run.wait() == 0
        assert not server.wrong
        bodies = [received.body for received in server.requests]
    assert {body["max_tokens"] for body in bodies} == {1}
    systems = json.loads((tmp_path / "out" / "report.json").read_text())["systems"]
    tasks = read_task_suite(tmp_path / "mine.yaml")
    first = sum(task.target == "A" for task in tasks) / len(tasks)
    assert systems["sure"]["accuracy"] == 1.0
    assert systems["unsure"]["accuracy"] == pytest.approx(first)
    assert systems["sure"]["calls"] == 1 and systems["sure"]["tokens"] == 30
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    answers = {(row["system"], row["task"]): row["answer"] for row in map(json.loads, lines)}
    assert {answers["sure", str(task.id)] == task.target for task in tasks} == {True}


async def test_a_server_that_tells_none_is_an_outage_and_is_not_counted_as_wrong(tmp_path):
    (tmp_path / "mine.yaml").write_text(SUITE)
    async with Telling("A", strict_openai=False) as server:
        server.ignored.add("logprobs")
        write_pool(tmp_path, server.url, ("sure",))
        run = await started(tmp_path, "--tasks", "mine.yaml", "--systems", "sure")
        assert await run.wait() == 1
    rows = [
        json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    ]
    assert {row["unscored"] for row in rows} == {"outage"}
    assert all("tells no log probabilities" in row["reason"] for row in rows)


WORKER = WorkerId("w")


class Written:
    """A client that notes what it is asked."""

    def __init__(self, reply):
        self.reply = reply
        self.asked = []

    async def complete(self, request, listener=NULL_LISTENER):
        self.asked.append(request)
        return self.reply


def choice_task(**fields):
    (task,) = make_tasks(
        [{"question": "Which?", "options": ["x", "y"], "answer": "B", **fields}],
        Path("mine.jsonl"),
        None,
    )
    return task


async def test_other_calls_and_other_tasks_are_passed_on():
    told = (TokenLogprob(token="x", logprob=-1.0),)
    inner = Written(Reply(text="x", logprobs=told))
    assert likelihood_clients(choice_task(), {WORKER: inner}) == {WORKER: inner}
    client = likelihood_clients(choice_task(scoring="log-likelihood"), {WORKER: inner})[WORKER]
    plain = Request(messages=(user_message("Check this."),), sampling=Sampling(temperature=1))
    assert (await client.complete(plain)).text == "x"
    assert inner.asked == [plain]
    asked = Request(messages=(user_message(choice_task().question),))
    assert (await client.complete(asked)).text == "x"  # no option is among the tokens
    inner.reply = Reply(text="x")
    with pytest.raises(UnsupportedFieldError, match="tells no log probabilities"):
        await client.complete(asked)


def test_the_probabilities_of_one_letter_add_up():
    others = [(" B", 0.2), ("B", 0.2), ("(A", 0.3), ("b", 0.1), ("Bee", 0.1)]
    token = TokenLogprob(
        token="(A",
        logprob=math.log(0.3),
        others=tuple(TokenLogprob(token=t, logprob=math.log(p)) for t, p in others),
    )
    found = option_log_likelihoods(token, "ABC")
    assert found == pytest.approx({"A": math.log(0.3), "B": math.log(0.4)})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scoring": "perplexity", "options": ["x", "y"], "answer": "A"}, "the only one"),
        ({"scoring": "log-likelihood", "answer": "5"}, "needs options"),
    ],
)
def test_what_cannot_be_scored_so_is_said(fields, said):
    with pytest.raises(SourceError, match=said):
        make_tasks([{"question": "Which?", **fields}], Path("mine.jsonl"), 0)
