"""Pages and programs as tools of the server: asked for in their dialects, run in the model's loop, bounded."""

import re
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any

import openai
import orjson
import pytest

from batuta.clients import HttpTransport, ScriptedClient
from batuta.config.tool_settings import PythonSetting, ReaderSetting, SearchSetting, ToolsSetting
from batuta.config.tools import open_served_tools
from batuta.core import (
    Cost,
    Finish,
    Image,
    Reply,
    Request,
    Role,
    TokenLogprob,
    ToolCall,
    Usage,
    user_message,
)
from batuta.core.server_tools import RequestedTool
from batuta.gateway.responses.events import replay_events
from batuta.gateway.telemetry.spans import spans_of
from batuta.store.key_permissions import KeyPermissions, permissions_json, read_permissions
from batuta.store.ledger import ledger_lines
from fakes.sdks import anthropic
from fakes.web import FakeWeb
from gateway.keyed_server import KeyedServer
from gateway.live_server import Serving, pool_of, scripted_state

pytestmark = pytest.mark.anyio
MODEL = "worker/ada"
ASKED = "the address"
FETCH = {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 3}
CODE = {"type": "code_execution_20250522", "name": "code_execution"}
CONTAINER = {"type": "code_interpreter", "container": {"type": "auto"}}
PROGRAMS = ("x = 20", "print('so')\nx + 1", "x / 0")


def calling(*calls, answer="Done [1]."):
    """A model that makes these calls, one a turn, and then answers; it reads the address that it was asked to."""

    def reply(request):
        done = sum(message.role is Role.TOOL for message in request.messages)
        if done < len(calls) and request.tool_choice != "none":
            name, arguments = calls[done]
            said = re.search(r"http:\S+?(?=\.$|\.\s|\s|$)", request.messages[-1 - 2 * done].text)
            arguments = {k: said[0] if v is ASKED and said else v for k, v in arguments.items()}
            made = ToolCall(
                id=f"call_{done}", name=name, arguments=orjson.dumps(arguments).decode()
            )
            return Reply(
                text="", tool_calls=(made,), finish=Finish.TOOL_CALLS, usage=Usage(calls=1)
            )
        return Reply(text=answer, usage=Usage(calls=1))

    return ScriptedClient(reply)


def programs(*codes):
    return calling(*(("code_interpreter", {"code": code}) for code in codes), answer="It is 21.")


@asynccontextmanager
async def serving(ada, *, search=False, pages=True, code=True, **limits):
    async with FakeWeb() as fake, HttpTransport() as http:
        tools = ToolsSetting(
            search=SearchSetting(engine="searxng", base_url=fake.url, server_tool=True)
            if search
            else None,
            reader=ReaderSetting(server_tool=pages, private_hosts=(fake.host,)),
            python=PythonSetting(server_tool=True, **limits) if code else None,
        )
        offered = open_served_tools(tools, http, {}) if tools.served else None
        async with Serving(scripted_state({"ada": ada}, server_tools=offered)) as server:
            yield server, fake


def results_told(ada) -> list[str]:
    """What the model was told of its calls."""
    last = ada.requests[-1]
    return [message.parts[0].content for message in last.messages if message.role is Role.TOOL]


def message_body(said, *tools, **fields):
    asked = [{"role": "user", "content": said}]
    return {"model": MODEL, "max_tokens": 500, "messages": asked, "tools": list(tools), **fields}


async def read_frames(server, path, body):
    async with server.http.post(path, json=body | {"stream": True}) as response:
        text = (await response.read()).decode()
        assert response.status == 200, text
    data = [frame.split("data: ", 1)[1] for frame in text.strip().split("\n\n")]
    return [orjson.loads(each) for each in data if each != "[DONE]"]


