"""The laws of tool sources, and what each of them does with a web that is not friendly."""

import json
import socket
import sys
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from batuta.clients import HttpTransport, Secret
from batuta.clients.public_addresses import PublicResolver
from batuta.core import Text
from batuta.core.tool_classes import ToolClass
from batuta.language.step_reading import find_addresses
from batuta.schemas import validator_for
from batuta.tools.code import CodeInterpreter
from batuta.tools.domains import DomainRules
from batuta.tools.file_search import FileSearch, FolderIndex, TenantIndexes
from batuta.tools.mcp_source import McpTool
from batuta.tools.pages import WebFetch
from batuta.tools.search import NOTHING_FOUND, WebSearch
from batuta.tools.search_engines import ENGINES, EngineAddress
from batuta.tools.source import (
    ToolContext,
    ToolError,
    ToolLimits,
    ToolOutput,
    call_cost,
    call_tool,
)
from fakes.web import FakeWeb, Page

pytestmark = pytest.mark.anyio
MCP_SERVER = Path(__file__).parents[1] / "fakes" / "mcp_server.py"
SOON = ToolLimits(seconds=5.0, characters=4000)


ECHO = {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]}


@dataclass
class Echo:
    """The smallest source."""

    name = "echo"
    description = "Says it again."
    schema: Mapping[str, Any] = field(default_factory=lambda: ECHO)
    kind = ToolClass.OBSERVE
    price: Decimal | None = None
    limits: ToolLimits = ToolLimits(seconds=0.2, characters=10)

    async def call(self, arguments, context):
        if arguments["said"] == "wait":
            await anyio.sleep(30)
        return ToolOutput(parts=(Text(arguments["said"]), Text("x" * 50)))


def engine(name, address):
    return ENGINES[name][0](address)


def open_mcp_tool(tool="find-page", **options):
    pytest.importorskip("mcp", reason="needs the extra mcp")
    options = {
        "command": (sys.executable, str(MCP_SERVER)),
        "limits": ToolLimits(seconds=60.0, characters=4000),
    } | options
    return McpTool(tool, "query", price=Decimal("0.01"), **options)


@asynccontextmanager
async def serve_mcp():
    """The fake server over streamable HTTP; its address."""
    pytest.importorskip("mcp", reason="needs the extra mcp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    from fakes.mcp_server import server

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: server.run_streamable_http_async(port=port))
        with anyio.fail_after(20):
            while True:
                try:
                    await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await anyio.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def open_source(kind, fake):
    """A source of that kind over the fake web, and arguments that it can answer."""
    fact = fake.facts[0]
    if kind == "echo":
        yield Echo(), {"said": "a"}
        return
    if kind == "web_fetch":
        allowed = {fake.host}
        async with HttpTransport(resolver=PublicResolver(allowed)) as http:
            yield WebFetch(http, private_hosts=allowed, limits=SOON), {"url": fake.url + fact.path}
        return
    if kind == "file_search":
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "rivers.md").write_text("Of rivers.\nThe Imola has many locks.\n")
            limits = ToolLimits(seconds=60.0, characters=4000)
            found = FolderIndex(Path(folder))
            yield FileSearch(TenantIndexes(), folder=found, limits=limits), {"query": "locks"}
        return
    if kind == "code_interpreter":
        yield CodeInterpreter(characters=4000), {"code": "print('x' * 9000)"}
        return
    if kind == "mcp_http":
        async with serve_mcp() as url:
            yield open_mcp_tool(command=(), url=url), {"query": "locks"}
        return
    if kind == "mcp":
        yield open_mcp_tool(), {"query": "locks"}
        return
    async with HttpTransport() as http:
        address = EngineAddress(http=http, url=fake.url, key=Secret("key"))
        price = Decimal("0.005") if kind == "brave" else None
        yield (
            WebSearch(engine(kind, address), price=price, limits=SOON),
            {"query": fact.question},
        )


KINDS = ("echo", "web_fetch", "mcp", "mcp_http", "file_search", "code_interpreter", *ENGINES)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_source_keeps_the_laws(kind):
    async with FakeWeb() as fake, open_source(kind, fake) as (source, fitting):
        await validator_for(source.schema).check()
        assert source.schema["type"] == "object" and source.name.isidentifier()
        for odd in (
            "",
            "[]",
            "{}",
            "null",
            '{"query": 3}',
            '{"url": []}',
            "{" * 3000,
            '{"said": null}',
        ):
            with pytest.raises(ToolError) as refused:
                await call_tool(source, odd)
            assert refused.value.cost.usd == refused.value.cost.unpriced_calls == 0
            assert "\n" not in str(refused.value)
        assert not fake.received  # nothing was asked
        outputs = [await call_tool(source, json.dumps(fitting)) for _ in range(2)]
        assert source.kind is ToolClass.CHANGE or outputs[0] == outputs[1]
        for output in outputs:
            assert output.text and len(output.text) <= source.limits.characters
            assert output.cost == call_cost(source)
            assert all(
                (cited.file or cited.url.startswith("http")) and cited.title
                for cited in output.citations
            )


