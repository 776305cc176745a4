"""The accents of chat completions."""

from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import OpenAIChat, Secret
from batuta.clients.chat_fold import ChatFold, told_of, usage_of
from batuta.clients.exchange import Refused
from batuta.clients.openai_chat import (
    COMPATIBLE,
    CONTINUING,
    DEEPSEEK,
    OPENAI,
    OPENROUTER,
    ChatWire,
)
from batuta.core import Finish, Message, Request, Role, Sampling, Text, ToolCall, user
from clients.cases import Ear, worker
from fakes import FakeOpenAI, Said
from fakes.server import KEY

pytestmark = pytest.mark.anyio
HOT = Request((user("x"),), Sampling(temperature=0.5, top_p=0.9, max_tokens=9, effort="max"))


def body(model, dialect, request=HOT):
    return ChatWire(model, dialect).body(request, stream=False)


def test_openai_s_own_accent():
    sent = body("gpt-5-mini", OPENAI)
    assert sent["max_completion_tokens"] == 9
    assert sent["reasoning_effort"] == "xhigh"
    assert "temperature" not in sent
    assert "top_p" not in sent
    sent = body("gpt-4.1", OPENAI)
    assert sent["temperature"] == 0.5
    assert "reasoning_effort" not in sent


def test_the_accents_of_others():
    assert body("m", COMPATIBLE)["max_tokens"] == 9
    assert body("m", COMPATIBLE)["reasoning_effort"] == "max"
    assert body("m", OPENROUTER)["reasoning"] == {"effort": "xhigh"}
    assert body("m", OPENROUTER)["usage"] == {"include": True}
    assert "reasoning_effort" not in body("m", DEEPSEEK)


def test_reasoning_is_given_back_where_it_is_wanted():
    said = Message(Role.ASSISTANT, (Text("a"),), reasoning="because")
    request = Request((user("x"), said, user("y")))
    assert body("m", DEEPSEEK, request)["messages"][1]["reasoning_content"] == "because"
    assert body("m", OPENROUTER, request)["messages"][1]["reasoning"] == "because"
    assert "reasoning" not in str(body("m", OPENAI, request))


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_prefill_begins_the_reply_where_it_can(http, streaming):
    request = Request((user("Count."),), prefill="One, ")
    async with FakeOpenAI("two.", strict_openai=False) as server:
        ear = Ear(streaming=streaming)
        client = OpenAIChat(
            worker(), http, base_url=server.url, key=Secret(KEY), dialect=CONTINUING
        )
        reply = await client.complete(request, ear)
    sent = server.requests[0].body
    assert reply.text == "One, two."
    assert not streaming or ear.text == reply.text
    assert sent["messages"][-1] == {"role": "assistant", "content": "One, "}
    assert sent["continue_final_message"] is True
    assert sent["add_generation_prompt"] is False
    assert len(body("m", OPENAI, request)["messages"]) == 1


@pytest.mark.parametrize("streaming", [False, True])
async def test_openrouter_s_own_cost_is_believed(http, streaming):
    usage = {"prompt_tokens": 5, "completion_tokens": 5, "cost": 0.0123}
    async with FakeOpenAI(Said("x", usage=usage), strict_openai=False) as server:
        client = OpenAIChat(
            worker(), http, base_url=server.url, key=Secret(KEY), dialect=OPENROUTER
        )
        reply = await client.complete(HOT, Ear(streaming=streaming))
    assert reply.cost.usd == Decimal("0.0123")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_reasoning_has_many_names(http, field, streaming):
    async with FakeOpenAI(Said("x", reasoning="why not")) as server:
        server.reasoning_field = field
        client = OpenAIChat(worker(), http, base_url=server.url, key=Secret(KEY))
        assert (await client.complete(HOT, Ear(streaming=streaming))).reasoning == "why not"


def folded(*deltas):
    fold = ChatFold()
    for delta in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        fold.take("", orjson.dumps({"choices": [choice]}))
    return fold.told().reply


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
    assert same.tool_calls == (ToolCall("a", "f", "{}"), ToolCall("b", "f", "[]"))
    none = folded(call("a", "{"), call(None, "}"), call("b", {"x": 1}))
    assert none.tool_calls == (ToolCall("a", "f", "{}"), ToolCall("b", "f", '{"x":1}'))
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
    assert told_of(data).reply.finish is finish


def test_refusals_parts_and_errors():
    said = told_of(
        {"choices": [{"message": {"content": None, "refusal": "No."}, "finish_reason": "stop"}]}
    )
    assert (said.reply.text, said.reply.finish) == ("No.", Finish.CONTENT_FILTER)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert told_of({"choices": [{"message": {"content": parts}}]}).reply.text == "ab"
    with pytest.raises(Refused):
        told_of({"error": {"message": "x"}})


def test_reasoning_counted_beside_the_completion_is_added_to_it():
    details = {"completion_tokens_details": {"reasoning_tokens": 50}}
    beside = usage_of({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 65, **details})
    assert (beside.output, beside.reasoning) == (55, 50)
    cached = usage_of({"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 99})
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
    told = usage_of(usage)
    assert told is None or told.calls == 1