async def test_a_message_has_the_page_that_was_read():
    ada = calling(("web_fetch", {"url": ASKED}))
    async with serving(ada) as (server, fake):
        body = message_body(f"Read {fake.url}/imola-observatory please.", FETCH)
        api = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
        async with api:
            got: Any = await api.messages.create(**body)
            async with api.messages.stream(**body) as stream:
                streamed: Any = await stream.get_final_message()
    asked, read, last = got.content
    assert (asked.type, asked.name) == ("server_tool_use", "web_fetch")
    assert asked.input == {"url": f"{fake.url}/imola-observatory"}
    assert read.type == "web_fetch_tool_result" and read.tool_use_id == asked.id
    assert read.content.url == asked.input["url"] and read.content.content.type == "document"
    assert "<fetched_text>" in read.content.content.source.data
    assert last.citations[0].url == read.content.url
    assert got.usage.server_tool_use.web_fetch_requests == 1
    assert [block.type for block in streamed.content] == [block.type for block in got.content]
    assert streamed.content[1].content == read.content
    (told,) = results_told(ada)
    assert told.startswith(f"[1] {fake.url}/imola-observatory")


LOOK = {"name": "look", "input_schema": {"type": "object"}}
LOOK_FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}


@pytest.mark.parametrize("dialect", ["messages", "responses"])
async def test_a_model_that_read_a_page_and_called_a_clients_tool_need_not_read_it_again(dialect):
    """Clients send the result of their tool; not all of what the server's tools had returned."""
    ada = calling(("web_fetch", {"url": ASKED}), ("look", {}), answer="It is so.")
    async with serving(ada, search=True) as (server, fake):
        said = f"Read {fake.url}/imola-observatory please."
        if dialect == "messages":
            body = message_body(said, FETCH, LOOK)
            _, _, got = await server.post("/v1/messages", json=body)
            (call,) = [block for block in got["content"] if block["type"] == "tool_use"]
            seen = {"type": "tool_result", "tool_use_id": call["id"], "content": "Seen."}
            body["messages"] += [
                {"role": "assistant", "content": got["content"]},
                {"role": "user", "content": [seen]},
            ]
            status, _, got = await server.post("/v1/messages", json=body)
        else:
            body = {"model": MODEL, "input": said, "tools": [{"type": "web_search"}, LOOK_FUNCTION]}
            _, _, got = await server.post("/v1/responses", json=body)
            call = got["output"][-1]
            seen = {"type": "function_call_output", "call_id": call["call_id"], "output": "Seen."}
            history = [{"role": "user", "content": said}, *got["output"], seen]
            status, _, got = await server.post("/v1/responses", json={**body, "input": history})
    assert status == 200, got
    _, turn, result = ada.requests[-1].messages
    assert turn.text.startswith(f"Called web_fetch with:\n{fake.url}/imola-observatory\n")
    assert turn.text.count("<fetched_text>") == 1 and result.role is Role.TOOL


async def test_only_an_address_that_was_named_is_read():
    """A page that gives orders cannot make a model carry a secret away in an address."""
    for said, url, is_read in (
        ("Read {fake}/imola-observatory.", "{fake}/imola-observatory", True),
        ("Read {fake}/imola-observatory?a=", "{fake}/imola-observatory?a=secret", False),
        ("My secret is xyz.", "{fake}/imola-observatory", False),
    ):
        async with FakeWeb() as fake, HttpTransport() as http:
            ada = calling(("web_fetch", {"url": url.format(fake=fake.url)}))
            pages = ReaderSetting(server_tool=True, private_hosts=(fake.host,))
            offered = open_served_tools(ToolsSetting(reader=pages), http, {})
            async with Serving(scripted_state({"ada": ada}, server_tools=offered)) as server:
                body = message_body(said.format(fake=fake.url), FETCH)
                _, _, got = await server.post("/v1/messages", json=body)
        assert bool(fake.received) is is_read
        told = got["content"][1]["content"]
        assert is_read or told["error_code"] == "unavailable"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("code_interpreter", {"code": "print('{fake}/?a=secret')"}),
        ("web_fetch", {"url": "none", "{fake}/?a=secret": 1}),
    ],
)
async def test_neither_a_program_nor_a_refused_call_names_an_address(name, arguments):
    async with FakeWeb() as fake, HttpTransport() as http:
        first = orjson.loads(orjson.dumps(arguments).decode().replace("{fake}", fake.url))
        ada = calling((name, first), ("web_fetch", {"url": f"{fake.url}/?a=secret"}))
        tools = ToolsSetting(
            reader=ReaderSetting(server_tool=True, private_hosts=(fake.host,)),
            python=PythonSetting(server_tool=True),
        )
        offered = open_served_tools(tools, http, {})
        async with Serving(scripted_state({"ada": ada}, server_tools=offered)) as server:
            await server.post("/v1/messages", json=message_body("Compute.", FETCH, CODE))
        assert not fake.received and "=secret" in results_told(ada)[0]


