"""Searches that a worker's provider runs by itself: offered, bounded, paid for, and off by default."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from batuta.clients import HttpTransport, ScriptedClient, WorkerSpec
from batuta.clients.anthropic.client import AnthropicAdapter
from batuta.clients.anthropic.stream import AnthropicStreamAccumulator, parse_message
from batuta.clients.decoding import ProviderReply
from batuta.clients.gemini.client import GeminiAdapter
from batuta.clients.gemini.stream import GeminiStreamAccumulator
from batuta.clients.native_search import SearchReader, without_native
from batuta.clients.openai.client import OPENAI_DIALECT
from batuta.clients.openai.responses import OpenAIResponsesAdapter
from batuta.clients.reply_cost import count_reply
from batuta.config.tool_settings import PythonSetting, ReaderSetting, SearchSetting, ToolsSetting
from batuta.config.tools import open_served_tools
from batuta.config.worker_settings import WorkerSetting
from batuta.config.workers import worker_spec
from batuta.core import (
    Citation,
    Cost,
    Finish,
    NativeSearch,
    Pool,
    Price,
    Reply,
    Request,
    ServerCall,
    Tool,
    ToolCall,
    Usage,
    Worker,
    WorkerId,
    user_message,
)
from batuta.core.cost_bound import SEARCH_TOKENS, bound_call_cost, measure_prompt
from batuta.core.server_tools import RequestedTool
from batuta.errors import ConfigError, UnsupportedFieldError
from batuta.gateway import served_models
from batuta.tools.domains import DomainRules
from batuta.tools.server_tool import NativeOffer, open_server_tools
from gateway.live_server import Serving, pool_of, server_state

pytestmark = pytest.mark.anyio
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
CODE = {"type": "code_execution_20250522", "name": "code_execution"}
PAGE = Citation(url="https://example.org/imola", title="Imola")
FOUND = ServerCall(id="s", name="web_search", query="Imola", citations=(PAGE,), at=3)
SAID = Reply(
    text="It. In 1931 https://example.org/imola", server_calls=(FOUND,), usage=Usage(calls=1)
)
NATIVE = Tool(name="web_search", native=NativeSearch(max_uses=3))
ASKED = Request(messages=(user_message("When?"),), tools=(NATIVE,))
CENT = Decimal("0.01")


def searching(worker: Worker) -> Worker:
    return replace(worker, native_tools=("web_search",))


def app_state(offered: Any, *, native: tuple[str, ...], **clients: Any):
    pool = Pool(tuple(searching(w) if w.id in native else w for w in pool_of(*clients)))
    return server_state(pool, clients, served_models(pool, None), server_tools=offered)


def body(model: str, *tools: Any, **fields: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": "When was it opened?"}]
    return {"model": model, "max_tokens": 500, "messages": asked, "tools": list(tools), **fields}


async def test_only_the_worker_whose_provider_searches_is_offered_the_search():
    offered = open_server_tools((), NativeOffer(max_uses=5))
    ada, bob = ScriptedClient([SAID]), ScriptedClient([Reply(text="I do not know.")])
    async with Serving(app_state(offered, native=("ada",), ada=ada, bob=bob)) as server:
        _, headers, got = await server.post("/v1/messages", json=body("worker/ada", SEARCH))
        await server.post("/v1/messages", json=body("worker/bob", SEARCH))
    [tool] = ada.requests[0].tools
    assert tool.native == NativeSearch(max_uses=3)
    assert "x-batuta-ignored" not in headers
    assert [block["type"] for block in got["content"]][1:3] == [
        "server_tool_use",
        "web_search_tool_result",
    ]
    assert got["usage"]["server_tool_use"]["web_search_requests"] == 1
    assert bob.requests[0].tools == ()


async def test_a_pool_without_such_a_worker_is_told_that_the_wish_is_ignored():
    offered = open_server_tools((), NativeOffer(max_uses=5))
    ada = ScriptedClient([Reply(text="I do not know.")])
    async with Serving(app_state(offered, native=(), ada=ada)) as server:
        _, headers, _ = await server.post("/v1/messages", json=body("worker/ada", SEARCH))
    assert ada.requests[0].tools == ()
    assert "web_search" in headers["x-batuta-ignored"]


async def test_it_stands_beside_a_tool_that_batuta_runs():
    """What is said in the second turn stands behind the first, and its searches are fewer."""
    call = ToolCall(id="c", name="code_interpreter", arguments='{"code": "1 + 1"}')
    first = replace(SAID, tool_calls=(call,), finish=Finish.TOOL_CALLS)
    ada = ScriptedClient([first, SAID])
    async with HttpTransport() as http:
        tools = ToolsSetting(python=PythonSetting(server_tool=True))
        offered = open_served_tools(tools, http, {}, native=True)
        async with Serving(app_state(offered, native=("ada",), ada=ada)) as server:
            _, _, got = await server.post("/v1/messages", json=body("worker/ada", SEARCH, CODE))
    kinds = [block["type"] for block in got["content"]]
    assert kinds == [
        "text", "server_tool_use", "web_search_tool_result", "text",
        "server_tool_use", "code_execution_tool_result", "text",
        "server_tool_use", "web_search_tool_result", "text",
    ]  # fmt: skip
    assert got["content"][-1]["citations"][0]["url"] == PAGE.url
    left = [tool.native.max_uses for tool in ada.requests[1].tools if tool.native]
    assert left == [2]


@pytest.mark.parametrize(
    ("dollars", "uses"), [(100, 3), (0.45, 2), (0.001, 0)], ids=["all", "some", "none"]
)
async def test_only_searches_that_can_be_paid_for_are_offered(dollars: float, uses: int):
    """A search counts as a cent and its tokens: 16,384 at the worker's price for input."""
    offered = open_server_tools((), NativeOffer(max_uses=5))
    ada = ScriptedClient([SAID])
    pool = Pool(
        tuple(
            replace(searching(w), price=Price(input=Decimal(10), output=Decimal(10), search=CENT))
            for w in pool_of("ada")
        )
    )
    state = server_state(pool, {"ada": ada}, served_models(pool, None), server_tools=offered)
    limit = {"orchestration": {"max_cost_usd": dollars}}
    async with Serving(state) as server:
        await server.post("/v1/messages", json=body("worker/ada", SEARCH, **limit))
    tools = ada.requests[0].tools if ada.requests else ()
    assert sum(tool.native.max_uses for tool in tools if tool.native) == uses


