"""Whole answers, by the client that everybody uses."""

import re

import openai
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Finish, Limits, Reply, ToolCall, Usage
from batuta.errors import (
    BadRequestError,
    ContextLengthError,
    ProviderAuthError,
    ProviderOverloadedError,
    RateLimitError,
)
from gateway.live_server import HI, PRICE, Breaking, Buggy, Halting, Serving, scripted_state, stored

pytestmark = pytest.mark.anyio

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


async def test_mini_answers_with_the_best_worker():
    async with Serving(
        ada=ScriptedClient(["Hello."], price=PRICE), bob=ScriptedClient([])
    ) as server:
        answer = await server.openai.chat.completions.with_raw_response.create(
            model="batuta-mini",
            messages=HI,  # pyright: ignore[reportArgumentType]
        )
        got = answer.parse()
    assert got.choices[0].message.content == "Hello."
    assert got.choices[0].finish_reason == "stop"
    assert got.model == "batuta-mini"
    assert got.object == "chat.completion"
    assert answer.headers["x-batuta-outcome"] == "answered"
    assert got.id == f"chatcmpl-{answer.headers['x-batuta-run-id']}"
    assert float(answer.headers["x-batuta-cost-usd"]) > 0
    assert answer.headers["x-request-id"].startswith("req_")
    assert int(answer.headers["openai-processing-ms"]) >= 0


async def test_ultra_runs_the_workflow_and_counts_it_apart():
    first = Reply(
        text="Thoughts.",
        usage=Usage(calls=1, input=100, cached=60, cache_write=0, output=20, reasoning=5),
    )
    last = Reply(
        text="The end.",
        usage=Usage(calls=1, input=200, cached=10, cache_write=3, output=30, reasoning=7),
    )
    async with Serving(ada=ScriptedClient([first]), bob=ScriptedClient([last])) as server:
        got = await server.openai.chat.completions.create(model="batuta-ultra", messages=HI)  # pyright: ignore[reportArgumentType]
    assert got.choices[0].message.content == "The end."
    usage = got.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (200, 30, 350)
    assert usage.prompt_tokens_details.model_dump(exclude_none=True) == {
        "cached_tokens": 10,
        "cache_write_tokens": 3,
        "orchestration_input_tokens": 100,
        "orchestration_input_cached_tokens": 60,
    }
    assert usage.completion_tokens_details.reasoning_tokens == 7
    assert usage.completion_tokens_details.orchestration_output_tokens == 20  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_worker_is_passed_through_with_tools_images_and_settings():
    reply = Reply(
        text="",
        reasoning="I look.",
        tool_calls=(ToolCall(id="c1", name="weather", arguments='{"in":"Rome"}'),),
        finish=Finish.TOOL_CALLS,
    )
    ada = ScriptedClient([reply])
    picture = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,AA", "detail": "low"},
    }
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "What?"}, picture]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c0", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "sunny"},
    ]
    async with Serving(scripted_state({"ada": ada}, seeing=("ada",))) as server:
        got = await server.openai.chat.completions.create(
            model="worker/ada",
            messages=messages,
            tools=[WEATHER],  # pyright: ignore[reportArgumentType]
            tool_choice={"type": "function", "function": {"name": "weather"}},
            parallel_tool_calls=False,
            temperature=0.5,
            top_p=0.9,
            max_completion_tokens=7,
            stop="END",
            seed=4,
            reasoning_effort="high",
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
        )
    choice = got.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.reasoning_content == "I look."  # pyright: ignore[reportAttributeAccessIssue]
    assert choice.message.tool_calls[0].function.arguments == '{"in":"Rome"}'  # pyright: ignore[reportAttributeAccessIssue]
    asked = ada.requests[0]
    assert [message.role.value for message in asked.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert asked.messages[1].images[0].detail == "low"
    assert asked.messages[2].reasoning == "hm"
    assert asked.messages[3].parts[0].call_id == "c0"  # pyright: ignore[reportAttributeAccessIssue]
    assert asked.tools[0].name == "weather"
    assert asked.tool_choice == "weather"
    assert asked.parallel_tool_calls is False
    assert asked.response_format.kind == "json_schema"
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.5, 0.9, 7)
    assert (sampling.stop, sampling.seed, sampling.effort) == (("END",), 4, "high")