@pytest.mark.parametrize("kind", [CODE, CODE | {"type": "code_execution_20250825"}])
async def test_a_message_has_its_programs_and_what_they_printed(kind):
    ada = programs(*PROGRAMS)
    async with serving(ada) as (server, _):
        body = message_body("Compute.", kind)
        api = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
        async with api:
            got: Any = await api.messages.create(**body)
            async with api.messages.stream(**body) as stream:
                streamed: Any = await stream.get_final_message()
    kinds = ["server_tool_use", "code_execution_tool_result"] * 3
    assert [block.type for block in got.content] == [*kinds, "text"]
    assert [got.content[at].input["code"] for at in (0, 2, 4)] == list(PROGRAMS)
    assert {got.content[at].name for at in (0, 2, 4)} == {"code_execution"}
    first, second, third = (got.content[at].content for at in (1, 3, 5))
    assert (first.stdout, first.return_code) == ("", 0)
    assert (second.stdout, second.return_code) == ("so\n21\n", 0)
    assert third.return_code == 1 and "ZeroDivisionError" in third.stderr
    assert [block.type for block in streamed.content] == [block.type for block in got.content]
    assert streamed.content[3].content.stdout == "so\n21\n"
    assert results_told(ada)[1] == "so\n21" and "It failed.\n" in results_told(ada)[2]


async def test_a_response_has_its_programs_as_items_and_events():
    async with serving(programs(*PROGRAMS[:2])) as (server, _):
        body = {"model": MODEL, "input": "Compute.", "tools": [CONTAINER]}
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="any", max_retries=0
        ) as api:
            got: Any = await api.responses.create(**body)
        events = await read_frames(server, "/v1/responses", body)
    assert [item.type for item in got.output] == ["code_interpreter_call"] * 2 + ["message"]
    first, second, _ = got.output
    assert (first.code, first.outputs, first.status) == (PROGRAMS[0], [], "completed")
    assert second.outputs[0].logs == "so\n21" and second.container_id == first.container_id
    phases = ["_call.in_progress", "_call_code.delta", "_call_code.done", "_call.interpreting"]
    told = [event["type"] for event in events if "code_interpreter" in event["type"]]
    assert told == [f"response.code_interpreter{p}" for p in (*phases, "_call.completed")] * 2
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    streamed = events[-1]["response"]["output"]
    assert [(i["type"], i.get("code"), i.get("outputs")) for i in streamed] == [
        (i["type"], i.get("code"), i.get("outputs"))
        for i in (item.model_dump(exclude_unset=True) for item in got.output)
    ]
    again = replay_events(events[-1]["response"])
    assert again[-1]["response"]["output"] == streamed
    assert [e["type"] for e in again if "delta" not in e["type"]] == [
        e["type"] for e in events if "delta" not in e["type"]
    ]


async def test_a_search_of_a_response_opens_pages_where_pages_are_read():
    search = ("web_search", {"query": "Imola observatory"})
    page = ("web_fetch", {"url": ASKED})
    for pages in (True, False):
        ada = calling(*((search, page) if pages else (search,)))
        async with serving(ada, search=True, pages=pages, code=False) as (server, fake):
            said = f"Search, and read {fake.url}/imola-observatory."
            body = {"model": MODEL, "input": said, "tools": [{"type": "web_search"}]}
            _, _, got = await server.post("/v1/responses", json=body)
            messages = message_body(said, {"type": "web_search_20250305", "name": "web_search"})
            await server.post("/v1/messages", json=messages)
        names = [[tool.name for tool in request.tools] for request in ada.requests]
        assert names[0] == ["web_search", "web_fetch"][: 1 + pages] and names[-1] == ["web_search"]
        actions = [i["action"] for i in got["output"] if i["type"] == "web_search_call"]
        assert [action["type"] for action in actions] == ["search", "open_page"][: 1 + pages]
        if pages:
            assert actions[1]["url"] == f"{fake.url}/imola-observatory"
            assert results_told_first(ada, 1).startswith("[9] ")  # after the eight of the search


