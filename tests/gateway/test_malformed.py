"""Bad bodies: each gets a precise 400, and none of any kind a 5xx."""

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.core import Limits, Pool, Question
from batuta.gateway.chat.request import parse_chat
from batuta.gateway.errors import APIError
from batuta.gateway.http.body import Fields
from gateway.live_server import HI, Serving, pool_of

pytestmark = pytest.mark.anyio

M = "missing_required_parameter"
T = "invalid_type"
V = "invalid_value"
U = "unsupported_parameter"
MODEL = {"model": "batuta-mini"}
GOOD = {**MODEL, "messages": HI}
TOOL = {"type": "function", "function": {"name": "f"}}


def turn(**fields):
    return {**MODEL, "messages": [fields]}


def said(part):
    return turn(role="user", content=[part])


def wishes(**fields):
    return {**GOOD, "orchestration": fields}


CASES = [
    ({}, M, "model"),
    ({"model": None}, M, "model"),
    ({"model": 3}, T, "model"),
    ({"model": ""}, V, "model"),
    (MODEL, M, "messages"),
    ({**MODEL, "messages": []}, V, "messages"),
    ({**MODEL, "messages": "hi"}, T, "messages"),
    ({**MODEL, "messages": ["hi"]}, T, "messages[0]"),
    (turn(content="hi"), M, "messages[0].role"),
    (turn(role="king", content="hi"), V, "messages[0].role"),
    (turn(role=1, content="hi"), T, "messages[0].role"),
    (turn(role="user"), M, "messages[0].content"),
    (turn(role="user", content=5), T, "messages[0].content"),
    (turn(role="user", content=[]), V, "messages[0].content"),
    (turn(role="user", content="x", name=3), T, "messages[0].name"),
    (turn(role="user", content=["x"]), T, "messages[0].content[0]"),
    (said({"text": "x"}), M, "messages[0].content[0].type"),
    (said({"type": "text"}), M, "messages[0].content[0].text"),
    (said({"type": "text", "text": 1}), T, "messages[0].content[0].text"),
    (said({"type": "song", "text": "x"}), V, "messages[0].content[0].type"),
    (said({"type": "file", "file": {}}), M, "messages[0].content[0].file.file_data"),
    (said({"type": "input_audio"}), M, "messages[0].content[0].input_audio"),
    (said({"type": "image_url"}), M, "messages[0].content[0].image_url"),
    (said({"type": "image_url", "image_url": 7}), T, "messages[0].content[0].image_url"),
    (
        said({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}),
        V,
        "messages[0].content[0].image_url.url",
    ),
    (
        said({"type": "image_url", "image_url": {"url": "https://a/b.png", "detail": "x"}}),
        V,
        "messages[0].content[0].image_url.detail",
    ),
    (
        turn(role="system", content=[{"type": "image_url", "image_url": {"url": "https://a/b"}}]),
        V,
        "messages[0].content[0].type",
    ),
    (turn(role="assistant", tool_calls=[{}]), M, "messages[0].tool_calls[0].function"),
    (
        turn(role="assistant", tool_calls=[{"id": "a", "function": {"name": "f"}}]),
        M,
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        turn(role="assistant", tool_calls=[{"function": {"name": "f", "arguments": ""}}]),
        M,
        "messages[0].tool_calls[0].id",
    ),
    (turn(role="assistant", tool_calls=[{"type": "custom"}]), U, "messages[0].tool_calls[0].type"),
    (turn(role="assistant", tool_calls=[{"type": "x"}]), V, "messages[0].tool_calls[0].type"),
    (turn(role="assistant", function_call={"name": "f"}), U, "messages[0].function_call"),
    (turn(role="tool", content="x"), M, "messages[0].tool_call_id"),
    ({**GOOD, "stream": "yes"}, T, "stream"),
    ({**GOOD, "stream_options": 1}, T, "stream_options"),
    ({**GOOD, "stream_options": {"include_usage": 1}}, T, "stream_options.include_usage"),
    ({**GOOD, "max_tokens": 0}, V, "max_tokens"),
    ({**GOOD, "max_tokens": 1.5}, T, "max_tokens"),
    ({**GOOD, "max_completion_tokens": True}, T, "max_completion_tokens"),
    ({**GOOD, "temperature": 3}, V, "temperature"),
    ({**GOOD, "temperature": "hot"}, T, "temperature"),
    ({**GOOD, "top_p": -1}, V, "top_p"),
    ({**GOOD, "stop": 3}, T, "stop"),
    ({**GOOD, "stop": [3]}, T, "stop[0]"),
    ({**GOOD, "stop": [""]}, V, "stop[0]"),
    ({**GOOD, "n": 129}, V, "n"),
    ({**GOOD, "n": 0}, V, "n"),
    ({**GOOD, "n": "1"}, T, "n"),
    ({**GOOD, "seed": 2**63}, V, "seed"),
    ({**GOOD, "seed": "x"}, T, "seed"),
    ({**GOOD, "logprobs": 1}, T, "logprobs"),
    ({**GOOD, "top_logprobs": 2}, V, "top_logprobs"),
    ({**GOOD, "functions": [{}]}, U, "functions"),
    ({**GOOD, "moderation": {"model": "m"}}, U, "moderation"),
    ({**GOOD, "modalities": ["text", "audio"]}, U, "modalities"),
    ({**GOOD, "frequency_penalty": 2.5}, V, "frequency_penalty"),
    ({**GOOD, "presence_penalty": "x"}, T, "presence_penalty"),
    ({**GOOD, "top_k": -2}, V, "top_k"),
    ({**GOOD, "reasoning_effort": "huge"}, V, "reasoning_effort"),
    ({**GOOD, "verbosity": "x"}, V, "verbosity"),
    ({**GOOD, "metadata": []}, T, "metadata"),
    ({**GOOD, "metadata": {"a": 1}}, V, "metadata.a"),
    ({**GOOD, "user": 1}, T, "user"),
    ({**GOOD, "store": 1}, T, "store"),
    ({**GOOD, "parallel_tool_calls": 1}, T, "parallel_tool_calls"),
    ({**GOOD, "tools": {}}, T, "tools"),
    ({**GOOD, "tools": [{}]}, M, "tools[0].type"),
    ({**GOOD, "tools": [{"type": "custom"}]}, U, "tools[0].type"),
    ({**GOOD, "tools": [{"type": "web"}]}, V, "tools[0].type"),
    ({**GOOD, "tools": [{"type": "function"}]}, M, "tools[0].function"),
    ({**GOOD, "tools": [{"type": "function", "function": {}}]}, M, "tools[0].function.name"),
    (
        {**GOOD, "tools": [{"type": "function", "function": {"name": "a b"}}]},
        V,
        "tools[0].function.name",
    ),
    (
        {**GOOD, "tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
        T,
        "tools[0].function.parameters",
    ),
    ({**GOOD, "tools": [TOOL, TOOL]}, V, "tools"),
    ({**GOOD, "tools": [TOOL] * 129}, V, "tools"),
    ({**GOOD, "tool_choice": "required"}, V, "tool_choice"),
    ({**GOOD, "tool_choice": 1}, T, "tool_choice"),
    ({**GOOD, "tools": [TOOL], "tool_choice": "some"}, V, "tool_choice"),
    (
        {
            **GOOD,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "g"}},
        },
        V,
        "tool_choice.function.name",
    ),
    (
        {
            **GOOD,
            "tools": [TOOL],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}},
        },
        V,
        "tool_choice.allowed_tools.tools",
    ),
    ({**GOOD, "response_format": "json"}, T, "response_format"),
    ({**GOOD, "response_format": {}}, M, "response_format.type"),
    ({**GOOD, "response_format": {"type": "xml"}}, V, "response_format.type"),
    (
        {**GOOD, "response_format": {"type": "json_schema"}},
        M,
        "response_format.json_schema",
    ),
    (
        {**GOOD, "response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        M,
        "response_format.json_schema.schema",
    ),
    ({**GOOD, "orchestration": []}, T, "orchestration"),
    (wishes(max_cost=1), "unknown_parameter", "orchestration.max_cost"),
    (wishes(max_cost_usd=-1), V, "orchestration.max_cost_usd"),
    (wishes(max_tokens=1.5), T, "orchestration.max_tokens"),
    (wishes(max_steps=0), V, "orchestration.max_steps"),
    (wishes(max_rounds=0), V, "orchestration.max_rounds"),
    (wishes(deadline_s="1"), T, "orchestration.deadline_s"),
    (wishes(workers_allow=["eve"]), V, "orchestration.workers_allow"),
    (wishes(workers_deny=["eve"]), V, "orchestration.workers_deny"),
    (wishes(workers_deny=["ada"]), V, "orchestration.workers_deny"),
    (wishes(workers_allow="ada"), T, "orchestration.workers_allow"),
    (wishes(trace=1), T, "orchestration.trace"),
    (wishes(workflow=[]), T, "orchestration.workflow"),
    (wishes(workflow={}), M, "orchestration.workflow.steps"),
    (wishes(workflow={"steps": []}), V, "orchestration.workflow.steps"),
    (wishes(workflow={"steps": [{}]}), M, "orchestration.workflow.steps[0].worker"),
    (
        wishes(workflow={"steps": [{"worker": "ada", "access": ["0"]}]}),
        T,
        "orchestration.workflow.steps[0].access[0]",
    ),
    (
        wishes(workflow={"steps": [{"worker": "ada", "access": [0]}]}),
        V,
        "orchestration.workflow.steps",
    ),
    (wishes(workflow={"steps": [{"worker": "eve"}]}), V, "orchestration.workflow.steps[0].worker"),
    (wishes(workflow={"steps": [{"worker": "ada"}] * 2}), V, "orchestration.workflow.steps"),
]