async def test_allowed_tools_leave_the_others_out():
    calls = (ToolCall(id="c1", name="other", arguments="{}"),)
    ada = ScriptedClient([Reply(text="", tool_calls=calls, finish=Finish.TOOL_CALLS)])
    other = {"type": "function", "function": {"name": "other"}}
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "other"}}],
        },
    }
    async with Serving(ada=ada) as server:
        body = {
            "model": "worker/ada",
            "messages": HI,
            "tools": [WEATHER, other],
            "tool_choice": choice,
        }
        status, _, _ = await server.post(json=body)
    assert status == 200
    assert [tool.name for tool in ada.requests[0].tools] == ["other"]
    assert ada.requests[0].tool_choice == "required"


async def test_length_and_unknown_fields():
    ada = ScriptedClient([Reply(text="cut", finish=Finish.LENGTH)])
    async with Serving(ada=ada) as server:
        body = {"model": "worker/ada", "messages": HI, "top_a": 3, "bad name\n": 1}
        status, headers, got = await server.post(json=body)
    assert status == 200
    assert got["choices"][0]["finish_reason"] == "length"
    assert headers["x-batuta-ignored"] == "top_a"
    assert headers["x-batuta-unpriced-calls"] == "1"
    assert "x-batuta-cost-usd" not in headers


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ContextLengthError("at most 10 tokens"), 400, "context_length_exceeded"),
        (BadRequestError("no such thing, see https://up.example/x?key=1"), 400, "bad_request"),
        (RateLimitError("slow", retry_after=2.5), 429, "rate_limit_exceeded"),
        (
            ProviderOverloadedError("https://up.example sk-abcdef123456 is down"),
            502,
            "upstream_error",
        ),
        (ProviderAuthError("sk-abcdef123456 is wrong"), 502, "upstream_error"),
    ],
)
async def test_a_workers_errors_are_told_without_its_secrets(error, status, code):
    async with Serving(ada=ScriptedClient([error])) as server:
        got, headers, body = await server.post(json={"model": "worker/ada", "messages": HI})
    assert (got, body["error"]["code"]) == (status, code)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "example" not in body["error"]["message"]
    assert "sk-" not in body["error"]["message"]
    assert headers["x-batuta-outcome"] == "failed"
    if status == 429:
        assert (headers["retry-after"], headers["retry-after-ms"]) == ("3", "2500")


async def test_the_openai_client_sees_its_own_errors():
    async with Serving(ada=ScriptedClient([RateLimitError("slow")])) as server:
        with pytest.raises(openai.RateLimitError):
            await server.openai.chat.completions.create(model="worker/ada", messages=HI)  # pyright: ignore[reportArgumentType]
        with pytest.raises(openai.NotFoundError) as caught:
            await server.openai.chat.completions.create(model="nobody", messages=HI)  # pyright: ignore[reportArgumentType]
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


async def test_limits_of_the_caller():
    two = {"ada": ScriptedClient(lambda _: "First."), "bob": ScriptedClient(lambda _: "Last.")}
    async with Serving(scripted_state(two)) as server:

        async def ask(**wishes):
            body = {"model": "batuta-ultra", "messages": HI, "orchestration": wishes}
            status, headers, got = await server.post(json=body)
            return status, headers, got

        status, headers, got = await ask(max_tokens=1)
        assert (status, headers["x-batuta-outcome"]) == (429, "limited")
        assert got["error"]["code"] == "budget_exceeded"
        status, headers, got = await ask(max_cost_usd=0)
        assert (status, got["error"]["code"]) == (429, "budget_exceeded")
        assert headers["x-should-retry"] == "false"
        _, _, got = await ask(max_cost_usd=1e-6)
        assert re.search(r"the next call may cost \$0\.\d+, of ", got["error"]["message"]), got
        status, headers, got = await ask(workers_deny=["bob"], trace=True)
        assert status == 200
        assert [w["id"] for w in got["orchestration"]["header"]["pool"]["workers"]] == ["ada"]