def results_told_first(ada, at) -> str:
    told = [m.parts[0].content for m in ada.requests[2].messages if m.role is Role.TOOL]
    return told[at]


async def test_programs_are_bounded_by_number_and_time():
    ada = programs("1", "2", "3", "4")
    async with serving(ada, max_uses=2) as (server, _):
        _, _, got = await server.post("/v1/messages", json=message_body("Compute.", CODE))
    codes = [
        block["content"].get("error_code")
        for block in got["content"]
        if block["type"] == "code_execution_tool_result"
    ]
    assert codes == [None, None, "too_many_requests"] and got["content"][-1]["text"]
    ada = programs("x = 1\nwhile True: pass", "'x' in globals()")
    async with serving(ada, timeout_s=1.5) as (server, _):
        _, _, got = await server.post("/v1/messages", json=message_body("Compute.", CODE))
    stopped, after = (got["content"][at]["content"] for at in (1, 3))
    assert "more than 1.5 seconds" in stopped["stderr"] and stopped["return_code"] == 1
    assert after["stdout"] == "False\n"  # what passed a limit is not run again


@pytest.mark.parametrize(
    "ending", ["import os; os.abort()", "import os; os._exit(0)", "raise KeyboardInterrupt"]
)
async def test_a_program_that_ends_its_process_does_not_end_later_ones(ending):
    ada = programs("import subprocess\nsubprocess.run(['echo', 'once'])\nx = 1", ending, "x + 1")
    async with serving(ada) as (server, _):
        await server.post("/v1/messages", json=message_body("Compute.", CODE))
    assert [results_told(ada)[at] for at in (0, 2)] == ["once", "2"]


@pytest.mark.parametrize("tool", [FETCH, CODE])
async def test_a_model_can_be_made_to_call_it(tool):
    ada = programs()
    async with serving(ada) as (server, _):
        choice = {"type": "tool", "name": tool["name"]}
        body = message_body("Compute.", tool, tool_choice=choice)
        assert (await server.post("/v1/messages", json=body))[0] == 200
    name = ada.requests[0].tool_choice
    assert name == {"web_fetch": "web_fetch", "code_execution": "code_interpreter"}[tool["name"]]


FUNCTION = {"type": "function", "name": "weather"}
PROGRAM = {"type": "code_interpreter"}


@pytest.mark.parametrize("dialect", ["responses", "chat"])
@pytest.mark.parametrize(
    ("mode", "allowed", "offered", "choice"),
    [
        ("auto", [FUNCTION], {"weather"}, "auto"),
        ("required", [FUNCTION], {"weather"}, "required"),
        ("auto", [PROGRAM], {"code_interpreter"}, None),
        ("required", [PROGRAM], {"code_interpreter"}, "code_interpreter"),
        ("required", [FUNCTION, PROGRAM], {"weather", "code_interpreter"}, "required"),
    ],
)
async def test_only_allowed_tools_are_offered(dialect, mode, allowed, offered, choice):
    """A tool of the server that the client does not allow is not offered, as it costs money."""
    ada = ScriptedClient(lambda _: "Done.")
    async with serving(ada) as (server, _):
        function = FUNCTION | {"parameters": {"type": "object"}}
        picked = {"mode": mode, "tools": allowed}
        body = {"model": MODEL, "tools": [function, CONTAINER]}
        if dialect == "responses":
            body |= {"input": "Hi", "tool_choice": {"type": "allowed_tools", **picked}}
            status, _, got = await server.post("/v1/responses", json=body)
        else:
            nested = [{"type": "function", "function": {"name": "weather"}}, PROGRAM]
            picked["tools"] = [
                each for each in nested if each["type"] in {a["type"] for a in allowed}
            ]
            tools = [{"type": "function", "function": {"name": "weather"}}, CONTAINER]
            body |= {"messages": [{"role": "user", "content": "Hi"}], "tools": tools}
            body |= {"tool_choice": {"type": "allowed_tools", "allowed_tools": picked}}
            status, _, got = await server.post("/v1/chat/completions", json=body)
    # A required call that the scripted model does not make is an error.
    assert status == (502 if choice == "required" else 200), got
    assert {tool.name for tool in ada.requests[0].tools} == offered
    assert ada.requests[0].tool_choice == choice