def test_the_bound_of_a_call_holds_its_searches():
    [worker] = pool_of("ada")
    unknown = Price(input=Decimal(15), output=Decimal(75))
    priced = replace(worker, price=Price(input=Decimal(1), output=Decimal(2), search=CENT))
    without = replace(ASKED, tools=(replace(NATIVE, native=None),))
    assert measure_prompt(ASKED).tokens - measure_prompt(without).tokens == 3 * SEARCH_TOKENS
    more = bound_call_cost(ASKED, priced, unknown).input_usd
    less = bound_call_cost(without, priced, unknown).input_usd
    assert more - less == 3 * CENT + Decimal(3 * SEARCH_TOKENS) / 1_000_000
    # A price that is not known counts as a cent, too.
    assert bound_call_cost(ASKED, worker, unknown).input_usd == more


def test_a_search_is_paid_by_its_price_an_unknown_one_is_counted_and_a_lie_is_not_believed():
    usage = Usage(calls=1, input=1000, output=100)
    calls = tuple(replace(FOUND, id=str(number)) for number in range(100))
    failed = replace(FOUND, id="f", error="unavailable")
    price = Price(input=Decimal(1), output=Decimal(2), search=CENT)
    worker = Worker(id=WorkerId("a"), model="m", price=price)
    for told, cost in (((FOUND, failed), CENT), (calls, 6 * CENT), ((), Decimal(0))):
        reply = ProviderReply(reply=replace(SAID, server_calls=told), usage=usage)
        _, counted = count_reply(worker, ASKED, reply, partial=False)
        assert counted == Cost(Decimal("0.0012") + cost)
    unpriced = replace(worker, price=replace(price, search=None))
    reply = ProviderReply(reply=SAID, usage=usage)
    _, counted = count_reply(unpriced, ASKED, reply, partial=False)
    assert counted == Cost(Decimal("0.0012"), unpriced_calls=1)