def book(body, pool):
    asked = parse_chat(Fields(orjson.loads(orjson.dumps(body)))).options
    asked.check_workflow(asked.select_workers(pool), Limits(steps=1))


def named(value):
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(("body", "code", "param"), CASES, ids=named)
def test_the_first_thing_that_is_wrong_is_named(body, code, param):
    pool = pool_of("ada")
    with pytest.raises(APIError) as caught:
        book(body, pool)
    refusal = caught.value
    assert (refusal.status, refusal.code, refusal.param) == (400, code, param)
    assert param in refusal.message


async def test_every_bad_body_is_a_400_of_the_server_too():
    """`batuta-mini` runs one step at most, as the test above has it."""
    async with Serving(ada=ScriptedClient(lambda _: "ok")) as server:
        for body, code, param in CASES:
            status, headers, got = await server.post(body=orjson.dumps(body))
            assert (status, got["error"]["code"], got["error"]["param"]) == (400, code, param)
            assert got["error"]["type"] == "invalid_request_error"
            assert headers["x-request-id"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"\xff\xfe", 400, "invalid_json"),
        (b'{"model": "\\ud800"}', 400, "invalid_json"),
        (b'{"seed": NaN}', 400, "invalid_json"),
        (b"[" * 5000, 400, "invalid_json"),
        (b"[]", 400, "invalid_type"),
        (b"null", 400, "invalid_type"),
        (b'"hi"', 400, "invalid_type"),
    ],
)
async def test_what_is_no_json_object(body, status, code):
    async with Serving() as server:
        got, _, answer = await server.post(body=body)
    assert (got, answer["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    "extra",
    [
        {"logprobs": False, "top_logprobs": None, "n": 1, "logit_bias": {}, "presence_penalty": 0},
        {"metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "verbosity": "low"},
        {"response_format": {"type": "text"}, "tool_choice": "auto", "tools": []},
        {"stop": ["a", "b"], "stream_options": {"include_usage": True}, "modalities": ["text"]},
        {"reasoning_effort": "none", "temperature": 0, "seed": -1, "store": True, "tools": None},
        {"orchestration": {}},
    ],
)
def test_what_asks_for_nothing_special_is_taken(extra):
    assert parse_chat(Fields({**GOOD, **extra})).question.messages


@pytest.mark.parametrize(
    "message",
    [
        {"role": "developer", "content": "x"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "", "refusal": None, "tool_calls": None},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "name": "bo", "content": [{"type": "text", "text": ""}]},
    ],
)
def test_turns_that_clients_send(message):
    call = parse_chat(Fields({**MODEL, "messages": [message]}))
    assert isinstance(call.question, Question)
    assert isinstance(call.options.select_workers(pool_of("ada")), Pool)


LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
NAMES = sorted(
    {path.split("[")[0].split(".")[0] for _, _, path in CASES}
    | {"role", "content", "type", "text", "function", "name", "tool_calls", "url", "mode"}
)
WORDS = st.sampled_from([*NAMES, "user", "assistant", "tool", "batuta-mini", "f", "allowed_tools"])
JSON = st.recursive(
    LEAF | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=15,
)
BODY = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6)