async def test_what_is_not_served_is_ignored_and_said():
    ada = programs()
    async with serving(ada, pages=False, code=False) as (server, _):
        _, headers, got = await server.post("/v1/messages", json=message_body("Hi", FETCH, CODE))
        assert headers["x-batuta-ignored"] == f"tools.{FETCH['type']}, tools.{CODE['type']}"
        _, headers, _ = await server.post(
            "/v1/responses", json={"model": MODEL, "input": "Hi", "tools": [CONTAINER]}
        )
        assert headers["x-batuta-ignored"] == "tools.code_interpreter"
    assert [block["type"] for block in got["content"]] == ["text"]
    assert all(not request.tools for request in ada.requests)


async def test_log_probabilities_and_pictures_of_all_turns_are_in_the_reply():
    told = (TokenLogprob(token="a", logprob=-0.5),)
    drawn = (Image(url="data:image/png;base64,AAAA"),)

    def reply(request):
        if any(message.role is Role.TOOL for message in request.messages):
            return Reply(text="b", logprobs=told, usage=Usage(calls=1))
        call = ToolCall(id="c", name="code_interpreter", arguments='{"code": "1"}')
        return Reply(
            text="a",
            logprobs=told,
            images=drawn,
            tool_calls=(call,),
            finish=Finish.TOOL_CALLS,
            usage=Usage(calls=1),
        )

    offered = open_served_tools(ToolsSetting(python=PythonSetting(server_tool=True)), None, {})  # pyright: ignore[reportArgumentType]
    requested = (RequestedTool(tool="code_interpreter", field="tools"),)
    client = offered.wrap_client(ScriptedClient(reply), pool_of("ada").workers[0], requested)
    tools = tuple(offered.tools.values())
    got = await client.complete(Request(messages=(user_message("Compute."),), tools=tools))
    assert (len(got.logprobs), got.images) == (2, drawn)


async def test_programs_of_two_requests_share_nothing():
    async with serving(programs("x = 1")) as (server, _):
        await server.post("/v1/messages", json=message_body("Compute.", CODE))
        await server.post("/v1/messages", json=message_body("Compute.", CODE))
    ada = programs("'x' in globals()")
    async with serving(ada) as (server, _):
        for _ in range(2):
            await server.post("/v1/messages", json=message_body("Compute.", CODE))
            assert results_told(ada) == ["False"]


async def test_the_ledger_has_a_line_for_each_tool(store):
    search = ("web_search", {"query": "Imola observatory"})
    page, program = ("web_fetch", {"url": ASKED}), ("code_interpreter", {"code": "1"})
    ada = calling(search, search, page, program)
    async with FakeWeb() as fake, HttpTransport() as http:
        tools = ToolsSetting(
            search=SearchSetting(
                engine="searxng", base_url=fake.url, server_tool=True, price=Decimal("0.005")
            ),
            reader=ReaderSetting(server_tool=True, private_hosts=(fake.host,)),
            python=PythonSetting(server_tool=True),
        )
        offered = open_served_tools(tools, http, {})
        state = scripted_state({"ada": ada}, server_tools=offered, store=store)
        async with Serving(state) as server:
            kinds = ({"type": "web_search_20250305", "name": "web_search"}, FETCH, CODE)
            body = message_body(f"Read {fake.url}/imola-observatory.", *kinds)
            status, headers, _ = await server.post("/v1/messages", json=body)
            assert status == 200
            async with server.http.get(f"/ui/runs/{headers['x-batuta-run-id']}") as response:
                told = re.findall(
                    r"<li><b>(\w+)</b> <code>(.*?)</code> (.*?)</li>", await response.text()
                )
    query = "Imola observatory"
    assert [each[:2] for each in told[:2]] == [("web_search", query)] * 2
    assert re.fullmatch(r"\d found, \$0\.005\d*, [\d.]+ m?s", told[0][2])
    assert [(name, said.rpartition(", ")[0]) for name, _, said in told[2:]] == [
        ("web_fetch", "1 found, $0"), ("code_interpreter", "done, $0")
    ]  # fmt: skip
    run = await store.get(headers["x-batuta-run-id"])
    lines = {(line.kind, line.name): line for line in ledger_lines(run)}
    assert {name: line.usage.calls for (kind, name), line in lines.items() if kind == "tool"} == {
        "web_search": 2,
        "web_fetch": 1,
        "code_interpreter": 1,
    }
    assert lines["tool", "web_search"].cost == Cost(Decimal("0.010"))
    assert lines["worker", "ada"].cost.usd == 0 and lines["worker", "ada"].usage.calls == 5
    assert sum(line.cost.usd for line in lines.values()) == run.cost.usd
    assert sum(line.cost.unpriced_calls for line in lines.values()) == run.cost.unpriced_calls