@pytest.mark.parametrize(
    ("operator", "client", "allow", "deny"),
    [
        ({}, {}, (), ()),
        ({"deny": ("a.org",)}, {"deny": ("b.org",)}, (), ("a.org", "b.org")),
        ({"allow": ("a.org",)}, {}, ("a.org",), ()),
        ({"allow": ("a.org",)}, {"allow": ("x.a.org", "b.org")}, ("x.a.org",), ()),
        ({"allow": ("x.a.org",)}, {"allow": ("a.org",)}, ("x.a.org",), ()),
        ({"deny": ("a.org",)}, {"allow": ("a.org", "b.org")}, ("b.org",), ()),
        ({"deny": ("x.a.org",)}, {"allow": ("a.org",)}, ("a.org",), ("x.a.org",)),
    ],
)
def test_the_domains_of_the_operator_hold_too(operator: Any, client: Any, allow: Any, deny: Any):
    offer = NativeOffer(max_uses=5, domains=DomainRules(**operator))
    granted = offer.grant(RequestedTool(tool="web_search", field="tools", **client))
    assert granted == NativeSearch(max_uses=5, allow=allow, deny=deny)


def test_a_wish_for_what_the_operator_denies_is_for_nothing():
    offer = NativeOffer(max_uses=5, domains=DomainRules(deny=("a.org",)))
    assert offer.grant(RequestedTool(tool="web_search", field="tools", allow=("a.org",))) is None
    offer = NativeOffer(max_uses=5, domains=DomainRules(allow=("b.org",)))
    assert offer.grant(RequestedTool(tool="web_search", field="tools", allow=("a.org",))) is None


def test_how_each_provider_is_asked():
    native = NativeSearch(max_uses=3, deny=("a.org",))
    asked = replace(ASKED, tools=(replace(NATIVE, native=native),), tool_choice="web_search")
    sent = AnthropicAdapter("claude-sonnet-4-5").build_body(asked, stream=False)
    assert sent["tools"] == [
        {
            "type": "web_search_20250305",
            "name": "web_search",
            "max_uses": 3,
            "blocked_domains": ["a.org"],
        }
    ]
    assert sent["tool_choice"] == {"type": "tool", "name": "web_search"}
    sent = OpenAIResponsesAdapter("gpt-5", OPENAI_DIALECT).build_body(asked, stream=False)
    assert sent["tools"] == [{"type": "web_search", "filters": {"blocked_domains": ["a.org"]}}]
    assert sent["tool_choice"] == {"type": "web_search"}
    assert sent["max_tool_calls"] == 3
    both = replace(NATIVE, native=replace(native, allow=("b.org",)))
    with pytest.raises(UnsupportedFieldError, match="not both"):
        AnthropicAdapter("claude-sonnet-4-5").build_body(
            replace(asked, tools=(both,)), stream=False
        )
    bare = without_native(asked)
    assert (bare.tools, bare.tool_choice) == ((), None)
    own = replace(asked, tools=(Tool(name="look"),))
    assert without_native(own) is own


def test_google_is_asked_for_its_search_alone_and_without_domains():
    adapter = GeminiAdapter("gemini-3-pro")
    asked = replace(ASKED, tool_choice="required")
    sent = adapter.build_body(asked, stream=False)
    assert sent["tools"] == [{"googleSearch": {}}] and "toolConfig" not in sent
    for tools, why in (
        ((NATIVE, Tool(name="look")), "with other tools"),
        ((replace(NATIVE, native=NativeSearch(max_uses=3, deny=("a.org",))),), "accept domains"),
        ((replace(NATIVE, native=NativeSearch(max_uses=3, allow=("a.org",))),), "accept domains"),
    ):
        with pytest.raises(UnsupportedFieldError, match=why):
            adapter.build_body(replace(asked, tools=tools), stream=False)


