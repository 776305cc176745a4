"""POST /v1/completions: a prompt in, its continuation out; what cannot be had is refused by name."""

from __future__ import annotations

import json

import pytest

from batuta.clients import ScriptedClient
from batuta.errors import ProviderOverloadedError
from gateway.keyed_server import KeyedServer
from gateway.live_server import Halting, Serving, scripted_state, stored

pytestmark = pytest.mark.anyio
PATH = "/v1/completions"
ASK = {"model": "worker/ada", "prompt": "Say hello."}


async def test_a_prompt_is_continued():
    heard = []

    def say(request):
        heard.append(request)
        return "Hello."

    async with Serving(ada=ScriptedClient(say)) as server:
        for prompt in ("Say hello.", ["Say hello."]):
            status, headers, said = await server.post(PATH, json={**ASK, "prompt": prompt, "max_tokens": 9, "stop": "x"})  # fmt: skip
            assert status == 200 and said["id"] == f"cmpl-{headers['x-batuta-run-id']}"
            assert (said["object"], said["model"]) == ("text_completion", "worker/ada")
            assert said["choices"] == [
                {"text": "Hello.", "index": 0, "logprobs": None, "finish_reason": "stop"}
            ]
            assert said["usage"]["total_tokens"] > 0
        made = await server.openai.completions.create(model="batuta-ultra", prompt="hi")
        assert made.choices[0].text == "Hello."
    assert heard[0].messages[-1].text == "Say hello."
    assert (heard[0].sampling.max_tokens, heard[0].sampling.stop) == (9, ("x",))


@pytest.mark.parametrize("model", ["worker/ada", "batuta-ultra"])
async def test_streams(model):
    async with Serving() as server:
        stream = await server.openai.completions.create(
            model=model, prompt="hi", stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].text for c in chunks if c.choices) == "Hello there, you."
    ends = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert ends[-1] == "stop" and not any(ends[:-1])
    assert chunks[-1].usage.total_tokens > 0 and len({c.id for c in chunks}) == 1


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "the end"}, "suffix"),
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"n": 2}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": [1, 2, 3]}, "prompt"),
        ({"prompt": [[1, 2], [3]]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(change, param):
    async with Serving() as server:
        status, _, said = await server.post(PATH, json={**ASK, **change})
    assert (status, said["error"]["code"]) == (400, "unsupported_parameter")
    assert said["error"]["param"] == param


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"prompt": None}, "missing_required_parameter", "prompt"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": 7}, "invalid_type", "prompt"),
        ({"prompt": {}}, "invalid_type", "prompt"),
        ({"model": None}, "missing_required_parameter", "model"),
        ({"temperature": 9}, "invalid_value", "temperature"),
        ({"n": 0}, "invalid_value", "n"),
        ({"user": 7}, "invalid_type", "user"),
    ],
)
async def test_what_is_malformed_is_told_by_its_field(change, code, param):
    async with Serving() as server:
        status, _, said = await server.post(PATH, json={**ASK, **change})
    assert (status, said["error"]["code"], said["error"]["param"]) == (400, code, param)


@pytest.mark.parametrize("logprobs", [None, False])
async def test_values_that_ask_for_nothing_pass_and_others_are_told(logprobs):
    nothing = {
        "echo": False,
        "suffix": None,
        "logprobs": logprobs,
        "n": 1,
        "best_of": 1,
        "user": "u",
    }
    async with Serving() as server:
        status, headers, _ = await server.post(PATH, json={**ASK, **nothing, "foo": 1})
    assert (status, headers["x-batuta-ignored"]) == (200, "user, foo")


async def test_an_error_after_the_200_has_no_clean_end():
    def fail(_):
        raise ProviderOverloadedError("gone")

    async with Serving(ada=ScriptedClient(fail)) as server:
        async with server.http.post(PATH, json={**ASK, "stream": True}) as answer:
            text = (await answer.read()).decode()
    assert json.loads(text.removeprefix("data: "))["error"]["code"] == "upstream_error"
    assert "[DONE]" not in text and "finish_reason" not in text


async def test_keys_budgets_and_places_bind_it_too(store):
    async with KeyedServer(store) as keyed:
        narrow = await keyed.key(models=("worker/bob",))
        assert (await keyed.ask(narrow, PATH, json=ASK))[0] == 403
        slow = await keyed.key(rpm=1)
        assert [(await keyed.ask(slow, PATH, json=ASK))[0] for _ in range(2)] == [200, 429]
        assert (await keyed.ask(None, PATH, json=ASK))[0] == 401
        assert len(await stored(store)) == 1


async def test_whoever_hangs_up_is_not_worked_for(store):
    ada = Halting(("Hel",))
    async with Serving(scripted_state({"ada": ada}, store=store)) as server:
        async with server.http.post(PATH, json={**ASK, "stream": True}) as answer:
            await answer.content.readany()
        await ada.cancelled.wait()
    [run] = await stored(store)
    assert run.outcome == "cancelled"