async def test_a_key_may_have_some_tools_alone(store):
    async with HttpTransport() as http:
        tools = ToolsSetting(
            reader=ReaderSetting(server_tool=True), python=PythonSetting(server_tool=True)
        )
        offered = open_served_tools(tools, http, {})

        def reply(request):
            told = any(message.role is Role.TOOL for message in request.messages)
            if told or all(tool.name != "code_interpreter" for tool in request.tools):
                return Reply(text="Done.")
            call = ToolCall(id="c", name="code_interpreter", arguments='{"code": "1"}')
            return Reply(text="", tool_calls=(call,), finish=Finish.TOOL_CALLS)

        ada = ScriptedClient(reply)
        keyed = KeyedServer(store, ada=ada)
        catalogue = replace(keyed.serving.app_state.catalogue, server_tools=offered)
        keyed.serving.app_state = replace(keyed.serving.app_state, catalogue=catalogue)
        async with keyed:
            body = message_body("Compute.", FETCH, CODE)
            for limits, ignored in (
                ({}, None),
                ({"tools": ("code_interpreter",)}, f"tools.{FETCH['type']}"),
                ({"tools": ("none",)}, f"tools.{FETCH['type']}, tools.{CODE['type']}"),
            ):
                ada.requests.clear()
                key = await keyed.key("acme", None, **limits)
                status, headers, said = await keyed.ask(key, "/v1/messages", json=body)
                assert status == 200, said
                assert headers.get("x-batuta-ignored") == ignored
                asked = [tool.name for tool in ada.requests[0].tools]
                assert ("code_interpreter" in asked) is (limits.get("tools") != ("none",))
                assert ("web_fetch" in asked) is (not limits)
    with pytest.raises(ValueError, match="you may mean 'web_search'"):
        KeyPermissions(tools=("websearch",))
    assert "tools" not in permissions_json(KeyPermissions())
    kept = KeyPermissions(tools=("none",))
    assert read_permissions(permissions_json(kept)) == kept


async def test_calls_of_tools_are_spans_within_the_models_chat(store):
    ada = calling(("code_interpreter", {"code": "20 + 1"}), ("code_interpreter", {"code": "1 / 0"}))
    async with HttpTransport() as http:
        offered = open_served_tools(ToolsSetting(python=PythonSetting(server_tool=True)), http, {})
        app_state = scripted_state({"ada": ada}, server_tools=offered, store=store)
        async with Serving(app_state) as server:
            status, _, _ = await server.post("/v1/messages", json=message_body("Compute.", CODE))
    assert status == 200
    tree = spans_of(await store.get((await store.list())[0].id), "local")
    (chat,) = tree.children[-1].children
    assert chat.name == "chat m-ada"
    tools = chat.children
    assert [(tool.name, tool.error) for tool in tools] == [
        ("execute_tool code_interpreter", None),
        ("execute_tool code_interpreter", "failed"),
    ]
    times = [at for tool in tools for at in (tool.span.start, tool.span.end)]
    assert chat.span.start <= times[0] < times[1] <= times[2] < times[3] <= chat.span.end
    assert tools[0].attributes["gen_ai.tool.call.id"] == "call_0"
    assert "20 + 1" not in repr(tree)
