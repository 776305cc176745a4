"""Anthropic's dialect: bodies, events, errors in its own form; driven by its own client."""

import anyio
import orjson
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Finish, Reply, ToolCall, Usage
from batuta.errors import RateLimitError
from fakes.sdks import anthropic
from gateway.live_server import (
    HI,
    Breaking,
    Halting,
    Serving,
    StreamTimeouts,
    scripted_state,
    server_state,
)

pytestmark = pytest.mark.anyio

WEATHER = {
    "name": "weather",
    "description": "The weather.",
    "input_schema": {"type": "object", "properties": {"in": {"type": "string"}}},
}
CALLS = Reply(
    text="I look.",
    reasoning="Hm.",
    tool_calls=(
        ToolCall(id="c1", name="weather", arguments='{"in":"Rome"}'),
        ToolCall(id="c2", name="weather", arguments=""),
    ),
    finish=Finish.TOOL_CALLS,
)
THINK = {"type": "enabled", "budget_tokens": 9_000}


def client(server):
    return anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)


def body(**fields):
    return {"model": "batuta-ultra", "max_tokens": 50, "messages": HI, **fields}


async def events(server, **fields):
    async with server.http.post("/v1/messages", json=body(stream=True, **fields)) as response:
        text = (await response.read()).decode()
    got = []
    for frame in text[:-2].split("\n\n"):
        kind, data = frame.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        got.append(event)
    return got


async def test_a_message_by_the_anthropic_client():
    first = Reply(
        text="Thoughts.",
        usage=Usage(calls=1, input=100, cached=60, cache_write=0, output=20, reasoning=5),
    )
    last = Reply(
        text="The end.",
        usage=Usage(calls=1, input=200, cached=10, cache_write=3, output=30, reasoning=7),
    )
    async with (
        Serving(ada=ScriptedClient([first]), bob=ScriptedClient([last])) as server,
        client(server) as api,
    ):
        raw = await api.messages.with_raw_response.create(**body(system="Be kind."))
        got = await raw.parse()
    assert (got.content[0].text, got.stop_reason, got.role) == ("The end.", "end_turn", "assistant")
    assert got.id == f"msg_{raw.headers['x-batuta-run-id']}"
    assert raw.headers["request-id"] == raw.headers["x-request-id"]
    usage = got.usage
    assert (usage.input_tokens, usage.output_tokens) == (187, 30)
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (10, 3)
    extra = usage.model_extra
    assert extra["orchestration_input_tokens"] == 100
    assert extra["orchestration_input_cached_tokens"] == 60
    assert extra["orchestration_output_tokens"] == 20


async def test_what_a_worker_is_asked():
    ada = ScriptedClient([CALLS])
    picture = {"type": "base64", "media_type": "image/png", "data": "AA"}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "What?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "mine", "signature": "batuta-reasoning"},
                {"type": "thinking", "thinking": "progress", "signature": "batuta-progress"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c0", "name": "weather", "input": {"in": "Rome"}},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c0",
                    "content": [
                        {"type": "text", "text": "sunny"},
                        {"type": "image", "source": picture},
                    ],
                },
                {"type": "tool_result", "tool_use_id": "c1", "content": "no", "is_error": True},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    async with Serving(seeing({"ada": ada})) as server, client(server) as api:
        await api.messages.create(
            model="worker/ada",
            max_tokens=7,
            messages=turns,
            system=[{"type": "text", "text": "Be kind."}],
            tools=[WEATHER],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            stop_sequences=["END"],
            thinking={"type": "disabled"},
            metadata={"user_id": "u"},
            extra_body={"temperature": 0.5},
        )
    asked = ada.requests[0]
    roles = [message.role.value for message in asked.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]
    spoken = asked.messages[2]
    assert (spoken.text, spoken.reasoning) == ("I look.", "mine")
    assert spoken.parts[1].arguments == '{"in":"Rome"}'  # pyright: ignore[reportAttributeAccessIssue]
    assert [m.parts[0].content for m in asked.messages[3:5]] == ["sunny", "Error: no"]  # pyright: ignore[reportAttributeAccessIssue]
    assert asked.messages[5].images[0].url == "data:image/png;base64,AA=="
    assert asked.messages[5].text.endswith("And?")
    assert (asked.tool_choice, asked.parallel_tool_calls) == ("required", False)
    sampling = asked.sampling
    assert (sampling.max_tokens, sampling.stop, sampling.temperature) == (7, ("END",), 0.5)


def seeing(clients):
    """A server whose workers see pictures."""
    from dataclasses import replace

    from batuta.core import Pool
    from batuta.gateway import served_models
    from gateway.live_server import pool_of

    pool = Pool(tuple(replace(worker, tags=("vision",)) for worker in pool_of(*clients)))
    return server_state(pool, clients, served_models(pool))


