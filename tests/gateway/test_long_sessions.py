"""Agents' long sessions: an array of a body is bounded by its bytes and values alone."""

from io import BytesIO

import orjson
import pytest

from batuta.clients import ScriptedClient
from gateway.live_server import Serving, scripted_state

pytestmark = pytest.mark.anyio
TURNS = 5000
SCHEMA = {"type": "object"}
NAMES = [f"tool_{number}" for number in range(600)]
CHAT = [
    message
    for number in range(TURNS)
    for message in (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": f"c{number}", "type": "function", "function": {"name": "tool_1", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": f"c{number}", "content": "ok"},
    )
]  # fmt: skip
MESSAGES = [
    message
    for number in range(TURNS)
    for message in (
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": f"c{number}", "name": "tool_1", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{number}", "content": "ok"}]},
    )
]  # fmt: skip
ITEMS = [
    item
    for number in range(TURNS)
    for item in (
        {"type": "function_call", "call_id": f"c{number}", "name": "tool_1", "arguments": "{}"},
        {"type": "function_call_output", "call_id": f"c{number}", "output": "ok"},
    )
]
USER = {"role": "user", "content": "Go on."}
BODIES = {
    "/v1/chat/completions": {
        "messages": [USER, *CHAT],
        "tools": [
            {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES
        ],
    },
    "/v1/messages": {
        "messages": [USER, *MESSAGES],
        "max_tokens": 9,
        "tools": [{"name": name, "input_schema": SCHEMA} for name in NAMES],
    },
    "/v1/responses": {
        "input": [USER, *ITEMS],
        "tools": [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES],
    },
}


@pytest.mark.parametrize("path", BODIES)
async def test_thousands_of_turns_and_hundreds_of_tools_are_taken(path):
    ada = ScriptedClient(lambda _: "Done.")
    async with Serving(scripted_state({"ada": ada})) as server:
        body = BytesIO(orjson.dumps({"model": "worker/ada", **BODIES[path]}))
        kind = {"content-type": "application/json"}
        status, _, told = await server.post(path, data=body, headers=kind)
        assert status == 200, told
        parts = [{"type": "text", "text": "a"}] * 900
        kind = "input" if path.endswith("responses") else "messages"
        short = {**BODIES[path], kind: [{"role": "user", "content": parts}], "model": "worker/ada"}
        assert (await server.post(path, json=short))[0] == 200
    first, second = ada.requests
    assert (len(first.messages), len(first.tools)) == (2 * TURNS + 1, len(NAMES))
    assert len(second.messages[0].parts) == 900