async def test_a_workflow_by_hand():
    ada, bob = ScriptedClient(["One.", "Three."]), ScriptedClient(["Two."])
    steps = [
        {"worker": "ada", "subtask": "Begin."},
        {"worker": "bob", "subtask": "Go on.", "access": [0]},
        {"worker": "ada", "subtask": "End.", "access": [1, 0]},
    ]
    async with Serving(ada=ada, bob=bob) as server:
        wishes = {"workflow": {"steps": steps}, "trace": True}
        body = {"model": "batuta-ultra", "messages": HI, "orchestration": wishes}
        status, _, got = await server.post(json=body)
    assert status == 200
    assert got["choices"][0]["message"]["content"] == "Three."
    assert got["orchestration"]["header"]["conductor"] == "by-hand"
    assert "Two." in "".join(message.text for message in ada.requests[1].messages)


async def test_a_deadline_is_a_504():
    async with Serving(ada=Halting()) as server:
        body = {"model": "batuta-mini", "messages": HI, "orchestration": {"deadline_s": 0.05}}
        status, _, got = await server.post(json=body)
    assert (status, got["error"]["code"]) == (504, "deadline_exceeded")


async def test_the_operators_limits_are_not_raised():
    app_state = scripted_state({"ada": Halting()}, limits={"mini": Limits(seconds=0.05)})
    async with Serving(app_state) as server:
        body = {"model": "batuta-mini", "messages": HI, "orchestration": {"deadline_s": 600}}
        status, _, _ = await server.post(json=body)
    assert status == 504


async def test_a_declined_question_says_so():
    ada = ScriptedClient([Reply(text="I do not know.", finish=Finish.DECLINED)])
    async with Serving(ada=ada) as server:
        status, headers, got = await server.post(json={"model": "batuta-mini", "messages": HI})
    assert (status, headers["x-batuta-outcome"]) == (200, "declined")
    assert got["choices"][0]["finish_reason"] == "stop"


async def test_our_own_fault_is_a_500_that_tells_and_logs_no_content(caplog):
    app_state = scripted_state({"ada": ScriptedClient([])}, conductor=Buggy())
    async with Serving(app_state) as server:
        status, headers, body = await server.post(json={"model": "batuta-ultra", "messages": HI})
    assert (status, body["error"]["code"]) == (500, "server_error")
    assert headers["x-request-id"]
    assert "secret" not in str(body)
    assert "RuntimeError" in caplog.text
    assert "secret content" not in caplog.text


async def test_store_false_is_not_stored(store):
    app_state = scripted_state({"ada": ScriptedClient(lambda _: "yes")}, store=store)
    async with Serving(app_state) as server:
        for keep in (False, True):
            await server.post(json={"model": "batuta-mini", "messages": HI, "store": keep})
    assert len(await stored(store)) == 1


async def test_odd_text_of_a_worker_still_reaches_the_caller():
    async with Serving(ada=ScriptedClient(["half \ud83d pair"])) as server:
        got = await server.openai.chat.completions.create(model="batuta-mini", messages=HI)  # pyright: ignore[reportArgumentType]
    assert got.choices[0].message.content.startswith("half")


async def test_a_broken_worker_is_replaced_in_a_whole_answer():
    async with Serving(ada=Breaking(()), bob=ScriptedClient(["I can."])) as server:
        got = await server.openai.chat.completions.create(model="batuta-mini", messages=HI)  # pyright: ignore[reportArgumentType]
    assert got.choices[0].message.content == "I can."
