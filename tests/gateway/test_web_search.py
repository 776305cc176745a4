"""Web search as a tool of the server: asked for in three dialects, run in the model's loop, cited in each one's form."""

import re
from contextlib import asynccontextmanager
from decimal import Decimal
from time import process_time
from typing import Any

import openai
import orjson
import pytest

from batuta.clients import HttpTransport, ScriptedClient
from batuta.config.tool_settings import SearchSetting, ToolsSetting
from batuta.config.tools import open_served_tools
from batuta.core import Citation, Cost, Finish, Reply, Role, ToolCall, Usage
from batuta.gateway.responses.events import replay_events
from batuta.gateway.serving.server_tools import find_citations
from batuta.guardrails import GroundedAction, GroundedPolicy, Guardrails
from batuta.language.grounding import MARK
from fakes.sdks import anthropic
from fakes.web import FakeWeb
from gateway.live_server import Serving, pool_of, scripted_state

pytestmark = pytest.mark.anyio
PAID = Cost(Decimal("0.00003"))
QUESTION = "When was the Imola observatory opened?"
HI = [{"role": "user", "content": QUESTION}]
MODEL = "worker/ada"
SEARCH_TOOL = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
WEATHER = {"name": "weather", "description": "", "input_schema": {"type": "object"}}


def searching(query="Imola observatory", before="Let me look.", searches=1):
    """A model that searches so often and then answers with a citation."""

    def reply(request):
        done = sum(message.role is Role.TOOL for message in request.messages)
        offered = any(tool.name == "web_search" for tool in request.tools)
        if offered and done < searches and request.tool_choice != "none":
            call = ToolCall(
                id=f"call_{done}",
                name="web_search",
                arguments=orjson.dumps({"query": query}).decode(),
            )
            return Reply(
                text=before,
                tool_calls=(call,),
                finish=Finish.TOOL_CALLS,
                usage=Usage(calls=1, input=10, output=5),
                cost=PAID,
            )
        return Reply(
            text="It was opened in 1822 [1].", usage=Usage(calls=1, input=20, output=7), cost=PAID
        )

    return ScriptedClient(reply)


@asynccontextmanager
async def serving(ada, offered=True, **setting):
    async with FakeWeb() as fake, HttpTransport() as http:
        wanted = SearchSetting(engine="searxng", base_url=fake.url, server_tool=True, **setting)
        tools = open_served_tools(ToolsSetting(search=wanted), http, {}) if offered else None
        async with Serving(scripted_state({"ada": ada}, server_tools=tools)) as server:
            yield server, fake


def told_to(request) -> str:
    """The last result of a tool that a model was told."""
    return request.messages[-1].parts[0].content


async def read_frames(server, path, body):
    async with server.http.post(path, json=body | {"stream": True}) as response:
        text = (await response.read()).decode()
        assert response.status == 200, text
    data = [frame.split("data: ", 1)[1] for frame in text.strip().split("\n\n")]
    return [orjson.loads(each) for each in data if each != "[DONE]"]


def message_body(**fields):
    return {"model": MODEL, "max_tokens": 500, "messages": HI, "tools": [SEARCH_TOOL], **fields}


async def test_a_message_has_its_search_its_results_and_its_citation():
    ada = searching()
    async with serving(ada) as (server, fake):
        api = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
        async with api:
            got: Any = await api.messages.create(**message_body())
    kinds = [block.type for block in got.content]
    assert kinds == ["text", "server_tool_use", "web_search_tool_result", "text"]
    first, asked, found, last = got.content
    assert first.text == "Let me look.\n\n" and asked.input == {"query": "Imola observatory"}
    assert found.tool_use_id == asked.id and asked.id.startswith("srvtoolu_")
    assert found.content[0].url == f"{fake.url}/imola-observatory" and found.content[0].page_age
    assert (
        last.text == "It was opened in 1822 [1]." and last.citations[0].url == found.content[0].url
    )
    assert got.usage.server_tool_use.web_search_requests == 1 and got.stop_reason == "end_turn"
    assert len(fake.searches) == 1
    told = told_to(ada.requests[1])
    assert told.startswith("[1] ") and "<fetched_text>" in told
    assert [tool.name for tool in ada.requests[0].tools] == ["web_search"]


