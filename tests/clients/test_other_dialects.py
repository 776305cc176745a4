"""What only Anthropic's and only Gemini's dialect do."""

import json
from dataclasses import replace
from decimal import Decimal

import anyio
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from batuta import errors
from batuta.clients import AnthropicClient, GeminiClient, Secret
from batuta.clients.anthropic.client import AnthropicAdapter
from batuta.clients.catalog import find_model_facts
from batuta.clients.gemini.client import GeminiAdapter
from batuta.clients.openai.client import OpenAIChatClient
from batuta.core import (
    Audio,
    Finish,
    Image,
    Message,
    Price,
    Request,
    Role,
    Sampling,
    Tool,
    ToolCall,
    ToolResult,
    Worker,
    WorkerId,
    assistant_message,
    system_message,
    user_message,
)
from batuta.core.cost_bound import bound_call_cost
from batuta.usage import ASSUMED_PRICE
from clients.cases import RecordingListener, worker
from fakes import FakeAnthropic, FakeGemini, FakeOpenAI, Said
from fakes.server import KEY

pytestmark = pytest.mark.anyio
ASK = Request(messages=(user_message("x"),))


def asked(effort, **more):
    return Request(
        messages=(user_message("x"),),
        sampling=Sampling(effort=effort, temperature=1.5, max_tokens=100),
        **more,
    )


def messages_body(model, request):
    return AnthropicAdapter(model).build_body(request, stream=False)


def gemini_body(model, request):
    return GeminiAdapter(model).build_body(request, stream=False)


def test_thinking_by_budget_by_effort_and_not_at_all():
    sent = messages_body("claude-sonnet-4-5", asked("medium"))
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": 8192}
    assert sent["max_tokens"] == 8292
    assert "temperature" not in sent
    sent = messages_body("claude-opus-4-6", asked("xhigh"))
    assert (sent["thinking"], sent["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})
    for model, effort in [("claude-3-5-haiku", "high"), ("claude-opus-4-5", "none")]:
        sent = messages_body(model, asked(effort))
        assert "thinking" not in sent
        assert sent["temperature"] == 1.0
    forced = asked("high", tools=(Tool(name="t"),), tool_choice="required")
    assert "thinking" not in messages_body("claude-opus-4-5", forced)
    assert messages_body("claude-x", ASK)["max_tokens"] == 4096


def test_turns_are_merged_and_a_user_speaks_first():
    request = Request(
        messages=(
            assistant_message("a"),
            user_message("b"),
            user_message(" "),
            user_message("c"),
            system_message("s"),
        )
    )
    sent = messages_body("m", request)
    assert sent["system"] == "s"
    assert [turn["role"] for turn in sent["messages"]] == ["user", "assistant", "user"]
    assert [block["text"] for block in sent["messages"][2]["content"]] == ["b", "c"]
    assert messages_body("m", Request(messages=(system_message("s"),)))["messages"]


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "data:text/html;base64,xx", "data:image/png,xx"]
)
@pytest.mark.parametrize("build", [messages_body, gemini_body])
def test_a_picture_that_cannot_be_sent_is_refused(build, url):
    with pytest.raises(errors.BadRequestError, match="an image must be"):
        build("m", Request(messages=(Message(role=Role.USER, parts=(Image(url=url),)),)))


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("max_tokens", Finish.LENGTH),
        ("refusal", Finish.CONTENT_FILTER),
        ("stop_sequence", Finish.STOP),
        ("pause_turn", Finish.LENGTH),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
async def test_why_anthropic_stopped(http, reason, finish, streaming):
    async with FakeAnthropic(Said("x", finish=reason)) as server:
        client = AnthropicClient(
            worker("claude-x"), http, base_url=server.url + "/v1", key=Secret(KEY)
        )
        reply = await client.complete(ASK, RecordingListener(streaming=streaming))
    assert reply.finish is finish
    assert (reply.usage.input, reply.usage.cached, reply.usage.cache_write) == (20, 6, 4)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("MAX_TOKENS", Finish.LENGTH),
        ("SAFETY", Finish.CONTENT_FILTER),
        ("BLOCKED", Finish.CONTENT_FILTER),
        ("OTHER", Finish.STOP),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
