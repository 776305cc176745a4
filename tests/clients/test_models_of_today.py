"""Current models: what they refuse is not sent, and a key alone gives the newest it can call.

The fakes refuse with 400 what the makers' migration guides say is refused.
"""

import json
from dataclasses import replace

import pytest

from batuta.clients import AnthropicClient, HttpTransport, Secret
from batuta.clients.anthropic.client import AnthropicAdapter, claude_rules
from batuta.clients.catalog import ListedModel
from batuta.clients.discovery import choose_models
from batuta.clients.factory import open_provider_client
from batuta.clients.gemini.client import GeminiAdapter
from batuta.clients.openai.client import DEEPSEEK_DIALECT, OPENAI_DIALECT, OpenAIChatAdapter
from batuta.clients.openai.models import needs_responses, reasoning_effort
from batuta.clients.openai.responses import OpenAIResponsesAdapter
from batuta.clients.openai.responses_stream import ResponsesStreamAccumulator, parse_response
from batuta.clients.providers import PROVIDERS, WorkerSpec
from batuta.clients.tool_turns import RoundTripFields
from batuta.core import (
    Finish,
    Message,
    Request,
    Role,
    Sampling,
    Thought,
    Tool,
    ToolCall,
    ToolResult,
    user_message,
)
from batuta.core.cost_bound import reasons_unasked
from batuta.core.message import NativeSearch
from batuta.errors import UnsupportedFieldError
from clients.cases import RecordingListener, worker
from clients.test_pictures import PNG
from fakes import FakeAnthropic, Said
from fakes.openai_responses import FakeOpenAIResponses
from fakes.server import KEY, RuleError

pytestmark = pytest.mark.anyio
CLAUDES = (
    "claude-fable-5-2",
    "claude-opus-5-5",
    "claude-sonnet-5-5",
    "claude-haiku-5-5",
    "claude-opus-5",
    "claude-sonnet-5",
    "claude-opus-4-8",
    "claude-sonnet-4-6",
    "claude-haiku-4-5-20251001",
    "claude-3-5-haiku-latest",
)
LOOK = Tool(name="look", parameters={"type": "object", "properties": {}})
HOT = Sampling(temperature=0.2, top_p=0.9, top_k=5, max_tokens=40_000)


@pytest.fixture
async def http(anyio_backend):
    async with HttpTransport() as http:
        yield http


def asked(effort=None, choice=None, **more):
    tools = (LOOK,) if choice else ()
    return Request(
        messages=(user_message("Look."),),
        sampling=Sampling(**{"temperature": 0.2, "max_tokens": 40_000, "effort": effort} | more),
        tools=tools,
        tool_choice=choice,
    )


@pytest.mark.parametrize("model", CLAUDES)
async def test_no_claude_is_sent_what_it_refuses(http, model):
    """Temperature, budgets, forced tools, thinking turned off: every combination is taken."""
    efforts = (None, "none", "minimal", "low", "medium", "high", "xhigh", "max")
    async with FakeAnthropic("Fine.") as server:
        client = AnthropicClient(worker(model), http, base_url=server.url, key=Secret(KEY))
        for effort in efforts:
            for choice in (None, "auto", "required", "look"):
                await client.complete(asked(effort, choice))
    assert not server.wrong
    assert len(server.requests) == 32


def claude_body(model, request):
    return AnthropicAdapter(model).build_body(request, stream=False)


def test_a_call_that_cannot_be_forced_is_asked_for_in_words():
    body = claude_body("claude-opus-5-5", asked(choice="required"))
    assert "tool_choice" not in body and "Call one of the tools now" in body["system"]
    assert (
        "Call the tool look now" in claude_body("claude-opus-5-5", asked(choice="look"))["system"]
    )
    forced = claude_body("claude-haiku-5-5", asked(choice="look"))
    assert forced["tool_choice"] == {"type": "tool", "name": "look"}
    assert forced["thinking"] == {"type": "disabled"} and "system" not in forced


def test_efforts_are_said_in_the_models_own_words():
    assert claude_body("claude-opus-5-5", asked("xhigh"))["output_config"] == {"effort": "xhigh"}
    assert claude_body("claude-sonnet-4-6", asked("xhigh"))["output_config"] == {"effort": "high"}
    assert claude_body("claude-opus-5-5", asked("none"))["output_config"] == {"effort": "low"}
    assert claude_body("claude-sonnet-5-5", asked("none"))["thinking"] == {"type": "between_tools"}
    silent = claude_body("claude-opus-5-5", asked())
    assert not {"thinking", "output_config", "temperature"} & silent.keys()


