"""Options that are scored by their likelihood: a server on loopback tells log probabilities."""

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from aiohttp import web

from batuta.clients import HttpTransport, Secret
from batuta.clients.anthropic.client import AnthropicClient
from batuta.clients.gemini.client import GeminiClient
from batuta.clients.openai.client import OPENAI_DIALECT
from batuta.clients.openai.echo import keep_continuation
from batuta.clients.openai.responses import OpenAIResponsesClient
from batuta.core import Reply, Request, Sampling, TokenLogprob, WorkerId, user_message
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import SourceError, UnsupportedFieldError
from batuta.evals.likelihood import likelihood_clients, option_log_likelihoods
from batuta.tasks.datasets.task_files import make_tasks
from batuta.tasks.datasets.task_suites import read_task_suite
from clients.cases import worker
from evals.test_paid import started
from fakes.openai import FakeOpenAI
from fakes.server import KEY

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


class Echoing(Telling):
    """It echoes prompts, as vLLM does: a mark of the beginning, words, and one that it writes.

    The words that the model knows are the likelier the more often it has read them.
    """

    KNOWN: ClassVar = {" blue": -0.5, " green": -3.0, " a": -1.0, " very": -1.0, " dark": -1.0}

    def __init__(self, *args, writes=" .", **options):
        super().__init__(*args, **options)
        self.writes = writes
        self.echoed = []

    def routes(self):
        return [*super().routes(), web.post("/v1/completions", self.complete)]

    async def complete(self, request):
        body = await request.json()
        self.echoed.append(body)
        assert (body["echo"], body["logprobs"], body["max_tokens"]) == (True, 1, 1)
        tokens = ["<s>", *re.findall(r"\s*\S+", body["prompt"]), self.writes]
        values = [None, *(self.KNOWN.get(token, -4.0) for token in tokens[1:])]
        told = {"tokens": tokens, "token_logprobs": values, "text_offset": [0] * len(tokens)}
        choice = {"index": 0, "text": body["prompt"] + self.writes, "finish_reason": "length"}
        usage = {"prompt_tokens": len(tokens) - 1, "completion_tokens": 1}
        return web.json_response(
            {"model": body["model"], "choices": [{**choice, "logprobs": told}], "usage": usage}
        )


class Ignoring(Telling):
    """It knows completions and ignores `echo`, as llama.cpp's own server does."""

    def routes(self):
        return [*super().routes(), web.post("/v1/completions", self.complete)]

    async def complete(self, request):
        self.asked = [*getattr(self, "asked", []), await request.json()]
        row = {"token": ".", "logprob": -0.4, "bytes": [46], "top_logprobs": []}
        choice = {"index": 0, "text": ".", "logprobs": {"content": [row]}}
        usage = {"prompt_tokens": 6, "completion_tokens": 1}
        return web.json_response(
            {"model": "m", "choices": [{**choice, "finish_reason": "length"}], "usage": usage}
        )


WHOLE_TEXTS = """
template: |-
  Question: {{question}}
  Answer:
scoring: {scoring}
tasks:
  - {{question: "What is the sky?", options: [green, blue], answer: B}}
  - {{question: "What is the sea?", options: [green, a very dark blue], answer: B}}
"""


@pytest.mark.parametrize(
    ("scoring", "sea"),
    [("log-likelihood", "green"), ("log-likelihood-by-length", "a very dark blue")],
)
async def test_whole_options_are_scored_where_the_server_echoes(tmp_path, scoring, sea):
    (tmp_path / "mine.yaml").write_text(WHOLE_TEXTS.format(scoring=scoring))
    async with Echoing("no", strict_openai=False) as server:
        write_pool(tmp_path, server.url, ("sure",))
        run = await started(tmp_path, "--tasks", "mine.yaml", "--systems", "sure")
        assert await run.wait() == 0
        assert not server.requests, "no chat is asked"
        prompts = [body["prompt"] for body in server.echoed]
    assert max(prompts) == "Question: What is the sky?\nAnswer: green"
    rows = [
        json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    ]
    tasks = {str(task.id): task for task in read_task_suite(tmp_path / "mine.yaml")}
    chosen = {
        json.loads(tasks[row["task"]].data)["options"]["ABCD".index(row["answer"])] for row in rows
    }
    assert chosen == {"blue", sea}
    assert {row["calls"] for row in rows} == {2}
    assert all("likelihood of their texts" in row["reason"] for row in rows)


async def test_letters_are_scored_where_the_server_ignores_echo_and_it_is_asked_once(tmp_path):
    (tmp_path / "mine.yaml").write_text(SUITE)
    async with Ignoring("The", strict_openai=False) as server:
        write_pool(tmp_path, server.url, ("sure",))
        run = await started(
            tmp_path, "--tasks", "mine.yaml", "--systems", "sure", "--concurrency", "1"
        )
        assert await run.wait() == 0
        assert len(server.asked) == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["systems"]["sure"]["accuracy"] == 1.0
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert all("likelihood of their letters" in json.loads(line)["reason"] for line in lines)


def echoed(tokens, text, continuation="é blue"):
    reply = Reply(
        text=text, logprobs=tuple(TokenLogprob(token=token, logprob=-1.0) for token in tokens)
    )
    request = Request(messages=(user_message("The sky is"),), continuation=continuation)
    return [token.token for token in keep_continuation(reply, request).logprobs]


def test_the_tokens_of_the_continuation_are_found():
    whole = "The sky is blue."
    assert echoed(["The", " sky", " is", " blue", "."], whole, " blue") == [" blue"]
    assert echoed(["<s>", "The", " sky", " is", " blue", "."], whole, " blue") == [" blue"]
    assert echoed(["The", " sky", " is blue", "."], whole, " blue") == [" is blue"]
    # a character of two tokens is told as two marks
    pieces = ["<s>", "The", " sky", " is", "\ufffd", "\ufffd", " blue", "."]
    assert echoed(pieces, "The sky isé blue.") == ["\ufffd", "\ufffd", " blue"]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["."], "."),
        (["The", " sky", " is", " blue", "."], " blue."),
        (["?", "?", "."], "The sky isé blue."),
        ([], "The sky isé blue."),
    ],
)
def test_what_is_no_echo_is_not_scored(tokens, text):
    with pytest.raises(UnsupportedFieldError, match="does not echo"):
        echoed(tokens, text)


@pytest.mark.parametrize(
    "kind",
    [AnthropicClient, GeminiClient, partial(OpenAIResponsesClient, dialect=OPENAI_DIALECT)],
    ids=["anthropic", "gemini", "responses"],
)
async def test_other_dialects_refuse_a_continuation(kind):
    request = Request(messages=(user_message("x"),), continuation=" y")
    async with HttpTransport() as http:
        client = kind(worker(), http, base_url="http://127.0.0.1:9", key=Secret(KEY))
        with pytest.raises(UnsupportedFieldError, match="how likely a given text is"):
            await client.complete(request)


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
    assert likelihood_clients(choice_task(), {WORKER: inner}, set()) == {WORKER: inner}
    task, without_echo = choice_task(scoring="log-likelihood"), {WORKER}
    client = likelihood_clients(task, {WORKER: inner}, without_echo)[WORKER]
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
        ({"scoring": "perplexity", "options": ["x", "y"], "answer": "A"}, "is neither"),
        ({"scoring": "log-likelihood", "answer": "5"}, "needs options"),
    ],
)
def test_what_cannot_be_scored_so_is_said(fields, said):
    with pytest.raises(SourceError, match=said):
        make_tasks([{"question": "Which?", **fields}], Path("mine.jsonl"), 0)
