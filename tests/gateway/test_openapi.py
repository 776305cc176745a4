"""GET /openapi.json: every route, the bodies as the parsers read them, true of real traffic."""

import json
from importlib.util import find_spec

import jsonschema_rs
import pytest

from batuta.clients import ScriptedClient
from batuta.gateway import create_app
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.mcp.endpoint import McpOptions
from batuta.gateway.openapi.document import OPERATIONS, build_document, described_routes
from batuta.gateway.openapi.field_recorder import body_schema
from batuta.store.key_hasher import KeyHasher
from gateway.live_server import HI, Serving, scripted_state
from gateway.test_malformed import GOOD

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def document():
    return build_document(create_app(scripted_state({"ada": object()})).routes)


def schema(document, name):
    """A schema with all that it refers to."""
    return {"$ref": f"#/components/schemas/{name}", "components": document["components"]}


def fits(document, name, value):
    return jsonschema_rs.is_valid(schema(document, name), value)


def test_every_route_is_described_and_no_other(document):
    routes = described_routes(create_app(scripted_state({"ada": object()})).routes)
    assert routes == set(OPERATIONS)
    told = {
        (method.upper(), path)
        for path, item in document["paths"].items()
        for method in item
        if method != "parameters"
    }
    assert told == routes


def test_where_tools_are_served_over_http_the_document_has_them():
    pytest.importorskip("mcp")
    served = build_document(create_app(scripted_state({"ada": object()}, mcp=McpOptions())).routes)
    assert list(served["paths"]["/v1/mcp"]) == ["post"]
    assert "Model Context Protocol" in served["paths"]["/v1/mcp"]["post"]["summary"]


@pytest.mark.skipif(find_spec("openapi_spec_validator") is None, reason="no openapi-spec-validator")
def test_the_document_is_openapi(document):
    from openapi_spec_validator import validate

    validate(document)


def test_every_schema_is_one(document):
    for name in document["components"]["schemas"]:
        jsonschema_rs.validator_for(schema(document, name))


def test_bodies_have_the_bounds_of_their_parsers(document):
    body = {"model": "m", "messages": HI}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = [*HI, {"role": "assistant", "tool_calls": [call]}]
    for good in (
        body,
        GOOD,
        {**body, "messages": called},
        {**body, "n": 3, "temperature": 2},
        {**body, "temperature": None},
    ):
        assert fits(document, "ChatRequest", good), good
    for bad in (
        {"messages": HI},
        {"model": "m"},
        {**body, "temperature": 2.5},
        {**body, "n": 129},
        {**body, "reasoning_effort": "huge"},
        {**body, "stream": "yes"},
        {**body, "orchestration": {"max_steps": 0}},
        {**body, "tools": [{"type": "function", "function": {"name": 3}}]},
    ):
        assert not fits(document, "ChatRequest", bad), bad
    assert fits(document, "MessageRequest", {**body, "max_tokens": 5})
    assert not fits(document, "MessageRequest", body)
    assert fits(document, "EmbeddingRequest", {"model": "m", "input": [[1]]})
    assert not fits(document, "EmbeddingRequest", {"model": "m"})
    assert not fits(document, "ResponseRequest", {"model": "m", "input": "x", "top_logprobs": 21})


def test_every_required_field_is_described(document):
    for name, schema in document["components"]["schemas"].items():
        assert set(schema.get("required", ())) <= schema.get("properties", {}).keys(), name


@pytest.mark.parametrize("name", ["ChatRequest", "ResponseRequest", "MessageRequest"])
def test_fields_that_are_refused_are_not_offered(document, name):
    offered = document["components"]["schemas"][name]["properties"]
    assert {"orchestration", "temperature", "stream", "tools"} <= offered.keys()
    assert not {"functions", "logit_bias", "conversation", "mcp_servers"} & offered.keys()


def test_branches_are_seen():
    def parse(body):
        if body.choice("kind", ("plain", "named")) == "named":
            body.need_text("name")
        body.need("at")
        inner = body.object("inner")
        return inner.whole("size", 1, 9) if inner else None

    found = body_schema(parse)
    assert found["required"] == ["at"] and found["properties"]["at"] == {}
    assert found["properties"]["name"]["type"] == ["string", "null"]
    assert found["properties"]["kind"]["enum"] == ["plain", "named", None]
    size = found["properties"]["inner"]["properties"]["size"]
    assert (size["minimum"], size["maximum"]) == (1, 9)


def test_what_follows_a_string_that_may_be_empty_is_seen():
    def parse(body):
        part = body.need_object("part")
        text = part.need_string("text")
        return text, part.whole("size", 1, 9), body.need_text("name")

    found = body_schema(parse)
    assert found["required"] == ["name", "part"]
    assert found["properties"]["part"]["required"] == ["text"]
    assert found["properties"]["part"]["properties"]["size"]["maximum"] == 9


async def test_what_is_answered_is_as_described(document):
    async with Serving(ada=ScriptedClient(lambda _: "Hello.")) as server:
        asked = {
            "/v1/chat/completions": {"model": "batuta-mini", "messages": HI},
            "/v1/responses": {"model": "batuta-mini", "input": "hi"},
            "/v1/messages": {"model": "batuta-mini", "messages": HI, "max_tokens": 9},
            "/v1/messages/count_tokens": {"model": "batuta-mini", "messages": HI},
        }
        for path, body in asked.items():
            operation = document["paths"][path]["post"]
            name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            assert fits(document, name.rpartition("/")[2], body)
            status, _, got = await server.post(path, json=body)
            answer = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
            assert status == 200
            assert fits(document, answer.rpartition("/")[2], got), got
            _, _, error = await server.post(path, json={})
            if path.startswith("/v1/messages"):
                continue  # Anthropic's errors have one more field
            assert fits(document, "Error", error), error
        _, listed = await server.get("/v1/models")
        assert fits(document, "List", listed)
        assert all(fits(document, "Model", model) for model in listed["data"])


async def test_it_is_served_to_everybody_and_tells_no_secret(store, document):
    hasher = KeyHasher(b"x" * 32)
    gate = Authenticator(store, hasher, "the-admins-own-token")
    app_state = scripted_state(
        {"adas-secret-name": ScriptedClient([])}, store=store, authenticator=gate
    )
    async with Serving(app_state) as server:
        async with server.http.get("/openapi.json") as response:
            text = await response.text()
            assert response.status == 200
        keyless, _ = await server.get("/v1/models")
    assert keyless == 401
    assert json.loads(text) == document
    assert "adas-secret-name" not in text
    assert "the-admins-own-token" not in text
