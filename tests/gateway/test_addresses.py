"""No upstream address reaches a caller, a trace, a page or a span, however the upstream fails."""

import asyncio
import re
import socket

import pytest
from aiohttp import web

from batuta.clients import HttpTransport, RetryPolicy, WorkerSpec, open_client
from batuta.clients.http_target import Secret
from batuta.conductors import LLMConductor
from batuta.core import Failure, Question, WorkerId
from batuta.core.conductor import NULL_LISTENER
from batuta.engine import conduct
from batuta.errors import BadRequestError, ProviderOverloadedError, RateLimitError
from batuta.gateway.telemetry.spans import spans_of
from batuta.store import Store, encode_run
from fakes.openai import FakeOpenAI
from gateway.live_server import HI, Serving, pool_of, scripted_state

pytestmark = pytest.mark.anyio
KEY = "canary-key-0123456789"


TOO_MANY = 429


def page(request, form="html"):
    told = f"{request.url} {request.host} {request.path} {request.headers.get('Authorization')}"
    if form == "html":
        return f"<html><a href='{request.url}'>{told}</a></html>", "text/html"
    return f'{{"error": {{"message": "{told} at 127.0.0.1", "code": 1}}}}', "application/json"


def answers(status, form="json", **headers):
    async def handle(request):
        text, kind = page(request, form)
        sent = {name: str(request.url) for name in headers}
        if status == TOO_MANY:
            sent["Retry-After"] = "0"  # without it each of many calls pauses twice as long
        return web.Response(status=status, text=text, content_type=kind, headers=sent)

    return handle


async def silent(_):
    await asyncio.sleep(5)


async def cut(request):
    request.transport.close()
    return web.Response()


async def cut_later(request):
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"choices": [{"delta": {"content": "half"}}]}\n\n')
    request.transport.close()
    return response


async def error_in_stream(request):
    text, _ = page(request, "json")
    return web.Response(text=f"data: {text}\n\n", content_type="text/event-stream")


async def misshapen(request):
    return web.Response(text=f'["{request.url}"]', content_type="application/json")


FAULTS = {
    **{f"{status} {form}": answers(status, form) for status in (400, 401, 404, 413, 429, 500, 503)
       for form in ("html", "json")},
    "redirect": answers(307, Location=1),
    "a page": answers(200, "html"),
    "an error inside a 200": answers(200),
    "an error inside a stream": error_in_stream,
    "another shape": misshapen,
    "silence": silent,
    "cut": cut,
    "cut later": cut_later,
}  # fmt: skip


class Upstream:
    """A provider on the loopback at a path that must not be told."""

    def __init__(self, handle):
        self._handle = handle

    async def __aenter__(self):
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return f"http://127.0.0.1:{self.port}/canary-path/v1"

    async def __aexit__(self, *error):
        await self._runner.cleanup()


def ada(http, url, provider="compatible"):
    worker = pool_of("ada").workers[0]
    spec = WorkerSpec(worker=worker, provider=provider, base_url=url, key=Secret(KEY))
    return open_client(spec, http, policy=RetryPolicy(attempts=1))


def assert_hidden(text, url):
    text = text.lower()
    assert "canary" not in text and "127.0.0.1" not in text, text
    port = url.partition("127.0.0.1:")[2].partition("/")[0]
    assert not port or f":{port}" not in text, text


async def check(url, tmp_path, provider="compatible"):
    async with HttpTransport(connect=1.0, idle=0.2) as http:
        await check_client(ada(http, url, provider), url, tmp_path)


async def check_client(client, url, tmp_path):
    """Asks a server with this client as its only worker in every way, and reads all it shows."""
    async with (
        Store.open(f"sqlite:///{tmp_path}/runs.db") as store,
        Serving(scripted_state({"ada": client}, store=store)) as server,
    ):
        for model in ("worker/ada", "batuta-ultra"):
            for stream in (False, True):
                body = {"model": model, "messages": HI, "stream": stream,
                        "orchestration": {"trace": True}}  # fmt: skip
                async with server.http.post("/v1/chat/completions", json=body) as response:
                    headers = {k: v for k, v in response.headers.items() if k.lower() != "server"}
                    told = await response.text()
                assert "error" in told
                assert_hidden(told + str(headers), url)
        async with server.http.get("/ui/") as response:
            found = re.search(r'data-token="([^"]+)"', await response.text())
        for model in ("worker/ada", "batuta-ultra"):
            asked = {"model": model, "messages": HI}
            token = {"x-token": found[1]}
            async with server.http.post("/ui/ask", json=asked, headers=token) as answer:
                panels = await answer.text()
            assert "failed" in panels and answer.status == 200, panels
            assert_hidden(panels.replace(server.url, ""), url)
        rows = await store.list()
        assert len(rows) == 6
        for row in rows:
            run = await store.get(row.id)
            assert run.error is not None
            assert_hidden(encode_run(run).decode() + repr(spans_of(run, "t")), url)  # pyright: ignore[reportArgumentType]
            for path in (f"/v1/runs/{row.id}", f"/ui/runs/{row.id}", "/ui/pool", "/metrics"):
                async with server.http.get(path) as response:
                    assert response.status == 200, path
                    assert_hidden((await response.text()).replace(server.url, ""), url)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
