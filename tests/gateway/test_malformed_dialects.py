"""Bad bodies of the other dialects: each gets a precise 400, and none of any kind a 5xx."""

from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.core import Limits
from batuta.gateway.errors import APIError
from batuta.gateway.http.body import Fields
from batuta.gateway.messages.request import parse_message
from batuta.gateway.responses.request import (
    ResponseHistory,
    parse_history_references,
    parse_response,
)
from gateway.live_server import HI, Serving, pool_of, scripted_state

pytestmark = pytest.mark.anyio

M = "missing_required_parameter"
T = "invalid_type"
V = "invalid_value"
U = "unsupported_parameter"
MODEL = {"model": "batuta-mini"}
R = {**MODEL, "input": "hi"}
A = {**MODEL, "messages": HI, "max_tokens": 9}
FUNCTION = {"type": "function", "name": "f"}
TOOL = {"name": "f", "input_schema": {}}


def item(**fields):
    return {**MODEL, "input": [fields]}


def part(**fields):
    return item(role="user", content=[fields])


def said(*blocks, role="user"):
    return {**A, "messages": [{"role": role, "content": list(blocks)}]}


RESPONSES = [
    ({}, M, "model"),
    ({"model": 3}, T, "model"),
    ({"model": ""}, V, "model"),
    (MODEL, M, "input"),
    ({**MODEL, "input": 5}, T, "input"),
    ({**MODEL, "input": []}, V, "input"),
    ({**MODEL, "input": ["x"]}, T, "input[0]"),
    ({**R, "previous_response_id": 5}, T, "previous_response_id"),
    (item(role="king", content="x"), V, "input[0].role"),
    (item(type="message", content="x"), M, "input[0].role"),
    (item(role="user"), M, "input[0].content"),
    (item(role="user", content=5), T, "input[0].content"),
    (item(type=5), T, "input[0].type"),
    (item(type="song"), V, "input[0].type"),
    (item(type="item_reference"), M, "input[0].id"),
    (item(type="item_reference", id="msg_1"), V, "input[0].id"),
    (item(id="msg_aaaaaaaaaaaaaaaaaaaaaaaa_0"), V, "input[0].id"),
    (part(text="x"), M, "input[0].content[0].type"),
    (part(type="input_text"), M, "input[0].content[0].text"),
    (part(type="input_text", text=5), T, "input[0].content[0].text"),
    (part(type="input_file"), M, "input[0].content[0].file_data"),
    (part(type="song"), V, "input[0].content[0].type"),
    (part(type="input_image"), M, "input[0].content[0].image_url"),
    (part(type="input_image", file_id="f"), U, "input[0].content[0].file_id"),
    (part(type="input_image", image_url="file:///x"), V, "input[0].content[0].image_url"),
    (part(type="input_image", image_url="https://x", detail="x"), V, "input[0].content[0].detail"),
    (
        item(role="system", content=[{"type": "input_image", "image_url": "https://a/b"}]),
        U,
        "input[0].content[0].type",
    ),
    (item(type="function_call", name="f", arguments=""), M, "input[0].call_id"),
    (item(type="function_call", call_id="c", arguments=""), M, "input[0].name"),
    (item(type="function_call", call_id="c", name="f"), M, "input[0].arguments"),
    (item(type="custom_tool_call", call_id="c", name="f"), M, "input[0].input"),
    (item(type="function_call_output", output="x"), M, "input[0].call_id"),
    (item(type="function_call_output", call_id="c", output="x"), V, "input[0].call_id"),
    (item(type="reasoning", summary="x"), T, "input[0].summary"),
    (item(type="reasoning", content=[{}]), M, "input[0].content[0].text"),
    ({**R, "instructions": 5}, T, "instructions"),
    ({**R, "conversation": "c"}, U, "conversation"),
    ({**R, "prompt": {"id": "p"}}, U, "prompt"),
    ({**R, "top_logprobs": 21}, V, "top_logprobs"),
    ({**R, "context_management": [{"type": "compaction"}]}, U, "context_management"),
    ({**R, "truncation": "auto"}, U, "truncation"),
    ({**R, "truncation": "some"}, V, "truncation"),
    ({**R, "include": [1]}, T, "include[0]"),
    ({**R, "include": "x"}, T, "include"),
    ({**R, "background": "yes"}, T, "background"),
    ({**R, "background": True, "store": False}, U, "background"),
    ({**R, "store": 1}, T, "store"),
    ({**R, "stream": "yes"}, T, "stream"),
    ({**R, "stream_options": 1}, T, "stream_options"),
    ({**R, "max_output_tokens": 0}, V, "max_output_tokens"),
    ({**R, "max_tool_calls": "x"}, T, "max_tool_calls"),
    ({**R, "temperature": 3}, V, "temperature"),
    ({**R, "top_p": "x"}, T, "top_p"),
    ({**R, "metadata": {"a": 1}}, V, "metadata.a"),
    ({**R, "client_metadata": "x"}, T, "client_metadata"),
    ({**R, "prompt_cache_key": 5}, T, "prompt_cache_key"),
    ({**R, "reasoning": "x"}, T, "reasoning"),
    ({**R, "reasoning": {"effort": "huge"}}, V, "reasoning.effort"),
    ({**R, "reasoning": {"summary": "x"}}, V, "reasoning.summary"),
    ({**R, "text": "x"}, T, "text"),
    ({**R, "text": {"verbosity": "x"}}, V, "text.verbosity"),
    ({**R, "text": {"format": {}}}, M, "text.format.type"),
    ({**R, "text": {"format": {"type": "xml"}}}, V, "text.format.type"),
    ({**R, "text": {"format": {"type": "json_schema"}}}, M, "text.format.schema"),
    (
        {**R, "text": {"format": {"type": "json_schema", "schema": {}}}},
        M,
        "text.format.name",
    ),
    ({**R, "tools": {}}, T, "tools"),
    ({**R, "tools": [{}]}, M, "tools[0].type"),
    ({**R, "tools": [{"type": "function"}]}, M, "tools[0].name"),
    ({**R, "tools": [{**FUNCTION, "name": "a b"}]}, V, "tools[0].name"),
    ({**R, "tools": [{**FUNCTION, "parameters": []}]}, T, "tools[0].parameters"),
    ({**R, "tools": [{**FUNCTION, "strict": 1}]}, T, "tools[0].strict"),
    ({**R, "tools": [FUNCTION] * 2}, V, "tools"),
    ({**R, "tool_choice": "required"}, V, "tool_choice"),
    ({**R, "tool_choice": 1}, T, "tool_choice"),
    ({**R, "tool_choice": {}}, M, "tool_choice.type"),
    ({**R, "tool_choice": {"type": "web_search"}}, U, "tool_choice.type"),
    ({**R, "tools": [FUNCTION], "tool_choice": "some"}, V, "tool_choice"),
    (
        {**R, "tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}},
        V,
        "tool_choice.name",
    ),
    (
        {**R, "tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "auto"}},
        V,
        "tool_choice.tools",
    ),
    ({**R, "orchestration": {"max_cost": 1}}, "unknown_parameter", "orchestration.max_cost"),
]

MESSAGES = [
    ({}, M, "model"),
    (MODEL, M, "messages"),
    ({**A, "messages": []}, V, "messages"),
    ({**A, "messages": ["x"]}, T, "messages[0]"),
    ({**A, "messages": [{"content": "x"}]}, M, "messages[0].role"),
    ({**A, "messages": [{"role": "king", "content": "x"}]}, V, "messages[0].role"),
    ({**A, "messages": [{"role": "user"}]}, M, "messages[0].content"),
    ({**A, "messages": [{"role": "user", "content": 5}]}, T, "messages[0].content"),
    (said({}), M, "messages[0].content[0].type"),
    (said({"type": "song"}), V, "messages[0].content[0].type"),
    (said({"type": "document"}), M, "messages[0].content[0].source"),
    (said({"type": "text"}), M, "messages[0].content[0].text"),
    (said({"type": "text", "text": 5}), T, "messages[0].content[0].text"),
    (said({"type": "tool_use"}), V, "messages[0].content[0].type"),
    (said({"type": "image"}), M, "messages[0].content[0].source"),
    (
        said({"type": "image", "source": {"type": "file"}}),
        U,
        "messages[0].content[0].source.type",
    ),
    (
        said({"type": "image", "source": {"type": "url", "url": "file:///x"}}),
        V,
        "messages[0].content[0].source.url",
    ),
    (
        said(
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "text/html", "data": "AAAA"},
            }
        ),
        V,
        "messages[0].content[0].source.media_type",
    ),
    (said({"type": "tool_result"}), M, "messages[0].content[0].tool_use_id"),
    (
        said({"type": "tool_result", "tool_use_id": "c"}),
        V,
        "messages[0].content[0].tool_use_id",
    ),
    (said({"type": "image"}, role="assistant"), M, "messages[0].content[0].source"),
    (said({"type": "thinking"}, role="assistant"), M, "messages[0].content[0].thinking"),
    (said({"type": "tool_use"}, role="assistant"), M, "messages[0].content[0].input"),
    (
        said({"type": "tool_use", "input": {}}, role="assistant"),
        M,
        "messages[0].content[0].id",
    ),
    ({**A, "system": 5}, T, "system"),
    ({**A, "system": [{"type": "image"}]}, V, "system[0].type"),
    ({**MODEL, "messages": HI}, M, "max_tokens"),
    ({**A, "max_tokens": 0}, V, "max_tokens"),
    ({**A, "max_tokens": "x"}, T, "max_tokens"),
    ({**A, "stream": "yes"}, T, "stream"),
    ({**A, "temperature": 1.5}, V, "temperature"),
    ({**A, "top_k": 0}, V, "top_k"),
    ({**A, "container": "c"}, U, "container"),
    ({**A, "mcp_servers": [{}]}, U, "mcp_servers"),
    ({**A, "thread": {"type": "create"}}, U, "thread"),
    ({**A, "compaction": {"type": "summarize"}}, U, "compaction"),
    ({**A, "stop_sequences": "x"}, T, "stop_sequences"),
    ({**A, "stop_sequences": [""]}, V, "stop_sequences[0]"),
    ({**A, "metadata": {"user_id": 5}}, T, "metadata.user_id"),
    ({**A, "thinking": "x"}, T, "thinking"),
    ({**A, "thinking": {}}, M, "thinking.type"),
    ({**A, "thinking": {"type": "x"}}, V, "thinking.type"),
    ({**A, "thinking": {"type": "enabled"}}, M, "thinking.budget_tokens"),
    ({**A, "output_config": {"effort": "x"}}, V, "output_config.effort"),
    ({**A, "output_config": {"format": {"type": "x"}}}, V, "output_config.format.type"),
    (
        {**A, "output_config": {"format": {"type": "json_schema"}}},
        M,
        "output_config.format.schema",
    ),
    ({**A, "tools": {}}, T, "tools"),
    ({**A, "tools": [{"name": "f"}]}, M, "tools[0].input_schema"),
    ({**A, "tools": [{"input_schema": {}}]}, M, "tools[0].name"),
    ({**A, "tools": [TOOL, TOOL]}, V, "tools"),
    ({**A, "tool_choice": {"type": "any"}}, V, "tool_choice"),
    ({**A, "tool_choice": "any"}, T, "tool_choice"),
    ({**A, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, V, "tool_choice.name"),
    ({**A, "orchestration": {"max_steps": 0}}, V, "orchestration.max_steps"),
]


def responses(body):
    parse_history_references(body)
    return parse_response(body, ResponseHistory()).call


def messages(body):
    return parse_message(body).call


@dataclass(frozen=True)
class Dialect:
    path: str
    parse: Any
    cases: list
    good: dict


DIALECTS = [
    Dialect("/v1/responses", responses, RESPONSES, R),
    Dialect("/v1/messages", messages, MESSAGES, A),
]
CASES = [(dialect, *case) for dialect in DIALECTS for case in dialect.cases]


def named(value):
    return value.path if isinstance(value, Dialect) else value if isinstance(value, str) else ""


def book(dialect, body):
    wishes = dialect.parse(Fields(orjson.loads(orjson.dumps(body)))).options
    wishes.check(wishes.select_workers(pool_of("ada")), Limits(steps=1))


@pytest.mark.parametrize(("dialect", "body", "code", "param"), CASES, ids=named)
def test_the_first_thing_that_is_wrong_is_named(dialect, body, code, param):
    with pytest.raises(APIError) as caught:
        book(dialect, body)
    refusal = caught.value
    assert (refusal.status, refusal.code, refusal.param) == (400, code, param)
    assert param in refusal.message


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
async def test_every_bad_body_is_a_400_of_the_server_too(dialect, store):
    async with Serving(
        scripted_state({"ada": ScriptedClient(lambda _: "ok")}, store=store)
    ) as server:
        for body, code, param in dialect.cases:
            status, headers, got = await server.post(dialect.path, body=orjson.dumps(body))
            assert (status, got["error"]["code"], got["error"]["param"]) == (400, code, param)
            assert got["error"]["type"] == "invalid_request_error"
            assert headers["x-request-id"]


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 5000, b"[]", b"null"])
async def test_what_is_no_json_object(dialect, body):
    async with Serving() as server:
        status, _, got = await server.post(dialect.path, body=body)
    assert (status, got["error"]["type"]) == (400, "invalid_request_error")


LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)


def bodies(dialect):
    """Objects whose names and words are the dialect's own, put together at random."""
    paths = {path for _, _, path in dialect.cases}
    names = {name.split("[")[0] for path in paths for name in path.split(".")}
    names |= {"role", "content", "type", "text", "name", "id", "call_id", "output", "source"}
    words = [*sorted(names), "user", "assistant", "function", "function_call", "message"]
    words += ["function_call_output", "tool_use", "tool_result", "thinking", "enabled", "any"]
    words += ["item_reference", "reasoning", "allowed_tools", "json_schema", "batuta-mini"]
    json = st.recursive(
        LEAF | st.sampled_from(words),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(words) | st.text(max_size=4), inner, max_size=5)
        ),
        max_leaves=15,
    )
    return st.dictionaries(st.sampled_from(sorted(names)), json, max_size=6)


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
def test_any_object_is_a_call_or_a_400(dialect):
    @given(bodies(dialect), st.booleans())
    @settings(
        max_examples=3 * settings().max_examples, suppress_health_check=[HealthCheck.too_slow]
    )
    def check(body, good):
        refusal = None
        try:
            dialect.parse(Fields({**dialect.good, **body} if good else body))
        except APIError as caught:
            refusal = caught
        assert refusal is None or refusal.status == 400

    check()


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
async def test_any_body_is_never_a_5xx(dialect, store):
    found = []

    @given(bodies(dialect))
    @settings(
        max_examples=settings().max_examples * 50 // 100,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    def collect(body):
        found.append({**dialect.good, **body})

    collect()
    async with Serving(
        scripted_state({"ada": ScriptedClient(lambda _: "ok")}, store=store)
    ) as server:
        for body in found:
            try:
                data = orjson.dumps(body)
            except TypeError:  # integers over 64 bits
                continue
            headers = {"content-type": "application/json"}
            async with server.http.post(dialect.path, data=data, headers=headers) as response:
                await response.read()
                assert response.status in {200, 400, 404, 429, 504}, body


@pytest.mark.parametrize(
    ("dialect", "extra"),
    [
        (DIALECTS[0], {"top_logprobs": 0, "conversation": None, "truncation": "disabled"}),
        (DIALECTS[0], {"tools": [{"type": "local_shell"}], "tool_choice": "auto"}),
        (DIALECTS[0], {"reasoning": {"effort": None, "summary": "auto"}, "include": []}),
        (DIALECTS[0], {"text": {"format": {"type": "text"}, "verbosity": "low"}}),
        (DIALECTS[0], {"input": [{"type": "local_shell_call"}, {"role": "user", "content": ""}]}),
        (DIALECTS[1], {"top_k": None, "system": "", "thinking": {"type": "adaptive"}}),
        (
            DIALECTS[1],
            {"tools": [{**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}]},
        ),
        (DIALECTS[1], {"tool_choice": {"type": "none"}, "service_tier": "auto"}),
    ],
)
def test_what_asks_for_nothing_special_is_taken(dialect, extra):
    assert dialect.parse(Fields({**dialect.good, **extra})).question.messages