def test_what_is_cited_is_named_once_and_is_a_web_address():
    reader = SearchReader()
    reader.add_call("s", "q", at=0, pages=(PAGE, PAGE))
    assert reader.add_call("s", "q", at=0) == ()
    for url in (PAGE.url, PAGE.url + "?utm_source=openai", "javascript:alert(1)", "https://[x"):
        reader.cite(url, "Other", "A quote.")
    assert reader.end_text(("It is.",)) == f" ([example.org]({PAGE.url}), [page](https://[x))"
    assert reader.end_text(("More.",)) == ""
    [call] = reader.calls()
    assert call.citations[0] == replace(PAGE, excerpt="A quote.")
    assert len(call.citations) == 2


@pytest.mark.parametrize(
    ("fields", "works"),
    [
        ({"provider": "anthropic", "model": "claude-sonnet-4-5"}, True),
        ({"provider": "openai", "model": "gpt-5", "openai_api": "responses"}, True),
        ({"provider": "openai", "model": "gpt-5", "openai_api": "chat"}, False),
        ({"provider": "gemini", "model": "gemini-3-pro"}, True),
        ({"provider": "ollama", "model": "qwen3"}, False),
    ],
)
def test_a_provider_without_a_search_is_refused(fields: Any, works: bool):
    keys: dict[str, str] = dict.fromkeys(
        ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"), "sk-0123456789abcdef"
    )
    setting = WorkerSetting(id="a", native_tools=("web_search",), **fields)
    if works:
        spec: WorkerSpec = worker_spec(setting, keys)
        assert spec.worker.native_tools == ("web_search",)
    else:
        with pytest.raises(ConfigError, match="native_tools needs"):
            worker_spec(setting, keys)


async def test_the_limits_of_the_operators_search_hold():
    async with HttpTransport() as http:
        search = SearchSetting(
            engine="searxng", base_url="http://127.0.0.1:1", server_tool=True, max_uses=2
        )
        tools = ToolsSetting(search=search, reader=ReaderSetting())
        offered = open_served_tools(tools, http, {}, native=True)
    assert not offered.native_only
    ada, bob = ScriptedClient([SAID]), ScriptedClient([Reply(text="I do not know.")])
    async with Serving(app_state(offered, native=("ada",), ada=ada, bob=bob)) as server:
        for worker in ("ada", "bob"):
            await server.post("/v1/messages", json=body(f"worker/{worker}", SEARCH))
    [tool], [own] = ada.requests[0].tools, bob.requests[0].tools
    assert tool.native is not None and tool.native.max_uses == 2
    assert (own.name, own.native) == ("web_search", None)


def fold(accumulator: Any, events: list[dict[str, Any]]) -> tuple[Any, list[Any]]:
    """What a stream of these events adds up to, and the searches that it told."""
    deltas = [
        delta
        for event in events
        for delta in accumulator.add_event(event.get("type", ""), json.dumps(event).encode())
    ]
    return accumulator.result().reply, [one.server_call for one in deltas if one.server_call]


def google(text: str, end: str = "", **grounding: Any) -> dict[str, Any]:
    parts = [{"text": text}] if text else []
    found = {"groundingMetadata": grounding} if grounding else {}
    stop = {"finishReason": end} if end else {}
    return {"candidates": [{"content": {"parts": parts}, "index": 0, **found, **stop}]}


WEB = {"web": {"uri": "https://g.example/1", "title": "one.example"}}
WEB_2 = {"web": {"uri": "https://g.example/2", "title": "two.example"}}
SUPPORT = [{"segment": {"endIndex": 6, "text": "It was"}, "groundingChunkIndices": [0]}]
QUERIES: Any = {"webSearchQueries": ["Imola"]}


