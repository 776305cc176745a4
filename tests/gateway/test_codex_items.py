"""What Codex sends with its maker's models: tools of free text, and requests for compaction."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.core import Finish, Reply, Role, ToolCall
from batuta.errors import BadRequestError
from batuta.gateway.http.body import Fields
from batuta.gateway.responses.compaction import compaction_body, pack_summary, read_summary
from batuta.gateway.responses.tools import custom_input
from batuta.store import Store
from gateway.live_server import Serving, scripted_state, stored

pytestmark = pytest.mark.anyio
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-a - b\n+a + b\n*** End Patch\n"
APPLY = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin_patch"},
}
INNER = {"type": "namespace", "name": "files", "tools": [{**APPLY, "name": "patch"}]}
READ = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}
TRIGGER = [
    {"role": "user", "content": "Mend a.py"},
    {"role": "assistant", "content": "I have read it."},
    {"type": "compaction_trigger"},
]


def patching(name="apply_patch", arguments=None):
    given = orjson.dumps({"input": PATCH}).decode() if arguments is None else arguments
    call = ToolCall(id="c1", name=name, arguments=given)
    asked = Reply(text="", tool_calls=(call,), finish=Finish.TOOL_CALLS)
    return ScriptedClient([asked, Reply(text="Done.")])


def asking(**fields):
    return {"model": "worker/ada", "input": "Mend it", "tools": [APPLY, READ], **fields}


async def stream(server, body):
    async with server.http.post("/v1/responses", json={**body, "stream": True}) as response:
        text = (await response.read()).decode()
        assert response.status == 200, text
    return [orjson.loads(frame.split("data: ")[1]) for frame in text.strip().split("\n\n")]


@pytest.mark.parametrize(
    ("tool", "known", "named"),
    [
        (APPLY, "apply_patch", {"name": "apply_patch"}),
        (INNER, "files__patch", {"name": "patch", "namespace": "files"}),
    ],
)
async def test_a_tool_of_free_text_is_called_with_its_text(tool, known, named):
    ada = patching(known)
    async with Serving(ada=ada) as server:
        status, headers, answer = await server.post("/v1/responses", json=asking(tools=[tool]))
    assert status == 200 and "x-batuta-ignored" not in headers
    (item,) = answer["output"]
    assert item | named == item
    assert (item["type"], item["input"], item["call_id"]) == ("custom_tool_call", PATCH, item["call_id"])  # fmt: skip
    (offered,) = ada.requests[0].tools
    assert (offered.name, offered.parameters["required"]) == (known, ["input"])
    assert "start: begin_patch" in offered.description


async def test_a_stream_tells_the_text_when_it_is_whole_and_again_later(store: Store):
    ada = patching()
    async with Serving(scripted_state({"ada": ada}, store=store)) as server:
        events = await stream(server, asking())
        kinds = [event["type"].removeprefix("response.") for event in events]
        assert kinds[-5:] == [
            "output_item.added",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.done",
            "output_item.done",
            "completed",
        ]
        assert (events[-4]["delta"], events[-3]["input"]) == (PATCH, PATCH)
        response = events[-1]["response"]
        async with server.http.get(
            f"/v1/responses/{response['id']}", params={"stream": "true"}
        ) as again:
            told = (await again.read()).decode()
        assert [orjson.loads(f.split("data: ")[1])["type"] for f in told.strip().split("\n\n")] == [
            event["type"] for event in events
        ]
        result = {"type": "custom_tool_call_output", "call_id": events[-2]["item"]["call_id"], "output": "ok"}  # fmt: skip
        body = asking(input=[result], previous_response_id=response["id"])
        assert (await server.post("/v1/responses", json=body))[0] == 200
    assert [m.role for m in ada.requests[-1].messages][-2:] == [Role.ASSISTANT, Role.TOOL]


@given(st.text())
def test_the_text_of_a_call_is_what_was_meant(text):
    assert custom_input(orjson.dumps({"input": text}).decode()) == text
    assert custom_input(orjson.dumps(text).decode()) == text


@pytest.mark.parametrize("written", [PATCH, '{"patch": "x"}', "[1]", "7", ""])
def test_arguments_of_another_form_are_given_as_they_are(written):
    assert custom_input(written) == written


async def test_a_compaction_is_one_item_and_goes_on_as_its_summary(store: Store):
    ada, bob = ScriptedClient(lambda _: "a.py has a wrong sign."), ScriptedClient(lambda _: "No.")
    async with Serving(scripted_state({"ada": ada, "bob": bob}, store=store)) as server:
        body = asking(model="batuta-ultra", input=TRIGGER, include=["reasoning.encrypted_content"])
        events = await stream(server, body)
        kinds = [event["type"].removeprefix("response.") for event in events]
        assert kinds == ["created", "in_progress", "output_item.added", "output_item.done", "completed"]  # fmt: skip
        (item,) = events[-1]["response"]["output"]
        assert item["type"] == "compaction"
        (row,) = await stored(store)
        assert row.conductor == "a compaction: answered by ada, not conducted"
        asked = ada.requests[0]
        assert not asked.tools and asked.messages[-1].role is Role.USER
        assert "sign" not in item["encrypted_content"]
        status, headers, answer = await server.post(
            "/v1/responses", json={"model": "worker/ada", "input": [item]}
        )
    assert status == 200 and "x-batuta-ignored" not in headers
    assert ada.requests[-1].messages[-1].text.endswith("a.py has a wrong sign.")
    assert answer["output"][0]["type"] == "message"


async def test_the_route_of_compaction_gives_what_takes_the_conversation_s_place(store: Store):
    """Codex without its newer compaction sends this, and puts `output` where the past was."""
    ada = ScriptedClient(lambda _: "a.py has a wrong sign.")
    async with Serving(scripted_state({"ada": ada}, store=store)) as server:
        body = asking(
            model="batuta-ultra",
            instructions="You are Codex.",
            input=[
                {"type": "message", "role": "developer", "content": "Rules."},
                *TRIGGER[:2],
                {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
                {"role": "user", "content": [{"type": "input_text", "text": "Go on"}]},
            ],
            reasoning={"effort": "medium"},
            stream=True,
        )
        status, headers, answer = await server.post("/v1/responses/compact", json=body)
        assert (status, answer["object"]) == (200, "response.compaction")
        assert "x-batuta-ignored" not in headers
        first, second, summary = answer["output"]
        assert first["content"] == [{"type": "input_text", "text": "Mend a.py"}]
        assert second["content"][0]["text"] == "Go on" and summary["type"] == "compaction"
        assert answer["usage"]["total_tokens"] >= 0
        (asked,) = ada.requests  # nothing was conducted
        assert not asked.tools and asked.messages[-1].role is Role.USER
        status, headers, _ = await server.post(
            "/v1/responses", json={"model": "worker/ada", "input": answer["output"]}
        )
        assert status == 200 and "x-batuta-ignored" not in headers
        assert ada.requests[-1].messages[-1].text.endswith("a.py has a wrong sign.")
        # who compacts keeps nothing here: Codex says `store: false` of the conversation itself
        assert [row.model for row in await stored(store)] == ["worker/ada"]


async def test_of_long_words_of_the_user_the_newest_stay_and_a_past_response_can_be_compacted(
    store: Store,
):
    ada = ScriptedClient(lambda _: "Short.")
    async with Serving(scripted_state({"ada": ada}, store=store)) as server:
        _, _, before = await server.post(
            "/v1/responses", json={"model": "worker/ada", "input": "x" * 70_000}
        )
        body = {"model": "worker/ada", "previous_response_id": before["id"]}
        _, _, answer = await server.post("/v1/responses/compact", json=body)
        assert [item["type"] for item in answer["output"]] == ["message", "compaction"]
        body["input"] = "y" * 20_000
        status, _, answer = await server.post("/v1/responses/compact", json=body)
    assert status == 200
    kept, _ = answer["output"]
    assert kept["content"][0]["text"] == "y" * 20_000


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "worker/ada"}, "input"),
        ({"model": "worker/ada", "input": 5}, "input"),
        ({"model": "worker/ada", "input": ["x"]}, "input[0]"),
        ({"input": "x"}, "model"),
        ({"model": "worker/ada", "input": [{"role": "user"}]}, "input[0].content"),
        ({"model": "gone", "input": "x"}, "model"),
    ],
)
async def test_a_wrong_body_of_compaction_is_refused_by_its_field(body, param):
    async with Serving(ada=ScriptedClient([])) as server:
        status, _, answer = await server.post("/v1/responses/compact", json=body)
    assert status in {400, 404} and answer["error"]["param"] == param


async def test_a_whole_answer_can_be_a_compaction_and_anothers_summary_is_left_out():
    async with Serving(ada=ScriptedClient(lambda _: "All of it.")) as server:
        _, headers, answer = await server.post("/v1/responses", json=asking(input=TRIGGER))
        assert [item["type"] for item in answer["output"]] == ["compaction"]
        assert "x-batuta-ignored" not in headers
        foreign = {"type": "compaction", "encrypted_content": "gAAAAB"}
        body = asking(input=[foreign, {"role": "user", "content": "Go on"}])
        status, headers, _ = await server.post("/v1/responses", json=body)
        assert (status, headers["x-batuta-ignored"]) == (200, "input.compaction")


def test_a_body_of_compaction_keeps_what_was_found_out_about_the_request():
    raw = {"model": "worker/ada", "input": "x"}
    body = Fields(raw, is_fresh=True, is_large=True, session="s", files=("file-1",))
    made = compaction_body(body)
    for name in ("is_fresh", "is_large", "session", "files"):
        assert getattr(made, name) == getattr(body, name), name


@given(st.text())
def test_a_summary_comes_back_as_it_was(text):
    found = read_summary(Fields({"type": "compaction", "encrypted_content": pack_summary(text)}))
    assert found is not None and found.text.endswith(text)


@pytest.mark.parametrize("kept", ["", "batuta-summary-1:%", "batuta-summary-1:gICA", "gAAAAB"])
def test_what_is_no_summary_of_ours_is_none(kept):
    assert read_summary(Fields({"type": "compaction", "encrypted_content": kept})) is None


async def test_a_stream_tells_that_a_refused_request_is_not_to_be_sent_again():
    refusing = ScriptedClient([BadRequestError("no such field", status=400)] * 3)
    async with Serving(ada=refusing) as server:
        events = await stream(server, asking())
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "invalid_prompt"


@pytest.mark.parametrize("announced", [{}, {"content-length": "0"}], ids=["direct", "by a proxy"])
async def test_who_wants_a_socket_is_told_to_go_on_without(caplog, announced):
    async with Serving(ada=ScriptedClient(lambda _: "hi")) as server:
        wanted = {"upgrade": "websocket", "connection": "upgrade", **announced}
        async with server.http.get("/v1/responses", headers=wanted) as response:
            assert response.status == 426
            assert "POST /v1/responses" in (await response.json())["error"]["message"]
        async with server.http.get("/v1/responses") as response:
            assert response.status == 405
    assert "pgrade" not in caplog.text and "WebSocket" not in caplog.text


SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {"type": "object"}}  # fmt: skip
FOUND = {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": [INNER, READ]}  # fmt: skip


def searched(**fields):
    """A conversation in which the client has looked for tools."""
    call = {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "patch"}}  # fmt: skip
    return asking(input=[{"role": "user", "content": "Mend it"}, call, {**FOUND, **fields}], tools=[SEARCH, READ])  # fmt: skip


async def test_a_search_for_tools_is_told_when_it_is_whole_and_again_later(store: Store):
    ada = patching("tool_search", '{"query": "patch"}')
    async with Serving(scripted_state({"ada": ada}, store=store)) as server:
        events = await stream(server, asking(tools=[SEARCH]))
        kinds = [event["type"].removeprefix("response.") for event in events]
        assert kinds[-3:] == ["output_item.added", "output_item.done", "completed"]
        item, response = events[-2]["item"], events[-1]["response"]
        told = {"type": "tool_search_call", "execution": "client", "arguments": {"query": "patch"}}
        assert item | told == item and item["status"] == "completed"
        where = f"/v1/responses/{response['id']}"
        async with server.http.get(where, params={"stream": "true"}) as again:
            frames = (await again.read()).decode().strip().split("\n\n")
        assert [orjson.loads(f.split("data: ")[1])["type"] for f in frames] == [e["type"] for e in events]  # fmt: skip


async def test_what_a_search_has_found_is_offered_once_and_called_by_its_own_name():
    ada = patching("files__patch")
    async with Serving(ada=ada) as server:
        status, headers, answer = await server.post("/v1/responses", json=searched())
    assert status == 200 and "x-batuta-ignored" not in headers
    assert {tool.name for tool in ada.requests[0].tools} == {"tool_search", "read", "files__patch"}
    (item,) = answer["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "files", "patch")


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": "all"}, "tools"),
        ({"tools": [{"name": "x"}]}, "tools"),
        ({"call_id": "c7"}, "call_id"),
    ],
)
async def test_a_malformed_result_of_a_search_is_named(fields, where):
    async with Serving(ada=patching()) as server:
        status, _, answer = await server.post("/v1/responses", json=searched(**fields))
    assert status == 400 and where in answer["error"]["param"]


async def test_a_provider_s_own_search_is_left_out_and_told():
    ada = patching()
    hosted = [{"type": "tool_search_call", "call_id": None, "arguments": {}}, {**FOUND, "call_id": None, "tools": []}]  # fmt: skip
    body = asking(input=[{"role": "user", "content": "Mend it"}, *hosted], tools=[APPLY, {"type": "tool_search"}])  # fmt: skip
    async with Serving(ada=ada) as server:
        status, headers, _ = await server.post("/v1/responses", json=body)
    assert status == 200
    assert headers["x-batuta-ignored"] == "tools.tool_search, input.tool_search_call, input.tool_search_output"  # fmt: skip