async def test_a_streamed_message_adds_up_to_the_same():
    async with serving(searching()) as (server, _):
        events = await read_frames(server, "/v1/messages", message_body())
        api = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
        async with api, api.messages.stream(**message_body()) as stream:
            final: Any = await stream.get_final_message()
    starts = [
        event["content_block"]["type"] for event in events if event["type"] == "content_block_start"
    ]
    assert starts == ["text", "server_tool_use", "web_search_tool_result", "text"]
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert stops == [0, 1, 2, 3]
    assert [block.type for block in final.content] == starts
    assert final.content[1].input == {"query": "Imola observatory"}
    assert final.content[3].citations[0].url.endswith("/imola-observatory")
    assert events[-2]["usage"]["server_tool_use"] == {
        "web_search_requests": 1,
        "web_fetch_requests": 0,
    }


def response_body(kind="web_search", **fields):
    return {"model": MODEL, "input": QUESTION, "tools": [{"type": kind}], **fields}


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview", "web_search_2025_08_26"])
async def test_a_response_has_its_search_call_and_its_annotation(kind):
    async with serving(searching()) as (server, fake):
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="any", max_retries=0
        ) as api:
            got: Any = await api.responses.create(**response_body(kind))
        events = await read_frames(server, "/v1/responses", response_body(kind))
    assert [item.type for item in got.output] == ["message", "web_search_call", "message"]
    _, call, message = got.output
    assert (call.status, call.action.query) == ("completed", "Imola observatory")
    assert call.action.sources[0].url == f"{fake.url}/imola-observatory"
    part = message.content[0]
    (cited,) = part.annotations
    assert (
        part.text[cited.start_index : cited.end_index] == "[1]"
        and cited.url == call.action.sources[0].url
    )
    kinds = [event["type"] for event in events]
    assert [kind for kind in kinds if "web_search_call" in kind] == [
        f"response.web_search_call.{phase}" for phase in ("in_progress", "searching", "completed")
    ]
    assert "response.output_text.annotation.added" in kinds
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    streamed = events[-1]["response"]["output"]
    again = [event["type"] for event in replay_events(events[-1]["response"])]
    assert [kind for kind in again if "delta" not in kind] == [
        kind for kind in kinds if "delta" not in kind
    ]
    whole = [item.model_dump(exclude_unset=True) for item in got.output]
    assert [item["type"] for item in streamed] == [item["type"] for item in whole]
    assert streamed[2]["content"][0]["annotations"] == whole[2]["content"][0]["annotations"]


async def test_a_chat_completion_has_annotations():
    body = {"model": MODEL, "messages": HI, "web_search_options": {}}
    async with serving(searching()) as (server, fake):
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="any", max_retries=0
        ) as api:
            got: Any = await api.chat.completions.create(**body)
        chunks = await read_frames(server, "/v1/chat/completions", body)
    message = got.choices[0].message
    assert (
        message.content == "Let me look.\n\nIt was opened in 1822 [1]." and not message.tool_calls
    )
    cited = message.annotations[0].url_citation
    assert message.content[cited.start_index : cited.end_index] == "[1]"
    assert cited.url == f"{fake.url}/imola-observatory"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == message.content
    (annotations,) = (delta["annotations"] for delta in deltas if "annotations" in delta)
    assert annotations[0]["url_citation"]["url"] == cited.url


async def test_usage_and_cost_count_every_turn_and_every_search():
    async with serving(searching(searches=2), price=Decimal("0.5")) as (server, fake):
        status, _, got = await server.post(
            "/v1/chat/completions",
            json={
                "model": MODEL,
                "messages": HI,
                "web_search_options": {},
                "orchestration": {"trace": True},
            },
        )
    assert status == 200 and len(fake.searches) == 2
    assert got["usage"]["prompt_tokens"] == 40 and got["usage"]["completion_tokens"] == 17
    step = got["orchestration"]["rounds"][0]["steps"][0]
    assert Decimal(step["result"]["cost"]["usd"]) >= 1
    assert [call["query"] for call in step["result"]["server_calls"]] == ["Imola observatory"] * 2


