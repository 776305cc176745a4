"""The openai client, unchanged, against `batuta serve` as a person starts it."""

import os
import re
import subprocess
import sys
import threading

import openai
import pytest

QUESTION = "Compute the result: begin at 45; square it; double it."


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    command = [sys.executable, "-m", "batuta", "serve", "--pool", "rehearsal", "--port", "0"]
    env = {**os.environ, "BATUTA_HOME": str(home)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=home, env=env)
    threading.Timer(60, process.kill).start()
    found = None
    while found is None:
        line = process.stderr.readline()
        assert line, "the server ended"
        found = re.search(r"at (http://\S+/v1)", line)
    yield found[1]
    process.terminate()
    assert process.wait(20) == 0
    process.stderr.close()


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def messages(text=QUESTION):
    return [{"role": "user", "content": text}]


def test_models(client):
    names = {model.id for model in client.models.list()}
    assert {"batuta-mini", "batuta-ultra", "worker/cello"} <= names


@pytest.mark.parametrize("model", ["batuta-mini", "batuta-ultra", "worker/cello"])
def test_plain(client, model):
    reply = client.chat.completions.create(model=model, messages=messages())
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens >= reply.usage.prompt_tokens + reply.usage.completion_tokens
    details = reply.usage.model_dump()
    orchestration = details["prompt_tokens_details"]["orchestration_input_tokens"]
    assert (orchestration > 0) == (model == "batuta-ultra")


def test_streamed_with_progress_and_usage(client):
    content, reasoning, usage = "", "", None
    stream = client.chat.completions.create(
        model="batuta-ultra",
        messages=messages(),
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            content += chunk.choices[0].delta.content or ""
            reasoning += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
        usage = chunk.usage or usage
    assert "4050" in content and "Plan: " in reasoning and usage.total_tokens > 0


def test_the_run_can_be_read_again(client, url):
    raw = client.chat.completions.with_raw_response.create(
        model="batuta-ultra", messages=messages()
    )
    run_id = raw.headers["x-batuta-run-id"]
    run = client.get(f"/runs/{run_id}", cast_to=object)
    assert run_id in str(run) and "4050" in str(run)


def test_errors_are_the_clients_own(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nobody", messages=messages())
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="batuta-ultra", messages=messages(), n=2)
    assert bad.value.param == "n"


def test_outside_its_world_it_says_so(client):
    reply = client.chat.completions.create(
        model="batuta-ultra", messages=messages("Who wrote Hamlet?")
    )
    assert "rehearsal" in reply.choices[0].message.content