async def test_why_gemini_stopped(http, reason, finish, streaming):
    async with FakeGemini(Said("", finish=reason)) as server:
        client = GeminiClient(
            worker("models/gemini-3-x"), http, base_url=server.url, key=Secret(KEY)
        )
        reply = await client.complete(ASK, RecordingListener(streaming=streaming))
    assert not server.wrong
    assert reply.finish is finish
    assert (reply.usage.output, reply.usage.reasoning, reply.usage.cached) == (10, 3, 4)


async def test_a_function_call_that_gemini_botched_is_a_bad_reply(http):
    async with FakeGemini(Said("", finish="MALFORMED_FUNCTION_CALL")) as server:
        client = GeminiClient(worker("gemini-x"), http, base_url=server.url, key=Secret(KEY))
        for streaming in (False, True):
            with pytest.raises(errors.InvalidReplyError):
                await client.complete(ASK, RecordingListener(streaming=streaming))


@pytest.mark.parametrize("streaming", [False, True])
async def test_gemini_gives_several_answers(http, streaming):
    listener = RecordingListener(streaming=streaming)
    async with FakeGemini("It is 42.") as server:
        client = GeminiClient(
            worker("gemini-2.5-flash"), http, base_url=server.url, key=Secret(KEY)
        )
        request = Request(messages=(user_message("?"),), sampling=Sampling(choices=3))
        reply = await client.complete(request, listener)
        assert not server.wrong
        assert server.requests[0].body["generationConfig"]["candidateCount"] == 3
    texts = ["It is 42.", "It is 42. (1)", "It is 42. (2)"]
    assert [each.text for each in reply.choices] == texts
    assert reply.usage.calls == 1
    if streaming:
        said = ["".join(d.text for d in listener.deltas if d.choice == n) for n in range(3)]
        assert said == texts


GEMINI_AUDIO = {
    "promptTokenCount": 1_000,
    "candidatesTokenCount": 10,
    "cachedContentTokenCount": 100,
    "promptTokensDetails": [
        {"modality": "TEXT", "tokenCount": 100},
        {"modality": "AUDIO", "tokenCount": 900},
    ],
    "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 100}],
}
OPENAI_AUDIO = {
    "prompt_tokens": 1_000,
    "completion_tokens": 10,
    "total_tokens": 1_010,
    "prompt_tokens_details": {"cached_tokens": 100, "audio_tokens": 800},
}


@pytest.mark.parametrize(
    ("make", "usage", "name"),
    [(FakeGemini, GEMINI_AUDIO, "gemini-2.5-flash"), (FakeOpenAI, OPENAI_AUDIO, "gpt-audio")],
)
@pytest.mark.parametrize("audio", [None, Decimal(32)])
async def test_recordings_cost_what_recordings_cost(http, make, usage, name, audio):
    price = Price(input=Decimal(2), output=Decimal(10), cached=Decimal(1), audio=audio)
    who = Worker(id=WorkerId("w"), model=name, price=price)
    async with make(Said("ok", usage=usage)) as server:
        kind = GeminiClient if make is FakeGemini else OpenAIChatClient
        client = kind(who, http, base_url=server.url, key=Secret(KEY))
        reply = await client.complete(Request(messages=(user_message("?"),)))
    text = 900 * 2 + 100 * 1 + 10 * 10
    assert reply.cost.usd == Decimal(text + (0 if audio is None else 800 * (32 - 2))) / 1_000_000


