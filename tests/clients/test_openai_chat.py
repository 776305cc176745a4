"""The accents of chat completions."""

from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import OpenAIChatClient, Secret
from batuta.clients.decoding import ErrorReply
from batuta.clients.openai.client import (
    COMPATIBLE_DIALECT,
    DEEPSEEK_DIALECT,
    OPENAI_DIALECT,
    OPENROUTER_DIALECT,
    PREFILL_DIALECT,
    OpenAIChatAdapter,
)
from batuta.clients.openai.stream import OpenAIStreamAccumulator, parse_completion, parse_usage
from batuta.core import Finish, Message, Request, Role, Sampling, Text, ToolCall, user_message
from clients.cases import RecordingListener, worker
from fakes import FakeOpenAI, Said
from fakes.server import KEY

pytestmark = pytest.mark.anyio
HOT = Request(
    messages=(user_message("x"),),
    sampling=Sampling(temperature=0.5, top_p=0.9, max_tokens=9, effort="max"),
)


def body(model, dialect, request=HOT):
    return OpenAIChatAdapter(model, dialect).build_body(request, stream=False)


def test_openai_s_own_accent():
    sent = body("gpt-5-mini", OPENAI_DIALECT)
    assert sent["max_completion_tokens"] == 9
    assert sent["reasoning_effort"] == "high", "GPT-5 knows nothing above it"
    assert body("gpt-5.2", OPENAI_DIALECT)["reasoning_effort"] == "xhigh"
    assert "temperature" not in sent
    assert "top_p" not in sent
    sent = body("gpt-4.1", OPENAI_DIALECT)
    assert sent["temperature"] == 0.5
    assert "reasoning_effort" not in sent


def test_the_accents_of_others():
    assert body("m", COMPATIBLE_DIALECT)["max_tokens"] == 9
    assert body("m", COMPATIBLE_DIALECT)["reasoning_effort"] == "max"
    assert body("m", OPENROUTER_DIALECT)["reasoning"] == {"effort": "xhigh"}
    assert body("m", OPENROUTER_DIALECT)["usage"] == {"include": True}
    assert "reasoning_effort" not in body("m", DEEPSEEK_DIALECT)


def test_reasoning_is_given_back_where_it_is_wanted():
    said = Message(role=Role.ASSISTANT, parts=(Text("a"),), reasoning="because")
    request = Request(messages=(user_message("x"), said, user_message("y")))
    assert body("m", DEEPSEEK_DIALECT, request)["messages"][1]["reasoning_content"] == "because"
    assert body("m", OPENROUTER_DIALECT, request)["messages"][1]["reasoning"] == "because"
    assert "reasoning" not in str(body("m", OPENAI_DIALECT, request))


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_prefill_begins_the_reply_where_it_can(http, streaming):
    request = Request(messages=(user_message("Count."),), prefill="One, ")
    async with FakeOpenAI("two.", strict_openai=False) as server:
        listener = RecordingListener(streaming=streaming)
        client = OpenAIChatClient(
            worker(), http, base_url=server.url, key=Secret(KEY), dialect=PREFILL_DIALECT
        )
        reply = await client.complete(request, listener)
    sent = server.requests[0].body
    assert reply.text == "One, two."
    assert not streaming or listener.text == reply.text
    assert sent["messages"][-1] == {"role": "assistant", "content": "One, "}
    assert sent["continue_final_message"] is True
    assert sent["add_generation_prompt"] is False
    assert len(body("m", OPENAI_DIALECT, request)["messages"]) == 1


@pytest.mark.parametrize("streaming", [False, True])
async def test_openrouter_s_own_cost_is_believed(http, streaming):
    usage = {"prompt_tokens": 5, "completion_tokens": 5, "cost": 0.0123}
    async with FakeOpenAI(Said("x", usage=usage), strict_openai=False) as server:
        client = OpenAIChatClient(
            worker(), http, base_url=server.url, key=Secret(KEY), dialect=OPENROUTER_DIALECT
        )
        reply = await client.complete(HOT, RecordingListener(streaming=streaming))
    assert reply.cost.usd == Decimal("0.0123")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_reasoning_has_many_names(http, field, streaming):
    async with FakeOpenAI(Said("x", reasoning="why not")) as server:
        server.reasoning_field = field
        client = OpenAIChatClient(worker(), http, base_url=server.url, key=Secret(KEY))
        assert (
            await client.complete(HOT, RecordingListener(streaming=streaming))
        ).reasoning == "why not"


def folded(*deltas):
    fold = OpenAIStreamAccumulator()
    for delta in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        fold.add_event("", orjson.dumps({"choices": [choice]}))
    return fold.result().reply


def test_reasoning_told_twice_is_taken_once():
    detail = [
        {"type": "reasoning.text", "text": "a"},
        {"type": "reasoning.summary", "summary": "b"},
    ]
    assert folded({"reasoning": "a", "reasoning_details": detail}).reasoning == "a"
    assert folded({"reasoning_details": detail}).reasoning == "ab"


def test_tool_calls_of_servers_that_number_them_badly():
    def call(call_id, arguments, index=None):
        function = {"name": "f" if call_id else None, "arguments": arguments}
        return {
            "tool_calls": [
                {"id": call_id, "function": function} | ({} if index is None else {"index": index})
            ]
        }

    same = folded(call("a", "{", 0), call(None, "}", 0), call("b", "[]", 0))
    assert same.tool_calls == (
        ToolCall(id="a", name="f", arguments="{}"),
        ToolCall(id="b", name="f", arguments="[]"),
    )
    none = folded(call("a", "{"), call(None, "}"), call("b", {"x": 1}))
    assert none.tool_calls == (
        ToolCall(id="a", name="f", arguments="{}"),
        ToolCall(id="b", name="f", arguments='{"x":1}'),
    )
    assert none.finish is Finish.TOOL_CALLS
    assert folded(call("", "{}", 0)).tool_calls[0].id.startswith("call_")


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", Finish.STOP),
        ("length", Finish.LENGTH),
        ("content_filter", Finish.CONTENT_FILTER),
        ("eos", Finish.STOP),
        (None, Finish.STOP),
    ],
)
def test_finish_reasons(reason, finish):
    data = {"choices": [{"message": {"content": "x"}, "finish_reason": reason}]}
    assert parse_completion(data).reply.finish is finish


def test_refusals_parts_and_errors():
    said = parse_completion(
        {"choices": [{"message": {"content": None, "refusal": "No."}, "finish_reason": "stop"}]}
    )
    assert (said.reply.text, said.reply.finish) == ("No.", Finish.CONTENT_FILTER)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parse_completion({"choices": [{"message": {"content": parts}}]}).reply.text == "ab"
    with pytest.raises(ErrorReply):
        parse_completion({"error": {"message": "x"}})


def test_reasoning_counted_beside_the_completion_is_added_to_it():
    details = {"completion_tokens_details": {"reasoning_tokens": 50}}
    beside = parse_usage(
        {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 65, **details}
    )
    assert (beside.output, beside.reasoning) == (55, 50)
    cached = parse_usage(
        {"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 99}
    )
    assert cached.cached == 10


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "prompt_tokens",
                    "completion_tokens",
                    "total_tokens",
                    "prompt_tokens_details",
                    "cached_tokens",
                    "cache_write_tokens",
                    "completion_tokens_details",
                    "reasoning_tokens",
                ]
            ),
            inner,
        )
    ),
)


@given(JSON)
def test_any_usage_is_read_or_unknown(usage):
    told = parse_usage(usage)
    assert told is None or told.calls == 1