def after_a_look(thought):
    """The result of a tool that a model called after that thought."""
    call = ToolCall(id="a", name="look", arguments="{}")
    return Request(
        messages=(
            user_message("Look."),
            Message(role=Role.ASSISTANT, parts=(call,), thoughts=(thought,)),
            Message(role=Role.TOOL, parts=(ToolResult(call_id="a", content="a cat"),)),
        ),
        tools=(LOOK,),
    )


@pytest.mark.parametrize("model", ["claude-opus-5-5", "claude-haiku-4-5"])
def test_what_chat_completions_gave_back_is_no_thought_of_the_messages_api(model):
    collected = RoundTripFields()
    collected.add_fields({"thinking_blocks": [{"type": "thinking", "thinking": "Hm."}]})
    thought = collected.thought(model)
    assert thought is not None
    request = replace(after_a_look(thought), sampling=Sampling(effort="high"))
    body = claude_body(model, request)
    assert [block["type"] for block in body["messages"][1]["content"]] == ["tool_use"]
    kind = body.get("thinking", {}).get("type")
    assert kind != "enabled", "the API would require the call's own reasoning beside it"


def test_thoughts_of_a_model_that_thinks_unasked_go_back_with_the_result():
    thought = Thought(model="claude-opus-5-5", text="Hm.", signature="s")
    request = after_a_look(thought)
    turns = claude_body("claude-opus-5-5", request)["messages"]
    assert [block["type"] for block in turns[1]["content"]] == ["thinking", "tool_use"]
    others = claude_body("claude-sonnet-5-5", request)["messages"]
    assert [block["type"] for block in others[1]["content"]] == ["tool_use"]


@pytest.mark.parametrize(
    ("model", "most"),
    [("claude-opus-5-5", 128_000), ("claude-opus-4-6-20260205", 128_000), ("claude-opus-7", 128_000),
     ("claude-haiku-4-5", 64_000), ("claude-opus-4-1", 32_000), ("claude-3-5-haiku", 8_192), ("else", 4_096)],
)  # fmt: skip
def test_the_models_own_limit_of_output(model, most):
    assert claude_rules(model).max_output == most


# -- OpenAI --------------------------------------------------------------------------------------


def test_which_models_need_the_responses_api():
    yes = ("gpt-5.4", "gpt-5.6-luna", "gpt-6-sol", "gpt-6.1-sol", "gpt-6-astra", "gpt-5.2-pro",
           "gpt-5.3-codex", "gpt-7")  # fmt: skip
    no = ("gpt-5", "gpt-5-mini", "gpt-5.2", "gpt-4.1-mini", "gpt-4o", "o3", "gpt-oss-120b", "llama")
    assert [needs_responses(model) for model in yes] == [True] * len(yes)
    assert [needs_responses(model) for model in no] == [False] * len(no)
    assert not needs_responses("gpt-35-turbo"), "Azure's name of generation 3.5"


def test_an_effort_that_a_model_does_not_know_becomes_the_nearest():
    table = {
        "gpt-6.1-sol": ("low", "low", "xhigh", "max"),
        "gpt-6-astra": ("low", "low", "xhigh", "max"),
        "gpt-6-luna": ("none", "low", "xhigh", "max"),
        "gpt-5.6-sol": ("none", "low", "xhigh", "xhigh"),
        "gpt-5-mini": ("minimal", "minimal", "high", "high"),
        "o3": ("low", "low", "high", "high"),
    }
    for model, wanted in table.items():
        said = [reasoning_effort(model, effort) for effort in ("none", "minimal", "xhigh", "max")]
        assert tuple(said) == wanted, model


async def test_the_provider_openai_speaks_the_api_that_the_model_needs(http):
    for model, name in (("gpt-6.1-sol", "OpenAIResponses"), ("gpt-4.1-mini", "OpenAIChat")):
        spec = WorkerSpec(worker=worker(model), provider="openai", key=Secret(KEY))
        assert repr(open_provider_client(spec, http)).startswith(f"{name}(")


def test_a_picture_that_a_model_draws_unasked_is_in_the_reply():
    drawn = {"type": "image_generation_call", "id": "ig_1", "result": PNG}
    response = {"status": "completed", "output": [drawn]}
    whole = parse_response(response, "gpt-5.4").reply
    fold, told = ResponsesStreamAccumulator("gpt-5.4"), []
    for event in (
        {"type": "response.output_item.done", "output_index": 0, "item": drawn},
        {"type": "response.completed", "response": response},
    ):
        told += fold.add_event(event["type"], json.dumps(event).encode())
    assert [image.url for image in whole.images] == [f"data:image/png;base64,{PNG}"]
    assert fold.result().reply.images == whole.images == tuple(one.image for one in told)


