"""What a server refuses is said otherwise, once it said so, and it is asked only once."""

import json
from base64 import urlsafe_b64encode
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web

from batuta.clients import WorkerSpec, discover_pool, open_client
from batuta.clients.adaptations import (
    KINDS,
    MAX_ADAPTATIONS,
    Adaptations,
    LearnedAdaptations,
)
from batuta.clients.http_target import Secret
from batuta.clients.resilience import RetryPolicy
from batuta.core import (
    Message,
    PromptCache,
    Request,
    ResponseFormat,
    Role,
    Sampling,
    Text,
    Thought,
    Tool,
    ToolCall,
    ToolResult,
    Worker,
    WorkerId,
    assistant_message,
    system_message,
    user_message,
)
from batuta.errors import BadRequestError, ClientError, ContextLengthError
from clients.cases import CASES, RecordingListener
from fakes.environ import NOWHERE
from fakes.refusing import RefusingServer, error, roles, without
from fakes.server import KEY

pytestmark = pytest.mark.anyio
HI = (user_message("Hello"),)
SYSTEMS = (system_message("Be kind."), Message(role=Role.DEVELOPER, parts=(Text("Be brief."),)))
LATE = (*SYSTEMS, *HI, assistant_message("Hi."), system_message("Be loud."), user_message("More"))
TWICE = (*HI, user_message("World"), assistant_message("A"), assistant_message("B"), *HI)
WEATHER = (Tool(name="weather", parameters={"type": "object"}, strict=True),)
CALLED = (
    *HI,
    Message(role=Role.ASSISTANT, parts=(ToolCall(id="c1", name="weather", arguments="{}"),)),
    Message(role=Role.TOOL, parts=(ToolResult(call_id="c1", content="Sunny."),)),
    user_message("And now?"),
)
FORM = ResponseFormat(
    kind="json_schema",
    schema={"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}},
    strict=True,
)


def worker_of(server, **more):
    spec = WorkerSpec(
        worker=Worker(id=WorkerId("ada"), model=more.pop("model", "m")),
        provider=more.pop("provider", "compatible"),
        base_url=server.url,
        key=Secret(KEY),
    )
    return replace(spec, **more)


def several_systems(body):
    at = [number for number, role in enumerate(roles(body)) if role == "system"]
    return at not in ([], [0])


def neighbours(body):
    said = [role for role in roles(body) if role != "system"]
    return said[:1] != ["user"] or any(a == b for a, b in pairwise(said))


def when(condition, told):
    return lambda body: told if condition(body) else None


BEGINNING = "System message must be at the beginning."
ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
ONE_SYSTEM = [
    (400, error(BEGINNING)),
    (400, {"object": "error", "message": BEGINNING, "type": "BadRequestError", "code": 400}),
    (500, {"error": {"code": 500, "message": f"{BEGINNING} at row 12, column 4:", "type": "server_error"}}),
    (400, {"error": f'Error rendering prompt with jinja template: "{BEGINNING}"'}),
    (400, error("Only one system message is allowed, and it must come first")),
    (400, error("Unexpected role 'system' after role 'user'")),
]  # fmt: skip


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("told", ONE_SYSTEM)
async def test_one_message_of_the_system_comes_first(http, told, streaming):
    async with RefusingServer(when(several_systems, told)) as server:
        client = open_client(worker_of(server), http)
        for _ in range(2):
            reply = await client.complete(
                Request(messages=LATE), RecordingListener(streaming=streaming)
            )
            assert reply.text == "Fine."
    assert roles(server.taken) == ["system", "user", "assistant", "user"]
    assert server.taken["messages"][0]["content"] == "Be kind.\n\nBe brief.\n\nBe loud."
    assert server.refused == 1


async def test_the_first_messages_of_the_system_are_one_from_the_beginning(http):
    async with RefusingServer() as server:
        for name in ("vllm", "llamacpp", "sglang", "ollama", "lmstudio", "compatible"):
            client = open_client(worker_of(server, provider=name), http)
            await client.complete(Request(messages=LATE))
            assert roles(server.taken) == ["system", "user", "assistant", "system", "user"]


async def test_a_template_without_a_system_and_with_strict_turns(http):
    rules = (
        when(lambda b: "system" in roles(b), (400, error("System role not supported"))),
        when(neighbours, (500, error(f"{ALTERNATE} at row 3"))),
    )
    async with RefusingServer(*rules) as server:
        client = open_client(worker_of(server), http)
        await client.complete(Request(messages=LATE))
        first = server.taken["messages"][0]
        assert (first["role"], first["content"]) == (
            "user",
            "Be kind.\n\nBe brief.\n\nBe loud.\n\nHello",
        )
        await client.complete(Request(messages=(assistant_message("I begin."), *TWICE)))
        assert roles(server.taken) == ["user", "assistant", "user", "assistant", "user"]
        said = [message["content"] for message in server.taken["messages"]]
        assert said[1:] == ["I begin.", "Hello\n\nWorld", "A\n\nB", "Hello"]
    assert server.refused == 2


async def test_a_word_between_results_and_a_user_and_one_at_the_end(http):
    def rule(body):
        said = roles(body)
        if ("tool", "user") in pairwise(said):
            return error("Unexpected role 'user' after role 'tool'")
        if said[-1] == "assistant":
            return error("Expected last role User or Tool (or Assistant with prefix True)")
        return None

    async with RefusingServer(rule) as server:
        client = open_client(worker_of(server), http)
        await client.complete(Request(messages=CALLED, tools=WEATHER))
        assert roles(server.taken) == ["user", "assistant", "tool", "assistant", "user"]
        await client.complete(Request(messages=(*HI, assistant_message("Hm."))))
        assert roles(server.taken) == ["user", "assistant", "user"]


MAX_TOKENS = error(
    "Unsupported parameter: 'max_tokens' is not supported with this model. "
    "Use 'max_completion_tokens' instead.",
    param="max_tokens", code="unsupported_parameter",
)  # fmt: skip


def forbidden(*path):
    return {"detail": [{"type": "extra_forbidden", "loc": ["body", *path],
                        "msg": "Extra inputs are not permitted", "input": 1}]}  # fmt: skip


FIELDS = [
    ("max_tokens", (400, MAX_TOKENS), "max_completion_tokens"),
    ("stream_options", (400, error("Unrecognized request argument supplied: stream_options")), ""),
    ("stream_options", (422, forbidden("stream_options")), ""),
    ("stream_options", (400, {"object": "error", "message": forbidden("stream_options")}), ""),
    ("parallel_tool_calls", (400, error("`parallel_tool_calls` is not supported by this model")), ""),
    ("parallel_tool_calls", (400, error('unknown field "parallel_tool_calls"')), ""),
    ("temperature", (400, error("Unsupported value: 'temperature' does not support 0.2 with this "
                                "model. Only the default (1) value is supported.")), ""),
    ("reasoning_effort", (400, {"error": '"qwen2.5:0.5b" does not support thinking'}), ""),
    ("reasoning_effort", (400, error("`reasoning_effort` is not supported with this model")), ""),
    ("reasoning_effort", (422, {"object": "error", "message": forbidden("reasoning_effort")}), ""),
    ("seed", (400, "unknown parameter: seed"), ""),
    ("seed", (400, error("seed must not be set")), ""),
    ("seed", (400, error("please remove seed")), ""),
    ("seed", (400, error("参数 seed 不支持")), ""),
    ("stream_options", (400, error("stream_options is only allowed for plain models")), ""),
    ("parallel_tool_calls", (400, error("parallel_tool_calls cannot be set for it")), ""),
    ("temperature", (400, error("`temperature` may only be set to 1 when thinking is enabled.")), ""),
    ("temperature", (400, error("temperature: it is fixed when thinking is enabled")), ""),
]  # fmt: skip
EVERYTHING = Request(
    messages=HI,
    sampling=Sampling(max_tokens=77, temperature=0.2, effort="high", seed=3),
    tools=WEATHER,
    parallel_tool_calls=False,
)


@pytest.mark.parametrize(("name", "told", "other"), FIELDS)
async def test_a_field_is_sent_by_its_other_name_or_not_at_all(http, name, told, other):
    async with RefusingServer(without(name, told)) as server:
        client = open_client(worker_of(server), http)
        for _ in range(3):
            await client.complete(EVERYTHING, RecordingListener())
    wanted = {
        "max_tokens", "stream_options", "parallel_tool_calls", "temperature", "seed",
        "reasoning_effort",
    }  # fmt: skip
    assert wanted & set(server.taken) == wanted - {name}
    assert not other or server.taken[other] == 77
    assert server.refused == 1


async def test_a_server_that_refuses_them_all_is_asked_for_each_once(http):
    async with RefusingServer(*(without(name, told) for name, told, _ in FIELDS)) as server:
        client = open_client(worker_of(server), http)
        for _ in range(2):
            await client.complete(EVERYTHING, RecordingListener())
    assert server.refused == 6


async def test_an_effort_that_is_not_listed_becomes_the_nearest_that_is(http):
    def rule(body):
        if body.get("reasoning_effort") in {"none", "low", "medium", "high", None}:
            return None
        return error("invalid reasoning value: 'xhigh' (must be one of high, medium, low or none)")

    async with RefusingServer(rule) as server:
        client = open_client(worker_of(server), http)
        for effort, sent in (("xhigh", "high"), ("minimal", "none"), ("low", "low")):
            await client.complete(Request(messages=HI, sampling=Sampling(effort=effort)))
            assert server.taken["reasoning_effort"] == sent


JSON_ONLY = [
    error("This response_format type is unavailable now"),
    error("'response_format.type' must be one of 'text', 'json_object'"),
    error("This model does not support response format `json_schema`. See supported models"),
    {"object": "error", "message": forbidden("response_format", "json_schema")},
]


@pytest.mark.parametrize("told", JSON_ONLY)
async def test_a_schema_is_told_in_words_where_only_json_can_be_asked_for(http, told):
    def rule(body):
        return body.get("response_format", {}).get("type") == "json_schema" and told

    async with RefusingServer(rule) as server:
        client = open_client(worker_of(server), http)
        for form in (FORM, replace(FORM, schema={"type": "array"})):
            await client.complete(Request(messages=HI, response_format=form))
    assert server.taken["response_format"] == {"type": "json_object"}
    assert '{"type":"array"}' in server.taken["messages"][0]["content"]
    assert roles(server.taken) == ["system", "user"]
    assert server.refused == 1


async def test_deepseek_is_never_asked_for_a_schema(http):
    async with RefusingServer() as server:
        client = open_client(worker_of(server, provider="deepseek"), http)
        await client.complete(Request(messages=HI, response_format=FORM))
        assert server.taken["response_format"] == {"type": "json_object"}
        assert "maxLength" in server.taken["messages"][0]["content"]
        await client.complete(
            Request(messages=HI, response_format=ResponseFormat(kind="json_object"))
        )
        assert "JSON" in server.taken["messages"][0]["content"]


async def test_only_the_schema_that_is_refused_is_told_in_words(http):
    def rule(body):
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
        told = "Invalid schema for response_format 'answer': 'maxLength' is not permitted."
        return "maxLength" in str(schema) and error(told)

    async with RefusingServer(rule) as server:
        client = open_client(worker_of(server), http)
        for _ in range(2):
            await client.complete(Request(messages=HI, response_format=FORM))
            assert server.taken["response_format"] == {"type": "json_object"}
        plain = replace(FORM, schema={"type": "object"})
        await client.complete(Request(messages=HI, response_format=plain))
        assert server.taken["response_format"]["type"] == "json_schema"
    assert server.refused == 1


async def test_without_any_form_it_is_asked_for_in_words_alone(http):
    told = error("response_format is not supported")
    async with RefusingServer(without("response_format", told)) as server:
        client = open_client(worker_of(server), http)
        for form in (FORM, ResponseFormat(kind="json_object")):
            await client.complete(Request(messages=HI, response_format=form))
            assert "response_format" not in server.taken
            assert "JSON" in server.taken["messages"][0]["content"]


def named(body):
    return any("name" in message for message in body["messages"])


def marked(body):
    return "cache_control" in str(body) or "prompt_cache_key" in body


OTHERS = [
    (
        when(lambda b: b.get("tool_choice") == "required",
             error("Thinking may not be enabled when tool_choice forces tool use.")),
        Request(messages=HI, tools=WEATHER, tool_choice="required", sampling=Sampling(effort="high")),
        "'reasoning': {'effort': 'high'}",
    ),
    (
        when(lambda b: isinstance(b.get("tool_choice"), dict) or b.get("tool_choice") == "required",
             error("The tool_choice parameter does not support being set to required or object")),
        Request(messages=HI, tools=WEATHER, tool_choice="required"),
        "an answer without a call is not accepted",
    ),
    (
        when(lambda b: "strict" in str(b), error("unknown field `strict`, expected one of `name`")),
        Request(messages=HI, tools=WEATHER),
        "weather",
    ),
    (
        when(named, error("messages.0.name: Extra inputs are not permitted")),
        Request(messages=(replace(HI[0], name="ann"),)),
        "Hello",
    ),
    (
        when(lambda b: "reasoning" in b["messages"][1],
             error("'messages.1' : for 'role:assistant' the property 'messages.1.reasoning' is unsupported")),
        Request(messages=(*HI, replace(assistant_message("Hi."), reasoning="Hm."), *HI)),
        "Hi.",
    ),
    (
        when(marked, error("messages.0.content.0.cache_control: Extra inputs are not permitted")),
        Request(messages=(Message(role=Role.USER, parts=(Text("Hello", cache="5m"),)),)),
        "Hello",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "request_", "left"), OTHERS)
async def test_other_parts_of_a_request(http, rule, request_, left):
    async with RefusingServer(rule) as server:
        client = open_client(worker_of(server, provider="openrouter"), http)
        for _ in range(2):
            assert (await client.complete(request_)).text == "Fine."
        assert left in str(server.taken)
    assert server.refused == 1


async def test_the_role_of_developers(http):
    told = error("'developer' is not one of ['system', 'assistant', 'user', 'tool']")
    async with RefusingServer(when(lambda b: "developer" in roles(b), told)) as server:
        client = open_client(worker_of(server, provider="openai", model="gpt-4o"), http)
        await client.complete(Request(messages=LATE))
    assert "developer" not in roles(server.taken)


REFUSED_FOR_GOOD = [
    error("temperature must be between 0 and 1"),
    error("max_tokens is too large: 999999. This model supports at most 16384 completion tokens"),
    error("The prompt was flagged: it says that 'seed' is sown"),
    error("Unsupported parameter: 'stop' is not supported with this model."),
]


@pytest.mark.parametrize("told", REFUSED_FOR_GOOD)
async def test_what_cannot_be_said_otherwise_is_refused_after_one_call(http, told):
    async with RefusingServer(lambda _: told) as server:
        with pytest.raises(BadRequestError):
            await open_client(worker_of(server), http).complete(EVERYTHING)
    assert server.refused == 1


async def test_what_did_not_help_is_not_remembered(http):
    told: list[Any] = [error("this field is not supported: seed, temperature, stream_options")]
    async with RefusingServer(lambda _: told[0]) as server:
        client = open_client(worker_of(server), http)
        with pytest.raises(ClientError):
            await client.complete(EVERYTHING)
        assert server.refused <= 9
        told[0] = None
        await client.complete(EVERYTHING)
    assert server.taken["seed"] == 3 and server.taken["temperature"] == 0.2


async def test_an_overflow_is_not_answered_by_another_form(http):
    told = error("Unsupported: prompt is too long with max_tokens: 5000 tokens > 4096 maximum")
    async with RefusingServer(lambda _: told) as server:
        with pytest.raises(ContextLengthError):
            await open_client(worker_of(server), http).complete(EVERYTHING)
    assert server.refused == 1


async def test_settings_say_it_from_the_beginning(http):
    async with RefusingServer() as server:
        spec = worker_of(
            server,
            adapt=("one_system_message", "no_effort"),
            field_names={"max_tokens": "max_completion_tokens", "stream_options": ""},
        )
        client = open_client(spec, http)
        await client.complete(replace(EVERYTHING, messages=LATE), RecordingListener())
    assert roles(server.taken) == ["system", "user", "assistant", "user"]
    assert server.taken["max_completion_tokens"] == 77
    assert not {"max_tokens", "stream_options", "reasoning_effort"} & set(server.taken)


async def test_the_settings_and_the_ways_have_one_list_of_names():
    from batuta.clients.adaptations import _APPLIED

    assert {*_APPLIED, "no_effort", "no_encrypted_reasoning"} == set(KINDS)


async def test_caches_are_asked_for_again_by_a_worker_that_takes_it(http):
    told = error("Unknown parameter: 'prompt_cache_key'.")
    async with RefusingServer(without("prompt_cache_key", told)) as server:
        client = open_client(worker_of(server, provider="openai", model="gpt-4o"), http)
        await client.complete(Request(messages=HI, cache=PromptCache(key="k", retention="24h")))
    assert server.taken["prompt_cache_retention"] == "24h"


async def test_ollama_tells_which_models_do_not_think(http):
    async with RefusingServer() as server:
        server.tags = ["plain:1b", "thinker:1b", "untold:1b"]
        server.shown = {
            "plain:1b": {"capabilities": ["completion", "tools"]},
            "thinker:1b": {"capabilities": ["completion", "thinking"]},
            "untold:1b": {"model_info": {}},
        }
        found = (await discover_pool(NOWHERE | {"OLLAMA_HOST": server.host}, http)).specs
        sent = {}
        for spec in found:
            await open_client(spec, http).complete(
                Request(messages=HI, sampling=Sampling(effort="low"))
            )
            sent[spec.worker.model] = server.taken.get("reasoning_effort")
    assert sent == {"plain:1b": None, "thinker:1b": "low", "untold:1b": "low"}


NO_RESPONSES = [
    (404, {"detail": "Not Found"}),
    (404, "404 page not found"),
    (404, error("Invalid URL (POST /v1/responses)")),
    (405, {"detail": "Method Not Allowed"}),
    (404, "<html><title>404 Not Found</title></html>"),
    (500, error("not implemented", code="convert_request_failed")),
    (400, error("The Responses API is not supported by this provider")),
]


@pytest.mark.parametrize("told", NO_RESPONSES)
async def test_a_proxy_that_knows_chat_alone_is_asked_so(http, told):
    async with RefusingServer(responses=told) as server:
        client = open_client(worker_of(server, provider="openai", model="gpt-6-luna"), http)
        for _ in range(2):
            assert (await client.complete(EVERYTHING)).text == "Fine."
    assert server.refused == 1
    assert server.taken["max_completion_tokens"] == 77


async def test_a_missing_model_is_not_asked_for_by_chat(http):
    told = (404, error("The model 'gpt-6-luna' does not exist", code="model_not_found"))
    async with RefusingServer(responses=told) as server:
        client = open_client(worker_of(server, provider="openai", model="gpt-6-luna"), http)
        with pytest.raises(ClientError):
            await client.complete(EVERYTHING)
    assert len(server.requests) == 1


async def test_a_setting_names_the_api(http):
    async with RefusingServer(responses=(400, error("no"))) as server:
        spec = worker_of(server, provider="openai", model="gpt-6-luna", openai_api="chat")
        assert (await open_client(spec, http).complete(Request(messages=HI))).text == "Fine."
    assert server.refused == 0


NAMED = f"{BEGINNING} {ALTERNATE} Unsupported: strict, tool_choice, effort, temperature, store"


@pytest.mark.parametrize("status", [401, 402, 403, 404, 429])
async def test_what_is_no_refusal_of_the_form_is_not_asked_again(http, status):
    async with RefusingServer(lambda body: (status, error(NAMED))) as server:
        client = open_client(worker_of(server), http, policy=RetryPolicy(attempts=1))
        with pytest.raises(ClientError):
            await client.complete(Request(messages=LATE, tools=WEATHER))
    assert len(server.requests) == 1


def test_schemas_that_were_refused_do_not_pile_up():
    learned = LearnedAdaptations()
    refusal = BadRequestError("no")
    refusal.words = "invalid schema for response_format: keyword not supported"
    for number in range(2_000):
        form = ResponseFormat(kind="json_schema", schema={"title": f"{number}" * 1_000})
        request = Request(messages=HI, response_format=form)
        learned.keep(next(learned.current.remedies(refusal, request, {})))
        assert learned.current.adapt_request(request).response_format.kind == "json_object"
    assert sum(map(len, learned.current.schemas)) <= 16 << 10
    assert learned.current.kinds == Adaptations().kinds


async def test_a_server_that_refuses_every_form_is_asked_nine_times_and_teaches_nothing(http):
    async with RefusingServer(lambda body: error(NAMED)) as server:
        client = open_client(worker_of(server), http)
        for calls in (1, 2):
            with pytest.raises(BadRequestError):
                await client.complete(Request(messages=LATE, tools=WEATHER))
            assert len(server.requests) <= calls * (MAX_ADAPTATIONS + 1)
        server.rules = ()
        await client.complete(Request(messages=LATE, tools=WEATHER))
        assert roles(server.taken) == ["system", "user", "assistant", "system", "user"]


STALE = "stale"
"""A signature or an encrypted text that the provider cannot read."""


def refusing_stale(fake, told):
    """Return a fake that refuses reasoning that it cannot read."""

    class Refusing(fake):
        async def _answer(self, request, received):
            if STALE in str(received.body):
                return web.json_response(error(told), status=400)
            return await super()._answer(request, received)

    return Refusing("Fine.")


UNREADABLE = {
    "anthropic": "messages.1.content.0: Invalid `signature` in `thinking` block",
    "responses": "The encrypted content gAAA for item rs_1 could not be verified. Reason: Encrypted "
    "content could not be decrypted or parsed.",
    "gemini": "Corrupted thought signature.",
}


@pytest.mark.parametrize("case", [c for c in CASES if c.name in UNREADABLE], ids=lambda c: c.name)
async def test_reasoning_that_a_provider_cannot_read_is_left_out_of_that_call_alone(case, http):
    extras = {"extras": {"0": {"google": {"thought_signature": STALE}}}}
    redacted = {
        "anthropic": "",
        "responses": f"rs_1.{STALE}",
        "gemini": f"chat.{urlsafe_b64encode(json.dumps(extras).encode()).decode()}",
    }[case.name]
    async with refusing_stale(case.fake, UNREADABLE[case.name]) as server:
        client = case.client(server, http)
        model = client.worker.model
        thought = Thought(model=model, text="Hm.", signature=STALE, redacted=redacted)
        called = Message(role=Role.ASSISTANT, parts=CALLED[1].parts, thoughts=(thought,))
        sampling = Sampling(effort="high")
        stale = Request(messages=(*HI, called, *CALLED[2:]), sampling=sampling)
        fresh = Request(messages=HI, sampling=sampling)
        bodies = []
        for request in (fresh, stale, fresh):
            assert (await client.complete(request)).text == "Fine."
            bodies.append(server.requests[-1].body)
    assert len(server.requests) == 4, "the refused one, and three that were answered"
    assert bodies[0] == bodies[2], "and the effort is still asked for"


async def test_reasoning_that_was_not_sent_is_not_left_out_again_and_again(http):
    """The thought is another model's, so the request would be the same."""
    thought = Thought(model="another", text="Hm.", signature=STALE)
    said = Message(role=Role.ASSISTANT, parts=(Text("Hi."),), thoughts=(thought,))
    async with RefusingServer(lambda _: error(UNREADABLE["anthropic"])) as server:
        client = open_client(worker_of(server), http)
        with pytest.raises(BadRequestError):
            await client.complete(Request(messages=(*HI, said, *HI)))
        assert server.refused == 1


@pytest.mark.parametrize(
    "told",
    [
        "{name}: 2 is not valid, it should be between 0 and 1",
        "invalid params, {name} should be in (0,1]",
        "Invalid {name} value, the valid range of {name} is [0, 1.0]",
        "Invalid '{name}': decimal above maximum value. Expected a value <= 1, but got 2 instead.",
        "{name}: Input should be less than or equal to 1",
    ],
)
@pytest.mark.parametrize("name", ["temperature", "top_p", "seed"])
async def test_a_value_out_of_its_range_does_not_cost_the_values_within_it(http, told, name):
    def rule(body):
        return error(told.format(name=name)) if body.get(name, 0) > 1 else None

    async with RefusingServer(rule) as server:
        client = open_client(worker_of(server), http)
        sent = []
        for value in (2, 1):
            sampling = replace(Sampling(), **{name: value})
            await client.complete(Request(messages=HI, sampling=sampling))
            sent.append(server.taken.get(name))
    assert sent == [None, 1] and server.refused == 1
