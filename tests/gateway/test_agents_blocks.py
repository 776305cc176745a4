"""What Codex and Claude Code send beside plain text and functions reaches the workers, and comes back."""

import json
from dataclasses import replace

import pytest

from batuta.clients import ScriptedClient
from batuta.core import Reply, Role, ToolCall
from batuta.core.worker import Finish
from batuta.gateway.responses.tools import flat_name
from gateway.live_server import HI, Serving, scripted_state

pytestmark = pytest.mark.anyio
FUNCTION = {
    "type": "function",
    "name": "create_issue",
    "parameters": {"type": "object"},
    "strict": False,
}
GITHUB = {
    "type": "namespace",
    "name": "mcp__github",
    "description": "Tools in the mcp__github namespace.",
    "tools": [
        FUNCTION,
        {"type": "function", "name": "x" * 70, "parameters": {}},
        {"type": "shell", "name": "c"},
    ],
}
OWN = {"type": "function", "name": "create_issue", "parameters": {"type": "object"}}
CALL = Reply(
    text="",
    tool_calls=(
        ToolCall(id="c1", name="mcp__github__create_issue", arguments='{"a": 1}'),
        ToolCall(id="c2", name="create_issue", arguments="{}"),
        ToolCall(id="c3", name=flat_name("mcp__github", "x" * 70), arguments="{}"),
    ),
    finish=Finish.TOOL_CALLS,
)
ASKED = {"model": "worker/ada", "input": "Go.", "tools": [GITHUB, OWN]}
NAMED = [
    ("create_issue", "mcp__github"),
    ("create_issue", None),
    ("x" * 70, "mcp__github"),
]


def calls_of(items):
    return [(i["name"], i.get("namespace")) for i in items if i["type"] == "function_call"]


@pytest.mark.parametrize("model", ["worker/ada", "batuta-mini", "batuta-ultra"])
async def test_a_namespace_s_functions_are_offered_and_called_back(model):
    ada = ScriptedClient(lambda request: CALL if request.tools else "{}")
    async with Serving(scripted_state({"ada": ada})) as server:
        status, headers, told = await server.post("/v1/responses", json={**ASKED, "model": model})
        assert (status, calls_of(told["output"])) == (200, NAMED)
        assert headers["x-batuta-ignored"] == "tools.namespace.shell"
        assert told["tools"][0] == GITHUB
        offered = [tool.name for tool in ada.requests[-1].tools]
        assert offered[0] == "mcp__github__create_issue" and offered[2] == "create_issue"
        assert all(len(name) <= 64 for name in offered) and len(set(offered)) == 3


async def test_it_is_the_same_in_a_stream_and_in_the_turns_after_it():
    ada = ScriptedClient(
        lambda request: CALL if request.messages[-1].role is Role.USER else "Done."
    )
    async with Serving(scripted_state({"ada": ada})) as server:
        async with server.http.post("/v1/responses", json={**ASKED, "stream": True}) as response:
            lines = (await response.text()).splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        added = [e["item"] for e in events if e["type"] == "response.output_item.added"]
        assert (
            calls_of(added) == calls_of(done) == calls_of(events[-1]["response"]["output"]) == NAMED
        )
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}
            for item in done
        ]
        items = [{"role": "user", "content": "Go."}, *done, *results]
        status, _, told = await server.post("/v1/responses", json={**ASKED, "input": items})
        assert (status, told["output"][0]["content"][0]["text"]) == (200, "Done.")
    given = [part.name for message in ada.requests[-1].messages for part in message.parts
             if isinstance(part, ToolCall)]  # fmt: skip
    assert given == [call.name for call in CALL.tool_calls]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "create_issue", "namespace": "mcp__github"},
        {"type": "allowed_tools", "mode": "required", "tools": [
            {"type": "function", "name": "create_issue", "namespace": "mcp__github"}]},
    ],
)  # fmt: skip
async def test_a_function_of_a_namespace_can_be_chosen(choice):
    ada = ScriptedClient(lambda _: replace(CALL, tool_calls=CALL.tool_calls[:1]))
    async with Serving(scripted_state({"ada": ada})) as server:
        assert (await server.post("/v1/responses", json={**ASKED, "tool_choice": choice}))[0] == 200
        status, _, told = await server.post(
            "/v1/responses",
            json={**ASKED, "tool_choice": {**choice, "namespace": "other", "mode": "x"}},
        )
        assert status == 400, told
    (request,) = ada.requests
    assert request.tool_choice == "mcp__github__create_issue" or len(request.tools) == 1