@pytest.mark.parametrize("streaming", [False, True])
async def test_commentary_is_no_answer_and_reasoning_goes_back_with_the_result(http, streaming):
    said = Said("It is a cat.", reasoning="Look first.", calls=(("call_a", "look", {"x": 1}),))
    async with FakeOpenAIResponses(said) as server:
        server.commentary = "I will look."
        spec = WorkerSpec(
            worker=worker("gpt-6.1-sol"), provider="openai", base_url=server.url, key=Secret(KEY)
        )
        client = open_provider_client(spec, http)
        listener = RecordingListener(streaming=streaming)
        first = asked("high", "auto")
        reply = await client.complete(first, listener)
        assert (reply.text, reply.finish) == ("It is a cat.", Finish.TOOL_CALLS)
        assert reply.reasoning == "Look first.I will look."
        assert (
            listener.text == reply.text and listener.reasoning == reply.reasoning
        ) or not streaming
        assert reply.thoughts == (Thought(model="gpt-6.1-sol", redacted="rs_1.gAAA:b"),)
        answered = Message(role=Role.ASSISTANT, parts=reply.tool_calls, thoughts=reply.thoughts)
        result = Message(role=Role.TOOL, parts=(ToolResult(call_id="call_a", content="a cat"),))
        await client.complete(Request(messages=(*first.messages, answered, result), tools=(LOOK,)))
    assert not server.wrong
    items = server.requests[1].body["input"]
    assert [item["type"] for item in items] == ["message", "reasoning", "function_call", "function_call_output"]  # fmt: skip
    assert items[1] == {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA:b"}  # fmt: skip


NATIVE = Tool(name="web_search", description="", parameters={}, native=NativeSearch(max_uses=3))


@pytest.mark.parametrize(("tools", "left"), [((), None), ((NATIVE,), ["web_search_call.action.sources"])])  # fmt: skip
async def test_a_model_that_does_not_reason_is_asked_without_encrypted_reasoning(http, tools, left):
    class NotReasoning(FakeOpenAIResponses):
        def validate(self, received):
            if "reasoning.encrypted_content" in received.body.get("include", ()):
                raise RuleError("Encrypted content is not supported with this model.")

    async with NotReasoning("Fine.") as server:
        spec = WorkerSpec(
            worker=worker("gpt-4.1-mini"),
            provider="openai",
            base_url=server.url,
            key=Secret(KEY),
            openai_api="responses",
        )
        client = open_provider_client(spec, http)
        for _ in range(2):
            reply = await client.complete(Request(messages=(user_message("Hi."),), tools=tools))
            assert reply.text == "Fine."
    assert [one.body.get("include") for one in server.requests[1:]] == [left, left]


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_reply_cut_or_filtered_says_so(http, streaming):
    words = {"max_output_tokens": Finish.LENGTH, "content_filter": Finish.CONTENT_FILTER}
    for reason, finish in words.items():
        async with FakeOpenAIResponses(Said("It is", finish=reason)) as server:
            spec = WorkerSpec(
                worker=worker("gpt-6-luna"), provider="openai", base_url=server.url, key=Secret(KEY)
            )
            listener = RecordingListener(streaming=streaming)
            reply = await open_provider_client(spec, http).complete(asked(), listener)
        assert (reply.text, reply.finish) == ("It is", finish)


@pytest.mark.parametrize("most", [1, 15, 16, 100])
async def test_a_client_that_probes_a_model_by_a_single_token_is_answered(http, most):
    async with FakeOpenAIResponses("O") as server:
        spec = WorkerSpec(
            worker=worker("gpt-6.1-sol"), provider="openai", base_url=server.url, key=Secret(KEY)
        )
        request = Request(messages=(user_message("quota"),), sampling=Sampling(max_tokens=most))
        assert (await open_provider_client(spec, http).complete(request)).text == "O"
    assert not server.wrong
    assert server.requests[0].body["max_output_tokens"] == max(most, 16)


def test_temperature_is_sent_where_the_model_does_not_reason():
    adapter = OpenAIResponsesAdapter("gpt-6-luna", OPENAI_DIALECT)
    assert adapter.build_body(asked("none"), stream=False)["temperature"] == 0.2
    assert "temperature" not in adapter.build_body(asked("low"), stream=False)
    assert "temperature" not in adapter.build_body(asked(), stream=False)


@pytest.mark.parametrize("field", [{"stop": ("END",)}, {"choices": 2}, {"logprobs": 1}, {"presence_penalty": 0.5}])  # fmt: skip
def test_what_the_responses_api_has_not_is_named(field):
    adapter = OpenAIResponsesAdapter("gpt-6-luna", OPENAI_DIALECT)
    with pytest.raises(UnsupportedFieldError, match="gpt-6-luna does not accept"):
        adapter.build_body(asked(**field), stream=False)


def test_a_refusal_is_told_apart():
    adapter = OpenAIResponsesAdapter("gpt-6-luna", OPENAI_DIALECT)
    content = [{"type": "refusal", "refusal": "I cannot help with that."}]
    whole = {"status": "completed", "output": [{"type": "message", "content": content}]}
    reply = adapter.parse_reply(whole).reply
    assert (reply.text, reply.is_refusal) == ("I cannot help with that.", True)
    fold = adapter.new_accumulator()
    event = {"type": "response.refusal.delta", "delta": "I cannot.", "output_index": 0}
    fold.add_event("", json.dumps(event).encode())
    assert fold.result().reply.is_refusal and fold.result().reply.finish is Finish.CONTENT_FILTER


# -- Gemini and DeepSeek -------------------------------------------------------------------------


def test_gemini_thinks_by_level_from_version_3_on():
    def thinking(model, effort):
        body = GeminiAdapter(model).build_body(asked(effort), stream=False)
        return body["generationConfig"]["thinkingConfig"]

    assert thinking("gemini-3.8-flash", "medium")["thinkingLevel"] == "medium"
    assert thinking("gemini-3-pro-preview", "medium")["thinkingLevel"] == "high"
    assert thinking("gemini-4-argon", "high")["thinkingLevel"] == "high"
    assert thinking("gemini-4-argon", "none") == {"thinkingBudget": 0, "includeThoughts": False}
    assert thinking("gemini-3.8-flash", "none")["thinkingLevel"] == "low"
    assert thinking("gemini-2.5-flash", "none")["thinkingBudget"] == 0
    call = Message(role=Role.ASSISTANT, parts=(ToolCall(id="a", name="look", arguments="{}"),))
    body = GeminiAdapter("gemini-4-argon").build_body(
        Request(messages=(user_message("x"), call)), stream=False
    )
    assert "thoughtSignature" in body["contents"][1]["parts"][0]


def test_deepseek_is_told_whether_to_think():
    def body(effort, model="deepseek-v4-pro"):
        return OpenAIChatAdapter(model, DEEPSEEK_DIALECT).build_body(asked(effort), stream=False)

    assert body("none")["thinking"] == {"type": "disabled"}
    assert "reasoning_effort" not in body("none")
    assert (body("low")["thinking"], body("low")["reasoning_effort"]) == (
        {"type": "enabled"},
        "high",
    )
    assert body("max")["reasoning_effort"] == "max"
    assert not {"thinking", "reasoning_effort"} & body(None).keys()
    assert not {"thinking", "reasoning_effort"} & body("high", "deepseek-chat").keys()


def test_who_reasons_unasked_gets_room_to():
    reasons = ("claude-opus-5-5", "anthropic/claude-sonnet-5.5", "gpt-6.1-sol", "gemini-4-argon",
               "deepseek-flash", "z-ai/glm-5.3", "moonshotai/kimi-k3", "qwen3.8-27b")  # fmt: skip
    others = ("claude-opus-4-8", "claude-haiku-4-5", "gpt-4.1", "deepseek-chat", "llama-3.3-70b")
    assert all(reasons_unasked(worker(model)) for model in reasons)
    assert not any(reasons_unasked(worker(model)) for model in others)


# -- What a key can call -------------------------------------------------------------------------


def chosen(provider, *listed):
    names = PROVIDERS[provider].models
    return [m.name for m in choose_models(provider, names, [ListedModel(name=n) for n in listed])]


def test_of_each_family_the_newest_that_is_listed_and_priced():
    assert chosen("openai", "gpt-6.1-sol-2026-09-29", "gpt-6.1-sol", "gpt-6-sol", "gpt-6.1-terra",
                  "gpt-6-luna", "gpt-5.2", "gpt-image-2", "gpt-99-sol") == [
        "gpt-6.1-sol", "gpt-6.1-terra", "gpt-6-luna"]  # fmt: skip
    older = ("claude-opus-5", "claude-sonnet-4-6", "claude-haiku-4-5-20251001")
    assert chosen("anthropic", *older, "claude-opus-4-8", "claude-fable-5") == list(older)
    assert chosen("gemini", "gemini-3.8-flash", "gemini-3.7-flash", "gemini-3.8-flash-tts") == [
        "gemini-3.8-flash"
    ]
    assert chosen("deepseek", "deepseek-v4-flash", "deepseek-flash", "deepseek-v4-pro") == [
        "deepseek-v4-pro",
        "deepseek-flash",
    ]


def test_a_provider_that_lists_nothing_of_ours_gives_the_names_we_know():
    for provider in ("openai", "anthropic", "gemini", "openrouter", "deepseek"):
        assert chosen(provider) == list(PROVIDERS[provider].models)
        assert chosen(provider, "some-model") == list(PROVIDERS[provider].models)