async def test_a_call_ends_with_its_time():
    with pytest.raises(ToolError, match=r"echo took more than 0\.2 seconds") as late:
        await call_tool(Echo(), '{"said": "wait"}')
    assert late.value.cost.unpriced_calls == 1


@pytest.mark.parametrize("kind", ENGINES)
async def test_a_search_finds_dated_pages_each_once(kind):
    async with FakeWeb() as fake, open_source(kind, fake) as (source, _):
        fact = next(fact for fact in fake.facts if fact.wrong)
        output = await call_tool(source, json.dumps({"query": f"  {fact.question}\n"}))
        urls = [cited.url for cited in output.citations]
        assert fake.url + fact.path in urls and len(set(urls)) == len(urls) <= 8
        assert all(len(cited.date) == 10 for cited in output.citations)
        assert fact.answer in output.text and fact.wrong in output.text
        assert all(url.startswith(fake.url) for url in urls)
        assert len(fake.searches) == 1


async def test_an_engine_that_fails_is_asked_once_more():
    async with FakeWeb() as fake, open_source("searxng", fake) as (source, fitting):
        fake.failures = 1
        assert (await call_tool(source, json.dumps(fitting))).citations
        fake.failures = 2
        with pytest.raises(ToolError, match="the search failed"):
            await call_tool(source, json.dumps(fitting))
        assert len(fake.searches) == 4


async def test_a_wrong_key_is_told_without_it():
    async with FakeWeb() as fake, HttpTransport() as http:
        address = EngineAddress(http=http, url=fake.url, key=Secret("another-secret-key"))
        with pytest.raises(ToolError) as refused:
            await call_tool(WebSearch(engine("brave", address)), '{"query": "a"}')
        assert "another-secret-key" not in str(refused.value)


async def test_domains_are_allowed_and_denied_by_both():
    async with FakeWeb() as fake, HttpTransport() as http:
        searxng = engine("searxng", EngineAddress(http=http, url=fake.url))
        query = json.dumps({"query": fake.facts[0].question})
        mine = WebSearch(searxng, domains=DomainRules(deny=("127.0.0.1",)))
        assert (await call_tool(mine, query)).text == NOTHING_FOUND
        everything = WebSearch(searxng)
        for rules in (DomainRules(deny=("127.0.0.1",)), DomainRules(allow=("example.org",))):
            found = await call_tool(everything, query, ToolContext(domains=rules))
            assert not found.citations
        assert fake.searches[-1].query["q"].endswith("site:example.org")


@pytest.mark.parametrize(
    ("entry", "url", "held"),
    [
        ("example.org", "https://a.example.org/x", True), ("example.org", "https://notexample.org/", False),
        ("*.example.org", "https://a.example.org/x", True), ("https://Example.org/", "http://example.org", True),
        ("example.org/docs", "https://example.org/docs/a", True), ("example.org/docs", "https://example.org/", False),
        ("example.org", "https://example.org.evil.com/", False), ("example.org", "http://[", False),
        ("example.org/docs", "https://example.org/docs/../a", False), ("example.org/a", "https://example.org/b/..//%61/c", True),
        ("example.org/docs", "https://example.org/docs%2F..%2Fa", False), ("https://example.org/Docs", "https://example.org/Docs/a", True),
        ("web.example.org/at/https://a.org", "https://web.example.org/at/https://a.org/", True),
        ("bücher.example", "https://xn--bcher-kva.example/", True), ("xn--bcher-kva.example", "https://bücher.example/", True),
    ],
)  # fmt: skip
def test_a_domain_holds_what_is_below_it(entry, url, held):
    assert DomainRules(allow=(entry,)).permit(url) is held


async def read(fake, path, **options):
    """What the reader says of that page."""
    allowed = {fake.host}
    options = {"limits": SOON, "private_hosts": allowed, **options}
    async with HttpTransport(resolver=PublicResolver(allowed), idle=2.0) as http:
        url = path if ":" in path else fake.url + path
        return await call_tool(WebFetch(http, **options), json.dumps({"url": url}))


async def test_a_page_becomes_markdown_and_a_pdf_text():
    extra = {
        "/paper": Page("/paper", "Paper", "The canal has 17 locks.", "2026-01-01", "pdf"),
    }
    async with FakeWeb(extra=extra) as fake:
        fact = fake.facts[0]
        page = await read(fake, fact.path)
        assert f"opened in {fact.answer}" in page.text and "Home" not in page.text
        (cited,) = page.citations
        assert (
            cited.title == fake.pages[fact.path].title and cited.date == fake.pages[fact.path].date
        )
        paper = await read(fake, "/paper")
        assert "[page 1]" in paper.text and "The canal has 17 locks." in paper.text


