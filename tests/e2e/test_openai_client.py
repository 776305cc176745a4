"""The openai client, unchanged, against `batuta serve` as a person starts it."""

import time

import openai
import pytest

QUESTION = "Compute the result: begin at 45; square it; double it."


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


def test_responses_whole_and_streamed(client):
    whole = client.responses.create(model="batuta-ultra", input=QUESTION)
    assert "4050" in whole.output_text
    with client.responses.stream(model="batuta-ultra", input=QUESTION) as stream:
        numbers = [event.sequence_number for event in stream]
        final = stream.get_final_response()
    assert numbers == list(range(len(numbers)))
    assert "4050" in final.output_text
    assert final.output[0].summary[0].text.startswith("Plan: ")


def test_a_conversation_goes_on_by_its_id(client):
    first = client.responses.create(model="batuta-ultra", input=QUESTION)
    second = client.responses.create(
        model="batuta-ultra", input=QUESTION, previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert client.responses.input_items.list(second.id).data[0].content[0].text == QUESTION


def test_the_background_is_polled_and_told_again(client):
    made = client.responses.create(model="batuta-ultra", input=QUESTION, background=True)
    end = time.monotonic() + 20
    while (got := client.responses.retrieve(made.id)).status in {"queued", "in_progress"}:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert got.status == "completed" and "4050" in got.output_text
    told = list(client.responses.retrieve(made.id, stream=True, starting_after=1))
    assert [event.sequence_number for event in told] == list(range(2, len(told) + 2))
    assert told[-1].type == "response.completed"
    assert client.responses.cancel(made.id).status == "completed"
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