async def test_the_events_of_a_workflow():
    app_state = {
        "ada": ScriptedClient(lambda _: "Thoughts."),
        "bob": ScriptedClient(lambda _: "The end of it."),
    }
    async with Serving(scripted_state(app_state)) as server:
        shown = await events(server, thinking=THINK, max_tokens=10_000)
        hidden = await events(server)
    kinds = [event["type"] for event in shown]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    deltas = [event["delta"] for event in shown if event["type"] == "content_block_delta"]
    told = "".join(delta.get("thinking", "") for delta in deltas)
    assert told == "Plan: 2 steps\nStep 1/2: ada — Think.\nStep 2/2: bob — Answer.\n"
    assert "".join(delta.get("text", "") for delta in deltas) == "The end of it."
    blocks = [event for event in hidden if event["type"] == "content_block_start"]
    assert [block["content_block"]["type"] for block in blocks] == ["text"]
    assert shown[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert shown[-2]["usage"]["output_tokens"] > 0


async def test_thinking_and_calls_are_streamed_by_the_anthropic_client():
    async with Serving(ada=ScriptedClient(lambda _: CALLS)) as server, client(server) as api:
        wanted = body(model="worker/ada", tools=[WEATHER], thinking=THINK, max_tokens=10_000)
        async with api.messages.stream(**wanted) as stream:
            streamed = await stream.get_final_message()
        whole = await api.messages.create(**wanted)
        del wanted["thinking"]
        quiet = await api.messages.create(**wanted)
    assert [block.type for block in streamed.content] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert [block.to_dict() for block in streamed.content[2:]] == [
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"in": "Rome"}},
        {"type": "tool_use", "id": "c2", "name": "weather", "input": {}},
    ]
    assert streamed.stop_reason == whole.stop_reason == "tool_use"
    assert [block.to_dict() for block in whole.content[2:]] == [
        block.to_dict() for block in streamed.content[2:]
    ]
    assert [block.type for block in quiet.content] == ["text", "tool_use", "tool_use"]


async def test_a_cut_answer_says_so():
    reply = Reply(text="cut", finish=Finish.LENGTH)
    async with Serving(ada=ScriptedClient(lambda _: reply)) as server:
        got = await events(server, model="worker/ada")
    assert got[-2]["delta"]["stop_reason"] == "max_tokens"


async def test_an_error_after_the_200_is_an_error_event():
    app_state = scripted_state({"ada": Breaking(("Half an ",)), "bob": ScriptedClient(["x"])})
    async with Serving(app_state) as server, client(server) as api:
        got = await events(server, model="batuta-mini")
        with pytest.raises(anthropic.APIStatusError):
            async with api.messages.stream(**body(model="batuta-mini")) as stream:
                await stream.get_final_message()
    assert got[-1]["type"] == "error"
    assert got[-1]["error"]["code"] == "upstream_error"
    assert got[-1]["request_id"].startswith("req_")
    assert "example" not in got[-1]["error"]["message"]
    assert "message_stop" not in [event["type"] for event in got]


async def test_signs_of_life_are_pings():
    app_state = scripted_state({"ada": Halting()}, stream_timeouts=StreamTimeouts(keep_alive=0.02))
    async with Serving(app_state) as server:
        got = await events(server, model="worker/ada", orchestration={"deadline_s": 0.15})
    assert [event["type"] for event in got].count("ping") > 2
    assert got[-1]["error"]["type"] == "timeout_error"


async def test_a_reader_who_leaves_ends_the_calls():
    slow = Halting(("Half",))
    async with Serving(ada=slow) as server:
        wanted = body(model="worker/ada", stream=True)
        async with server.http.post("/v1/messages", json=wanted) as response:
            await response.content.readany()
            await slow.started.wait()
        with anyio.fail_after(60):
            await slow.cancelled.wait()


async def test_errors_have_the_dialects_form():
    async with (
        Serving(ada=ScriptedClient([RateLimitError("slow")])) as server,
        client(server) as api,
    ):
        with pytest.raises(anthropic.RateLimitError):
            await api.messages.create(**body(model="worker/ada"))
        with pytest.raises(anthropic.NotFoundError) as caught:
            await api.messages.create(**body(model="nobody"))
        assert caught.value.body["error"]["type"] == "not_found_error"
        assert caught.value.body["request_id"] == caught.value.request_id
        status, got = await server.get("/v1/messages")
        assert (status, got["type"], got["error"]["code"]) == (405, "error", "method_not_allowed")
        status, _, got = await server.post("/v1/messages", body=b"{")
        assert (status, got["error"]["type"]) == (400, "invalid_request_error")


async def test_tokens_are_counted_by_estimate():
    async with Serving() as server, client(server) as api:
        few = await api.messages.count_tokens(model="batuta-mini", messages=HI)
        more = await api.messages.count_tokens(
            model="batuta-mini",
            messages=HI,
            system="x" * 400,
            tools=[WEATHER],
        )
        with pytest.raises(anthropic.NotFoundError):
            await api.messages.count_tokens(model="nobody", messages=HI)
    assert more.input_tokens >= few.input_tokens + 100


async def test_the_models_are_listed_for_anthropics_clients():
    async with Serving() as server, client(server) as api:
        listed = [model.id async for model in api.models.list()]
        one = await api.models.retrieve("batuta-mini")
    assert "worker/ada" in listed
    assert (one.display_name, one.type, one.created_at.tzinfo is None) == (
        "batuta-mini",
        "model",
        False,
    )


async def test_tools_of_others_are_left_out_and_told():
    tools = [WEATHER, {"type": "web_search_20250305", "name": "web_search"}]
    ada = ScriptedClient(["ok"])
    async with Serving(ada=ada) as server:
        wanted = body(model="worker/ada", tools=tools, context_management={"edits": []})
        status, headers, _ = await server.post("/v1/messages", json=wanted)
    assert status == 200
    assert headers["x-batuta-ignored"] == "context_management, tools.web_search_20250305"
    assert [tool.name for tool in ada.requests[0].tools] == ["weather"]