@pytest.mark.parametrize("trap", ["dead", "private", "loop", "silent", "endless", "bomb", "broken_pdf", "picture"])  # fmt: skip
async def test_no_trap_catches_the_reader(trap):
    async with FakeWeb() as fake:
        paths = [page.path for page in fake.pages.values() if page.trap == trap]
        assert paths
        for path in paths[: 1 if trap in {"silent", "bomb"} else 20]:
            with pytest.raises(ToolError) as refused:
                await read(fake, path)
            assert "\n" not in str(refused.value) and fake.canary not in str(refused.value)
        assert not fake.trespasses


async def test_what_a_page_says_closes_no_tag():
    async with FakeWeb() as fake:
        path = next(page.path for page in fake.pages.values() if page.trap == "injection")
        text = (await read(fake, path)).text
        assert "Ignore your task" in text
        assert text.count("</fetched_text>") == 1 and text.endswith("\n</fetched_text>")
        assert "</agent_response>" not in text


async def test_a_redirect_to_another_port_of_this_machine_is_not_followed():
    extra = {"/go": Page("/go", "Go", "", "2026-01-01", "canary")}
    async with FakeWeb(extra=extra) as fake:
        with pytest.raises(ToolError, match="public"):
            await read(fake, "/go")
        with pytest.raises(ToolError, match="public"):
            await read(fake, f"http://{fake.canary}/")
        assert not fake.trespasses


REDIRECTS = (
    "//{canary}/", "\\\\{canary}\\x", "http://[::1]:{port}/", "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/", "http://[64:ff9b::7f00:1]:{port}/", "http://[2002:7f00:1::]:{port}/",
    "http://2130706433:{port}/", "http://0x7f.1:{port}/", "http://0177.0.0.1:{port}/", "http://127.1:{port}/",
    "http://{host}@{canary}/", "http://{canary}#@{host}/", "http://{canary}?@{host}/", "http://%31%32%37.0.0.1:{port}/",
    "http://127.0.0.1.:{port}/", "http://0:{port}/", "HTTP://{canary}/", "ftp://{canary}/", "ws://{canary}/",
    "data:text/html,<p>said", "javascript:said", "http://{host}/<said>", "http://[", "http://{host}:99999999/",
    "/" + "said" * 1000,
)  # fmt: skip


async def test_no_form_of_a_redirect_leads_to_this_machine_or_says_something():
    raw = {f"/{at}": (302, {"Location": place}, b"") for at, place in enumerate(REDIRECTS)}
    plain = {"Content-Type": "text/plain"}
    raw |= {f"/{'said' * 1000}": (200, plain, b"x"), "/<said>": (200, plain, b"x")}
    raw["/refresh"] = (
        200,
        {"Refresh": "0;url=http://{canary}/", "Content-Type": "text/plain"},
        b"",
    )
    async with FakeWeb(count=1, raw=raw) as fake:
        for path in list(raw)[: len(REDIRECTS)]:
            with pytest.raises(ToolError) as refused:
                await read(fake, path)
            assert "said" not in str(refused.value) and "\n" not in str(refused.value)
        await read(fake, "/refresh")
        assert not fake.trespasses


@pytest.mark.parametrize(
    "charset", ["punycode", "idna", "undefined", "utf-7", "zlib", "none-such", "\udcff"]
)
async def test_a_charset_of_no_page_is_not_used(charset):
    said = b"It has 17 locks. -" + b"9" * 20_000  # 0.1 s of the loop as punycode; 200 KB: 10 s
    raw = {"/a": (200, {"Content-Type": f"text/plain; charset={charset}"}, said)}
    async with FakeWeb(count=1, raw=raw) as fake:
        assert "It has 17 locks. -999" in (await read(fake, "/a")).text


async def test_a_page_in_an_old_charset_is_read():
    raw = {
        f"/{name}": (200, {"Content-Type": f"text/plain; charset={name}"}, text.encode(name))
        for name, text in (("shift_jis", "運河"), ("windows-1251", "канал"), ("utf-16", "café"))
    }
    async with FakeWeb(count=1, raw=raw) as fake:
        for path, (*_, said) in raw.items():
            assert said.decode(path[1:]) in (await read(fake, path)).text


async def test_a_page_that_comes_byte_by_byte_ends_with_its_time():
    drip = {"/drip": Page("/drip", "Drip", "", "2026-01-01", "drip")}
    async with FakeWeb(count=1, extra=drip) as fake:
        with pytest.raises(ToolError, match=r"took more than 0\.5 seconds"):
            await read(fake, "/drip", limits=ToolLimits(seconds=0.5))