async def test_an_upstream_that_answers(fault, tmp_path):
    async with Upstream(FAULTS[fault]) as url:
        await check(url, tmp_path)


@pytest.mark.parametrize("provider", ["anthropic", "gemini"])
@pytest.mark.parametrize("fault", ["400 json", "500 json", "an error inside a 200", "redirect"])
async def test_in_other_dialects(provider, fault, tmp_path):
    async with Upstream(FAULTS[fault]) as url:
        await check(url, tmp_path, provider)


async def test_one_that_cannot_be_reached(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with Upstream(silent) as plain:
        for number, url in enumerate(
            (
                f"http://127.0.0.1:{port}/canary-path/v1",
                "http://canary-host.invalid:48443/v1",
                plain.replace("http:", "https:"),
            )
        ):
            folder = tmp_path / str(number)
            folder.mkdir()
            await check(url, folder)


class PluggedIn:
    """A client of somebody's own, whose errors say all that it knows."""

    def __init__(self, url, kind, *, tells=False):
        self._url, self._kind, self._tells = url, kind, tells

    async def complete(self, request, listener=NULL_LISTENER):
        text = f"{self._url} refused Bearer {KEY} and sk-{KEY} at 127.0.0.1"
        if self._tells:
            await listener.on_failure(Failure(code="overloaded", message=text, retryable=True))
        raise self._kind(text)


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize("kind", [BadRequestError, ProviderOverloadedError, RateLimitError])
async def test_a_client_that_is_plugged_in(kind, tells, tmp_path):
    url = "http://127.0.0.1:48443/canary-path/v1"
    await check_client(PluggedIn(url, kind, tells=tells), url, tmp_path)


async def test_a_conductors_client_that_is_plugged_in():
    url = "http://127.0.0.1:48443/canary-path/v1"
    client = PluggedIn(url, BadRequestError, tells=True)
    run = await conduct(
        Question.of("hi"),
        LLMConductor(name="c", client=client),
        pool_of("ada"),
        {WorkerId("ada"): client},
    )
    assert run.rounds[0].decision.outage  # pyright: ignore[reportAttributeAccessIssue]
    assert_hidden(encode_run(run).decode(), url)


async def test_the_conductors_own_provider():
    async with Upstream(answers(400)) as url, HttpTransport(connect=1.0, idle=0.2) as http:
        pool = pool_of("ada")
        run = await conduct(
            Question.of("hi"),
            LLMConductor(name="c", client=ada(http, url)),
            pool,
            {"ada": ada(http, url)},  # pyright: ignore[reportArgumentType]
        )
    assert run.rounds[0].decision.outage  # pyright: ignore[reportAttributeAccessIssue]
    assert_hidden(encode_run(run).decode(), url)


ELSEWHERE = "http://elsewhere.invalid"
ATTEMPTS = {
    "addresses": {"base_url": ELSEWHERE, "api_base": ELSEWHERE, "endpoint": ELSEWHERE, "proxy": ELSEWHERE},
    "headers": {"extra_headers": {"x-canary": "1"}, "headers": {"x-canary": "1"}, "api_key": "canary"},
    "queries and bodies": {"extra_query": {"canary": "1"}, "extra_body": {"canary": 1}, "provider": {"canary": 1}},
    "paths": {"user": "../../canary", "prompt_cache_key": "../../canary"},
}  # fmt: skip
HEADERS = {
    "x-canary": "1",
    "cookie": "canary=1",
    "x-forwarded-host": "elsewhere.invalid",
    "openai-organization": "canary",
    "anthropic-beta": "canary",
    "user-agent": "canary",
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("name", ATTEMPTS)
async def test_a_caller_chooses_no_address_no_header_and_no_path(path, name):
    """Whatever fields and headers a request has, a provider is sent the same call."""
    asked = {"input": "hi"} if path == "/v1/responses" else {"messages": HI, "max_tokens": 99}
    async with (
        FakeOpenAI("Hello.", key=KEY, strict_openai=False) as provider,
        HttpTransport() as http,
    ):
        async with Serving(scripted_state({"ada": ada(http, provider.url)})) as server:
            body = {"model": "worker/ada", **asked}
            assert (await server.post(path, json=body))[0] == 200
            status, _, _ = await server.post(path, json={**body, **ATTEMPTS[name]}, headers=HEADERS)
            for model in ("worker/../ada", "worker/ada?x=1", f"worker/{ELSEWHERE}", ELSEWHERE):
                assert (await server.post(path, json={**body, "model": model}))[0] == 404
    assert status in {200, 400}
    plain, *others = provider.requests
    assert len(others) == (status == 200)
    for other in others:
        assert (other.path, other.query) == (plain.path, plain.query)
        told = {n: v for n, v in other.headers.items() if n not in LIVE_HEADERS}
        assert told == {n: v for n, v in plain.headers.items() if n not in LIVE_HEADERS}
        assert 'canary"' not in str(other.body) and "canary'" not in str(other.body)
        assert ELSEWHERE not in str(other.body)


LIVE_HEADERS = {"content-length", "traceparent", "idempotency-key"}
"""Differ from call to call."""