@given(BODY, st.booleans())
@settings(max_examples=4 * settings().max_examples, suppress_health_check=[HealthCheck.too_slow])
def test_any_object_is_a_call_or_a_400(body, good):
    refusal = None
    try:
        parse_chat(Fields({**GOOD, **body} if good else body))
    except APIError as caught:
        refusal = caught
    assert refusal is None or refusal.status == 400
    assert refusal is None or set(refusal.body["error"]) == {"message", "type", "param", "code"}


async def test_any_body_is_never_a_5xx():
    bodies = []

    @given(BODY)
    @settings(
        max_examples=settings().max_examples * 60 // 100,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    def collect(body):
        bodies.append({**GOOD, **body})

    collect()
    async with Serving(ada=ScriptedClient(lambda _: "ok")) as server:
        for body in bodies:
            async with server.http.post(
                "/v1/chat/completions",
                data=orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS, default=str)
                if all(abs(n) < 2**63 for n in _integers(body))
                else b"{}",
                headers={"content-type": "application/json"},
            ) as response:
                await response.read()
                assert response.status in {200, 400, 404, 429, 504}, body


def _integers(value):
    if isinstance(value, dict):
        return [n for inner in value.values() for n in _integers(inner)]
    if isinstance(value, list):
        return [n for inner in value for n in _integers(inner)]
    return [value] if isinstance(value, int) else []