def test_names():
    assert flat_name("mcp__a__", "b") == "mcp__a__b"
    assert flat_name(None, "b") == "b"
    assert flat_name("my server", "b") != flat_name("my_server", "b")


REFERENCE = {"type": "tool_reference", "tool_name": "weather"}
FOUND = {
    "type": "search_result",
    "source": "https://a.org",
    "title": "A page",
    "content": [{"type": "text", "text": "Its words."}],
    "citations": {"enabled": True},
}
SERVER_CALL = [
    {"type": "mcp_tool_use", "id": "m1", "name": "find", "server_name": "docs", "input": {"q": 1}},
    {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": False,
     "content": [{"type": "text", "text": "Chapter two."}]},
]  # fmt: skip
TURNS = [
    *HI,
    {"role": "assistant", "content": [*SERVER_CALL, {"type": "text", "text": "I looked."},
                                      {"type": "tool_use", "id": "t1", "name": "search", "input": {}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": [REFERENCE, FOUND]}, FOUND]},
]  # fmt: skip


async def test_claude_code_s_blocks_are_read():
    ada = ScriptedClient(lambda _: "Fine.")
    async with Serving(scripted_state({"ada": ada})) as server:
        body = {"model": "worker/ada", "max_tokens": 9, "messages": TURNS}
        status, _, told = await server.post("/v1/messages", json=body)
        assert status == 200, told
        status, _, told = await server.post("/v1/messages/count_tokens", json=body)
        assert status == 200 and told["input_tokens"] > 20
    said = repr(ada.requests[0].messages)
    for words in ("Chapter two.", "docs/find", "I looked.", "The tool weather can be called"):
        assert words in said
    assert said.count("Its words.") == 2 and "https://a.org" in said


async def test_a_summary_that_stands_for_an_earlier_conversation_reaches_the_worker():
    summary = {"type": "compaction", "content": "They seek page nine.", "encrypted_content": "x"}
    listing = {"type": "mcp_tool_listing", "mcp_server_name": "docs", "tools": []}
    failed = {"type": "compaction", "content": None}
    ada = ScriptedClient(lambda _: "Fine.")
    async with Serving(scripted_state({"ada": ada})) as server:
        turns = [{"role": "assistant", "content": [summary, listing, failed]}, *HI]
        body = {"model": "worker/ada", "max_tokens": 9, "messages": turns}
        status, _, told = await server.post("/v1/messages", json=body)
    assert status == 200, told
    assert ada.requests[0].messages[0].text == "They seek page nine."


@pytest.mark.parametrize(
    "thread",
    [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_run_1"}],
)
async def test_a_thread_is_refused_in_the_form_after_which_clients_send_the_whole_conversation(
    thread,
):
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "12 C"}
    turns = [{"role": "user", "content": [result]}] if thread["type"] == "continue" else HI
    async with Serving(scripted_state({"ada": ScriptedClient(lambda _: "Fine.")})) as server:
        body = {"model": "worker/ada", "max_tokens": 9, "messages": turns, "thread": thread}
        status, _, told = await server.post("/v1/messages", json=body)
        assert (status, told["error"]["param"]) == (400, "thread")
        assert told["error"]["details"] == {"error_code": "thread_unsupported_request"}
        status, _, _ = await server.post(
            "/v1/messages", json={**body, "messages": HI, "thread": None}
        )
        assert status == 200