@pytest.mark.parametrize(
    "events",
    [
        [google("It was.", "STOP", **QUERIES, groundingChunks=[WEB, WEB_2], groundingSupports=SUPPORT)],
        [google("It ", **QUERIES, groundingChunks=[WEB, WEB_2], groundingSupports=SUPPORT), google("was.", "STOP")],
        [google("It ", groundingChunks=[WEB, WEB_2]), google("was."), google("", "STOP", **QUERIES, groundingSupports=SUPPORT)],
        [google("It was.", **QUERIES), google("", groundingChunks=[WEB, WEB_2]), google("", "STOP", groundingSupports=SUPPORT)],
        [google("It ", **QUERIES, groundingChunks=[WEB]), google("was.", "STOP", **QUERIES, groundingChunks=[WEB, WEB_2], groundingSupports=SUPPORT)],
    ],
    ids=["with the end", "before the end", "pages first", "queries first", "repeated"],
)  # fmt: skip
def test_what_google_found_is_read_wherever_in_the_stream_it_comes(events: Any):
    reply, told = fold(GeminiStreamAccumulator(), events)
    assert reply.text == "It was. ([g.example](https://g.example/1))"
    [search] = reply.server_calls
    assert (search.query, search.at) == ("Imola", 7)
    assert [(page.url, page.excerpt) for page in search.citations] == [
        ("https://g.example/1", "It was"), ("https://g.example/2", ""),
    ]  # fmt: skip
    assert [(one.query, len(one.citations)) for one in told] == [("Imola", 2)]


def test_a_second_search_of_google_is_no_repetition_of_the_first():
    other: Any = {"webSearchQueries": ["Imola tower"]}
    events = [google("It ", **QUERIES), google("was.", "STOP", **other, groundingChunks=[WEB])]
    reply, told = fold(GeminiStreamAccumulator(), events)
    assert [call.query for call in reply.server_calls] == ["Imola", "Imola tower"]
    assert [one.id for one in told] == ["google_0", "google_1"]


def test_searches_without_pages_are_told_and_an_answer_that_was_cut_has_them():
    """As Google answers where the words end before anything is cited."""
    queries: Any = {
        "webSearchQueries": ["a", "b", "c"],
        "searchEntryPoint": {"renderedContent": "<p>"},
    }
    for reply in (
        fold(GeminiStreamAccumulator(), [google("It", "MAX_TOKENS", **queries)])[0],
        fold(GeminiStreamAccumulator(), [google("It", **queries)])[0],
    ):
        assert [call.query for call in reply.server_calls] == ["a", "b", "c"]
        assert not any(call.citations for call in reply.server_calls) and reply.text == "It"


RESULT = {"type": "web_search_tool_result", "tool_use_id": "s_1", "content": [{"type": "web_search_result", "url": PAGE.url, "title": "Imola", "page_age": None}]}  # fmt: skip
USE = {"type": "server_tool_use", "id": "s_1", "name": "web_search"}


def test_a_result_that_is_told_before_its_search_keeps_its_query():
    asked = {"type": "input_json_delta", "partial_json": '{"query": "Imola"}'}
    stop = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}  # fmt: skip
    begin, end = "content_block_start", "content_block_stop"
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 1, "output_tokens": 1}}},
        {"type": begin, "index": 0, "content_block": RESULT}, {"type": end, "index": 0},
        {"type": begin, "index": 1, "content_block": USE | {"input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": asked}, {"type": end, "index": 1},
        {"type": begin, "index": 2, "content_block": {"type": "text", "text": "In 1931."}}, {"type": end, "index": 2},
        stop, {"type": "message_stop"},
    ]  # fmt: skip
    streamed, told = fold(AnthropicStreamAccumulator(), events)
    usage = {"input_tokens": 1, "output_tokens": 1}
    blocks = [RESULT, USE | {"input": {"query": "Imola"}}, {"type": "text", "text": "In 1931."}]
    whole = parse_message({"content": blocks, "usage": usage, "stop_reason": "end_turn"}).reply
    assert [(one.query, one.citations[0].url) for one in told] == [("Imola", PAGE.url)]
    for reply in (streamed, whole):
        assert [(call.query, call.at) for call in reply.server_calls] == [("Imola", 0)]
    never, told = fold(AnthropicStreamAccumulator(), [*events[:3], stop, {"type": "message_stop"}])
    assert [(call.id, call.query) for call in never.server_calls] == [("s_1", "")] and len(
        told
    ) == 1