async def test_searches_are_bounded_by_both_and_by_dollars():
    for most, asked, limit, expected in ((2, 9, None, 2), (5, 1, None, 1), (5, 9, 0.7, 1)):
        ada = searching(searches=8)
        async with serving(ada, max_uses=most, price=Decimal("0.5")) as (server, fake):
            limits = {} if limit is None else {"orchestration": {"max_cost_usd": limit}}
            status, _, got = await server.post(
                "/v1/messages",
                json=message_body(tools=[SEARCH_TOOL | {"max_uses": asked}], **limits),
            )
        assert status == 200 and len(fake.searches) == expected
        errors = [
            block["content"]["error_code"]
            for block in got["content"]
            if block["type"] == "web_search_tool_result" and isinstance(block["content"], dict)
        ]
        assert set(errors) == {"max_uses_exceeded"} and got["content"][-1]["text"].startswith(
            "It was"
        )
        assert len(ada.requests) <= most + 3 or limit


async def test_an_engine_that_is_down_is_told_to_the_model():
    ada = searching()
    async with serving(ada) as (server, fake):
        fake.failures = 9
        _, _, got = await server.post("/v1/messages", json=message_body())
    assert got["content"][2]["content"]["error_code"] == "unavailable"
    assert told_to(ada.requests[1]).startswith("web_search gave nothing: the search failed")


async def test_the_callers_domains_hold():
    async with serving(searching()) as (server, _):
        tools = [SEARCH_TOOL | {"blocked_domains": ["127.0.0.1"]}]
        _, _, got = await server.post("/v1/messages", json=message_body(tools=tools))
        filtered = [{"type": "web_search", "filters": {"allowed_domains": ["example.org"]}}]
        _, _, other = await server.post("/v1/responses", json=response_body() | {"tools": filtered})
    assert got["content"][2]["content"] == [] and other["output"][1]["action"]["sources"] == []


@pytest.mark.parametrize("choice", [{"type": "tool", "name": "web_search"}, {"type": "any"}])
async def test_a_model_can_be_made_to_search(choice):
    ada = searching()
    async with serving(ada) as (server, _):
        status, _, _ = await server.post("/v1/messages", json=message_body(tool_choice=choice))
    assert status == 200
    assert [request.tool_choice for request in ada.requests] == ["web_search", None]


async def test_the_clients_own_tools_go_to_the_client():
    def reply(request):
        if any(message.role is Role.TOOL for message in request.messages):
            call = ToolCall(id="w", name="weather", arguments="{}")
        else:
            call = ToolCall(id="s", name="web_search", arguments='{"query": "Imola"}')
        return Reply(text="", tool_calls=(call,), finish=Finish.TOOL_CALLS)

    async with serving(ScriptedClient(reply)) as (server, _):
        body = message_body(tools=[SEARCH_TOOL, WEATHER])
        _, _, got = await server.post("/v1/messages", json=body)
        events = await read_frames(server, "/v1/messages", body)
    kinds = ["server_tool_use", "web_search_tool_result", "tool_use"]
    assert [block["type"] for block in got["content"]] == kinds and got["stop_reason"] == "tool_use"
    assert [
        e["content_block"]["type"] for e in events if e["type"] == "content_block_start"
    ] == kinds


async def test_without_a_search_of_the_server_all_is_as_before():
    ada = searching()
    async with serving(ada, offered=False) as (server, _):
        status, headers, got = await server.post("/v1/messages", json=message_body())
        assert (status, headers["x-batuta-ignored"]) == (200, "tools.web_search_20250305")
        assert [block["type"] for block in got["content"]] == [
            "text"
        ] and "server_tool_use" not in got["usage"]
        _, headers, _ = await server.post("/v1/responses", json=response_body())
        assert headers["x-batuta-ignored"] == "tools.web_search"
        status, _, got = await server.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": HI, "web_search_options": {}}
        )
        assert status == 400 and got["error"]["param"] == "web_search_options"
    assert all(not request.tools for request in ada.requests)


