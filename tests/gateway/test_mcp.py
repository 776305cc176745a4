"""Hosts of the Model Context Protocol over HTTP: with the caller's key, its tenant, its money."""

from contextlib import asynccontextmanager
from dataclasses import replace
from io import BytesIO

import pytest

pytest.importorskip("mcp", reason="needs the extra mcp")

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from batuta.clients import ScriptedClient
from batuta.core import Reply
from batuta.gateway.mcp.endpoint import MCP_PATH, McpOptions, lowest_cost_limit
from fakes.serving import Server
from gateway.keyed_server import KeyedServer
from gateway.live_server import Serving, scripted_state

pytestmark = pytest.mark.anyio
OFFER = McpOptions(model="worker/ada", max_cost=0.5)


def said_by(result):
    return "".join(part.text for part in result.content)


@asynccontextmanager
async def host_of(url, key=""):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        transport = streamable_http_client(f"{url}{MCP_PATH}", http_client=http)
        async with Client(transport) as client:
            yield client


@asynccontextmanager
async def serving(store):
    keyed = KeyedServer(store)
    keyed.serving.app_state = replace(keyed.serving.app_state, mcp=OFFER)
    async with keyed:
        yield keyed


async def test_each_caller_asks_with_its_key_and_sees_its_own_runs(store):
    async with serving(store) as keyed:
        mine, other = await keyed.key("acme"), await keyed.key("other")
        async with host_of(keyed.serving.url, mine) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"ask", "plan", "runs"}
            assert set(tools["ask"].input_schema["properties"]) == {"question", "max_cost_usd"}
            assert tools["runs"].annotations.read_only_hint and not tools["ask"].annotations
            answer = said_by(await client.call_tool("ask", {"question": "hi"}))
            assert answer.startswith("Hello.\n\n[run_") and "$0.002" in answer
            await store.flush()
            assert "hi" in said_by(await client.call_tool("runs", {"limit": 5}))
        async with host_of(keyed.serving.url, other) as client:
            assert said_by(await client.call_tool("runs", {})) == "There are no runs yet."
    spent = {row.tenant: row.cost.usd for row in await store.list()}
    assert set(spent) == {"acme"}


async def test_a_refusal_is_the_answer():
    reply = Reply(text="I must not say.", is_refusal=True)
    app_state = scripted_state({"ada": ScriptedClient(lambda _: reply)})
    async with (
        Serving(replace(app_state, mcp=OFFER)) as serving,
        host_of(serving.url) as client,
    ):
        answer = said_by(await client.call_tool("ask", {"question": "hi"}))
    assert answer.startswith("I must not say.\n\n[run_")


async def test_without_a_key_nothing_is_served(store):
    async with serving(store) as keyed:
        await keyed.key("acme")
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        for key in ("", "bt-wrong"):
            status, _, said = await keyed.ask(key, MCP_PATH, json=message)
            assert status == 401 and said["error"]["code"] == "invalid_api_key"
        with pytest.raises(BaseExceptionGroup):
            async with host_of(keyed.serving.url, "bt-wrong"):
                pass


async def test_without_keys_no_other_site_reaches_it_by_a_name_of_its_own():
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with Serving(scripted_state({"ada": ScriptedClient([])}, mcp=OFFER)) as server:
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            async with server.http.post(MCP_PATH, json=message, headers=headers) as response:
                assert response.status in {400, 403, 421}, headers


async def test_what_the_api_refuses_is_one_sentence(store):
    async with serving(store) as keyed:
        poor = await keyed.key("acme", models=("batuta-mini",))
        async with host_of(keyed.serving.url, poor) as client:
            for tool, given in (("ask", {"question": "hi"}), ("plan", {"question": "hi"})):
                result = await client.call_tool(tool, given)
                assert result.is_error and "\n" not in said_by(result)
            result = await client.call_tool("ask", {"question": "hi", "max_cost_usd": -1})
            assert result.is_error
            for body in (b"{", b"[]", b'{"jsonrpc": "2.0", "method": 7}', b"x" * 900_000):
                head = {"authorization": f"Bearer {poor}", "content-type": "application/json"}
                async with keyed.serving.http.post(MCP_PATH, data=body, headers=head) as got:
                    assert 400 <= got.status < 500


async def test_no_number_lifts_the_limit_of_a_question(store):
    """OFFER allows $0.50; what is no number would be sent as none, and be no limit."""
    async with serving(store) as keyed:
        mine = await keyed.key("acme")
        head = {"authorization": f"Bearer {mine}", "content-type": "application/json"}
        head["accept"] = "application/json, text/event-stream"
        for number in ("NaN", '"nan"', "Infinity", "-Infinity", '"inf"', "1e999"):
            body = (
                '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask", '
                f'"arguments": {{"question": "hi", "max_cost_usd": {number}}}}}}}'
            )
            async with keyed.serving.http.post(MCP_PATH, data=body, headers=head) as got:
                said = await got.text()
                assert got.status >= 400 or '"isError":true' in said, (number, said)
        await store.flush()
        assert not await store.list()
    assert (
        lowest_cost_limit(None, 0.5) == lowest_cost_limit(0.7, 0.5) == 0.5
        and lowest_cost_limit(0.1, 0.5) == 0.1
    )
    assert lowest_cost_limit(None, None) is None and lowest_cost_limit(0.7, None) == 0.7


async def test_a_message_of_too_many_values_is_refused_before_it_is_read(store):
    message = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
    bodies = (b"[" + b",".join([message] * 50_000) + b"]", b'{"a":[' + b"1," * 900_000 + b"1]}")
    async with serving(store) as keyed:
        head = {"authorization": f"Bearer {await keyed.key()}", "content-type": "application/json"}
        for body in bodies:
            async with keyed.serving.http.post(MCP_PATH, data=BytesIO(body), headers=head) as got:
                assert got.status == 413
                assert (await got.json())["error"]["code"] == "request_too_large"


async def test_it_is_served_only_where_it_was_asked_for(store):
    keyed = KeyedServer(store)
    async with keyed:
        mine = await keyed.key()
        assert (await keyed.ask(mine, MCP_PATH, json={}))[0] == 404


async def test_the_command_serves_the_tools_beside_the_api(tmp_path):
    server = Server(tmp_path, "--pool", "rehearsal")
    server.command[0] = "mcp"
    async with server:
        async with host_of(str(server.http._base_url).rstrip("/")) as client:
            question = "Compute the result: begin at 45; square it."
            planned = said_by(await client.call_tool("plan", {"question": question}))
            assert planned.startswith("1. ") and "Expected: " in planned
            assert "2025" in said_by(await client.call_tool("ask", {"question": question}))
        assert "batuta-ultra" in await server.models()