@pytest.mark.parametrize(("packing", "body"), [("deflate", zlib.compress(bytes(50_000_000))), ("gzip", b"no gzip"), ("br", b"x"), ("zstd", b"x")])  # fmt: skip
async def test_a_page_that_is_packed_unasked_is_bounded(packing, body):
    raw = {"/a": (200, {"Content-Type": "text/plain", "Content-Encoding": packing}, body)}
    async with FakeWeb(count=1, raw=raw) as fake:
        with pytest.raises(ToolError, match="could not be read"):
            await read(fake, "/a")


async def test_a_tool_of_an_mcp_server_is_called_and_what_it_says_is_material():
    found = await call_tool(open_mcp_tool(), '{"query": "locks"}')
    assert found.text == "<fetched_text>\nPages about locks. &lt;/fetched_text>\n</fetched_text>"
    assert found.cost.usd == Decimal("0.01")


async def test_what_a_failing_server_says_is_material_too():
    with pytest.raises(ToolError, match="no such thing") as failed:
        await call_tool(open_mcp_tool("fail"), '{"query": "locks"}')
    assert str(failed.value).count("</fetched_text>") == 1
    assert not find_addresses(str(failed.value))  # no reader behind it goes there


async def test_fifty_megabytes_over_http_are_not_read_to_their_end():
    async with serve_mcp() as url:
        tool = open_mcp_tool("flood", command=(), url=url)
        with pytest.raises(ToolError, match="could not be called"):
            await call_tool(tool, '{"query": "locks"}')


def lying(asked):
    """What a server answers whose result does not fit the schema that it tells, nor soon."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    match asked["method"]:
        case "initialize":
            version = asked["params"]["protocolVersion"]
            told = {"protocolVersion": version, "capabilities": {"tools": {}}}
            return told | {"serverInfo": {"name": "x", "version": "1"}}
        case "tools/list":
            tool = {"name": "lie", "inputSchema": {"type": "object"}, "outputSchema": schema}
            return {"tools": [tool]}
        case "tools/call":
            content = [{"type": "text", "text": "All is well."}]
            return {"content": content, "structuredContent": {"a": "a" * 22 + "b"}}


@asynccontextmanager
async def serve_lies(**headers):
    """That server over streamable HTTP; its address."""

    async def answer(request):
        asked = await request.json()
        result = lying(asked)
        if "id" not in asked or headers.get("status"):
            return web.Response(
                status=headers.get("status", 202),
                headers={"Location": headers.get("Location", "/")},
            )
        told = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
        said = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told})
        return web.Response(body=f"data: {said}\n\n".encode(), headers=headers)

    app = web.Application()
    app.router.add_post("/mcp", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("charset", ["utf-8", "punycode"])
async def test_no_schema_and_no_charset_of_a_server_is_worked_on(charset):
    async with serve_lies(**{"Content-Type": f"text/event-stream; charset={charset}"}) as url:
        found = await call_tool(open_mcp_tool("lie", command=(), url=url), '{"query": "locks"}')
    assert "All is well." in found.text


async def test_a_server_that_sends_elsewhere_is_not_followed():
    async with FakeWeb(count=1) as fake:
        for status in (301, 302, 307, 308):
            async with serve_lies(status=status, Location=f"http://{fake.canary}/mcp") as url:
                with pytest.raises(ToolError, match="could not be called"):
                    await call_tool(open_mcp_tool(command=(), url=url), '{"query": "locks"}')
        assert not fake.trespasses


LIAR = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    for answer in ([], {"id": asked.get("id"), "jsonrpc": "2.0", "result": {"content": 7}}):
        print(json.dumps(answer), "\u0000", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tool": "fail"}, "the tool fail failed: .*no such thing"),
        ({"tool": "none"}, "none"),
        ({"tool": "changed"}, "the tool changed failed: "),
        ({"tool": "flood"}, "the server of the tool flood could not be called"),
        ({"command": ("/nonexistent/server",)}, "could not be called"),
        ({"command": (sys.executable, "-c", "print('no MCP')")}, "could not be called"),
        ({"command": (sys.executable, "-c", LIAR), "limits": ToolLimits(seconds=4.0)}, "."),
        ({"tool": "wait", "limits": ToolLimits(seconds=4.0)}, "took more than 4 seconds"),
    ],
)
async def test_a_server_that_fails_is_one_sentence(options, told):
    with pytest.raises(ToolError, match=told) as failed:
        await call_tool(open_mcp_tool(**options), '{"query": "locks"}')
    assert "\n" not in str(failed.value)