async def test_a_search_that_claude_code_asks_for_is_one_call_that_searches():
    ada = searching()
    async with serving(ada) as (server, fake):
        asked = [{"role": "user", "content": f"Perform a web search for the query: {QUESTION}"}]
        body = message_body(model="batuta-ultra", messages=asked)
        status, _, got = await server.post("/v1/messages", json=body)
        assert status == 200 and len(fake.searches) == 1
    kinds = ["text", "server_tool_use", "web_search_tool_result", "text"]
    assert [block["type"] for block in got["content"]] == kinds
    assert [len(request.messages) for request in ada.requests] == [1, 3]


async def test_a_search_is_off_where_the_client_wants_none():
    ada = searching()
    async with serving(ada) as (server, fake):
        await server.post("/v1/messages", json=message_body(tool_choice={"type": "none"}))
        await server.post("/v1/chat/completions", json={"model": MODEL, "messages": HI})
    assert not fake.searches and all(not request.tools for request in ada.requests)


async def test_a_workflow_searches_too_and_its_history_is_taken_back():
    ada, bob = searching(before=""), searching()
    async with FakeWeb() as fake, HttpTransport() as http:
        wanted = SearchSetting(engine="searxng", base_url=fake.url, server_tool=True)
        tools = open_served_tools(ToolsSetting(search=wanted), http, {})
        async with Serving(scripted_state({"ada": ada, "bob": bob}, server_tools=tools)) as server:
            status, _, got = await server.post(
                "/v1/messages", json=message_body(model="batuta-ultra")
            )
            assert status == 200 and len(fake.searches) == 2
            turns = [
                *HI,
                {"role": "assistant", "content": got["content"]},
                {"role": "user", "content": "And?"},
            ]
            status, _, _ = await server.post("/v1/messages", json=message_body(messages=turns))
            assert status == 200


async def test_a_limit_that_suffices_for_each_turn_suffices_for_all_and_none_is_lost():
    """A turn's reservation is given back but for what it cost; a turn that does not fit leaves what was paid."""
    for limit, searches, status in ((0.018, 3, "completed"), (0.004, 3, "incomplete")):
        ada = searching(searches=searches, before="x" * 400)
        async with serving(ada) as (server, _):
            body = response_body() | {
                "orchestration": {"max_cost_usd": limit, "trace": True},
                "max_output_tokens": 300,
            }
            _, _, got = await server.post("/v1/responses", json=body)
        assert got["status"] == status, got
        assert got["usage"]["input_tokens"] == sum(
            20 if n == searches else 10 for n in range(len(ada.requests))
        )
        cost = got["orchestration"]["rounds"][0]["steps"][0]["result"]["cost"]
        assert Decimal(cost["usd"]) == len(ada.requests) * PAID.usd


INVENTED = "https://never.example/page"


def inventing(searches):
    """A model that cites, beside what it found, a number and addresses that no tool returned."""

    def reply(request):
        done = sum(message.role is Role.TOOL for message in request.messages)
        if done < searches:
            call = ToolCall(id="c", name="web_search", arguments='{"query": "Imola observatory"}')
            return Reply(text="", tool_calls=(call,), finish=Finish.TOOL_CALLS)
        found = re.findall(r"https?://\S+/imola-observatory\b", request.messages[-1].parts[0].content) if done else []  # fmt: skip
        longer = [f"{found[0]}-nine", found[0].replace("http", "https", 1)] if found else []
        own = "In 1822 [1]. " if found else ""
        return Reply(text=f"{own}So it was [99] [0] [-1]: {' '.join([INVENTED, *longer])} end")

    return ScriptedClient(reply)


def annotated(annotations):
    """The addresses that annotations or citations name, in any dialect's form."""
    return [(one.get("url_citation") or one)["url"] for one in annotations]