def test_the_price_of_a_recording_is_looked_up_and_bounds_the_cost():
    price = find_model_facts("gemini", "gemini-2.5-flash").price
    assert price is not None and price.audio is not None and price.audio > price.input
    plain = find_model_facts("anthropic", "claude-sonnet-4-5").price
    assert plain is not None and plain.audio is None
    who = Worker(id=WorkerId("w"), model="gemini-2.5-flash", price=price)
    heard = Message(role=Role.USER, parts=(Audio(data="AAAA" * 400, format="wav"),))
    bound = bound_call_cost(Request(messages=(heard,)), who, ASSUMED_PRICE)
    flat = replace(who, price=replace(price, audio=None))
    assert (
        bound.input_usd > bound_call_cost(Request(messages=(heard,)), flat, ASSUMED_PRICE).input_usd
    )


def test_gemini_thinks_by_budget_or_by_level():
    def thinking(model, effort, most=None):
        request = asked(effort)
        request = replace(request, sampling=replace(request.sampling, max_tokens=most))
        config = gemini_body(model, request)["generationConfig"]
        return config.get("thinkingConfig")

    assert thinking("gemini-2.5-flash", "none") == {"thinkingBudget": 0, "includeThoughts": False}
    assert thinking("gemini-2.5-pro", "none")["thinkingBudget"] == 128
    for model, budget in (("flash", 150), ("pro", 150), ("flash-lite", 0)):
        assert thinking(f"gemini-2.5-{model}", "high", 300)["thinkingBudget"] == budget
    assert thinking("gemini-2.5-pro", "high", 100)["thinkingBudget"] == 128
    assert thinking("gemini-3-pro", "medium") == {"thinkingLevel": "high", "includeThoughts": True}
    assert thinking("gemini-2.0-flash", "high") is None


def test_gemini_s_results_name_their_function():
    request = Request(
        messages=(
            user_message("x"),
            Message(
                role=Role.ASSISTANT,
                parts=(
                    ToolCall(id="1", name="look", arguments="{}"),
                    ToolCall(id="2", name="hear", arguments="{}"),
                ),
            ),
            Message(
                role=Role.TOOL,
                parts=(
                    ToolResult(call_id="2", content="[1]"),
                    ToolResult(call_id="1", content="cat"),
                ),
            ),
        )
    )
    sent = gemini_body("gemini-3-pro", request)["contents"]
    assert [part["functionResponse"] for part in sent[2]["parts"]] == [
        {"id": "1", "name": "look", "response": {"result": "cat"}},
        {"id": "2", "name": "hear", "response": {"result": [1]}},
    ]
    older = gemini_body("gemini-2.5-pro", request)["contents"][2]["parts"]
    assert [part["functionResponse"]["name"] for part in older] == ["look", "hear"]
    assert all("thoughtSignature" in part for part in sent[1]["parts"])
    assert "thoughtSignature" not in str(gemini_body("gemini-2.5-pro", request))


async def test_others_have_the_loop_while_one_event_of_thousands_of_parts_is_passed_on(http):
    parts, turns = 6_400, 0
    pair = [{"text": "word "}, {"text": "hm ", "thought": True}]  # words alone are told as one
    told = {"candidates": [{"content": {"parts": pair * (parts // 2)}, "index": 0, "finishReason": "STOP"}]}  # fmt: skip
    event = b"data: " + json.dumps(told).encode() + b"\n\n"

    async def answer(request):
        return web.Response(body=event, content_type="text/event-stream")

    async def take_turns():
        nonlocal turns
        while True:
            await anyio.sleep(0)
            turns += 1

    turns_at = []

    class Listener(RecordingListener):
        async def on_delta(self, delta):
            turns_at.append(turns)

    app, listener = web.Application(), Listener(streaming=True)
    app.router.add_post("/{path:.*}", answer)
    async with TestServer(app) as server, anyio.create_task_group() as tasks:
        url = str(server.make_url("/v1beta"))
        client = GeminiClient(worker("gemini"), http, base_url=url, key=Secret(KEY))
        tasks.start_soon(take_turns)
        reply = await client.complete(ASK, listener)
        tasks.cancel_scope.cancel()
    assert reply.text == "word " * (parts // 2)
    assert turns_at[-1] - turns_at[0] >= parts // 64 - 1