@pytest.mark.parametrize("searches", [1, 0], ids=["found", "never searched"])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_never_fetched_is_no_citation_in_any_dialect(searches, stream):
    async with serving(inventing(searches)) as (server, fake):
        chat = {"model": MODEL, "messages": HI, "web_search_options": {}}
        bodies = {
            "/v1/chat/completions": chat,
            "/v1/responses": response_body(),
            "/v1/messages": message_body(),
        }
        got: dict[str, Any] = {}
        for path, body in bodies.items():
            if stream:
                got[path] = await read_frames(server, path, body)
            else:
                _, _, got[path] = await server.post(path, json=body)
    texts, cited = [], []
    if stream:
        deltas = [chunk["choices"][0]["delta"] for chunk in got["/v1/chat/completions"]]
        texts += ["".join(delta.get("content") or "" for delta in deltas)]
        cited += [annotated(one for delta in deltas for one in delta.get("annotations", ()))]
        events = got["/v1/responses"]
        texts += ["".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")]
        cited += [annotated(e["annotation"] for e in events if e["type"] == "response.output_text.annotation.added")]  # fmt: skip
        pieces = [e["delta"] for e in got["/v1/messages"] if e["type"] == "content_block_delta"]
        texts += ["".join(piece.get("text", "") for piece in pieces)]
        cited += [annotated(p["citation"] for p in pieces if p["type"] == "citations_delta")]
    else:
        message = got["/v1/chat/completions"]["choices"][0]["message"]
        part = got["/v1/responses"]["output"][-1]["content"][0]
        block = got["/v1/messages"]["content"][-1]
        texts += [message["content"], part["text"], block["text"]]
        cited += [annotated(message.get("annotations", ())), annotated(part["annotations"])]
        cited += [annotated(block.get("citations") or ())]
    assert all("[99]" in text and INVENTED in text for text in texts)
    assert cited == [[f"{fake.url}/imola-observatory"] * searches] * 3


def test_an_address_with_many_marks_behind_is_read_in_time_of_its_length():
    page = Citation(url="http://a.org/x", title="x")
    began = process_time()
    assert not find_citations(f"http://a.org/y{'.' * 300_000}", [page])
    assert process_time() - began < 2
    for text in ("(http://a.org/x).", "**http://a.org/x**!", "http://a.org/x?utm_source=openai)."):
        (place,) = find_citations(text, [page])
        assert text[place.start : place.end].startswith("http") and text[place.end - 1] in "xi"


async def test_what_was_never_fetched_is_marked_where_answers_are_checked():
    """Even a checker that finds everything supported does not make a source of it."""

    def believe(request):
        claims = request.messages[-1].text.count("<agent_response")
        sources = re.findall(r"^Source (\d+)", request.messages[-1].text, re.MULTILINE)
        rows = [{"claim": n + 1, "supported": "yes", "where": [int(s) for s in sources][:8]} for n in range(claims)]  # fmt: skip
        return orjson.dumps({"verdicts": rows}).decode()

    said = f"It was opened in 1822 [1]. It burned in 1901 [9]. It is closed, says {INVENTED} now."

    def reply(request):
        found = any(message.role is Role.TOOL for message in request.messages)
        call = ToolCall(id="c", name="web_search", arguments='{"query": "Imola observatory"}')
        asked = Reply(text="", tool_calls=(call,), finish=Finish.TOOL_CALLS)
        return Reply(text=said) if found else asked

    clients = {"ada": ScriptedClient(reply), "eve": ScriptedClient(believe)}
    checker = pool_of(*clients)["eve"]
    policy = GroundedPolicy(name="sources", worker=checker, action=GroundedAction.MARK)
    async with FakeWeb() as fake, HttpTransport() as http:
        wanted = SearchSetting(engine="searxng", base_url=fake.url, server_tool=True)
        tools = open_served_tools(ToolsSetting(search=wanted), http, {})
        guards = Guardrails((), policy)
        async with Serving(
            scripted_state(clients, server_tools=tools, guardrails=guards)
        ) as server:
            body = {"model": MODEL, "messages": HI, "web_search_options": {}}
            _, _, got = await server.post("/v1/chat/completions", json=body)
    first, second, third = said.split(". ")
    marked = f"{first}. {second}. {MARK} {third} {MARK}"
    assert got["choices"][0]["message"]["content"] == marked
