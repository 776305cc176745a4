"""Providers that lie: whatever they answer, the caller gets an answer or a sentence, and is billed in reason."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import time
import zlib
from contextlib import asynccontextmanager
from decimal import Decimal

import pytest

from batuta.clients import HttpTransport, RetryPolicy, Secret, WorkerSpec, open_client
from batuta.gateway.access.caller import Authenticator
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from batuta.store.ledger import Bucket, usd_to_nano, utc_day
from fakes.server import KEY
from gateway.keyed_server import ADMIN
from gateway.live_server import HI, Serving, pool_of, scripted_state
from gateway.loop_steps import watched_steps

pytestmark = pytest.mark.anyio

CAP = Decimal(1)
USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}


def whole(usage=USAGE, **message):
    message = {"role": "assistant", "content": "Fine.", **message}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {
        "id": "x",
        "object": "chat.completion",
        "model": "m",
        "choices": choices,
        "usage": usage,
    }


def chunk(text="", finish=None, ident="x", **more):
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]
    body = {
        "id": ident,
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": choices,
        **more,
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
END = chunk(finish="stop", usage=USAGE)


def http(body, kind="application/json", *headers, status="200 OK", length=True):
    body = json.dumps(body).encode() if isinstance(body, dict) else body
    told = [f"content-length: {len(body)}"] if length else []
    head = [f"HTTP/1.1 {status}", f"content-type: {kind}", *headers, *told, "connection: close"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def events(*parts, kind="text/event-stream"):
    return http(b"".join(parts), kind, length=False)


class Liar:
    """A provider that sends bytes as they are given, whatever it is asked."""

    def __init__(self, answer, then=None, end=b"", moment=0.1):
        """Send `answer`, a moment later `end`, and `then` again and again."""
        self.moment = moment
        self.answer, self.end, self.then, self.asked, self.gone = (
            answer,
            end,
            then,
            0,
            asyncio.Event(),
        )

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def serve(self, reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            [size] = [line for line in head.lower().split(b"\r\n") if b"content-length" in line]
            await reader.readexactly(int(size.split(b":")[1]))
            self.asked += 1
            writer.write(self.answer)
            await writer.drain()
            if self.end:
                await asyncio.sleep(self.moment)
                writer.write(self.end)
                await writer.drain()
            while self.then is not None:
                writer.write(self.then)
                await writer.drain()
                await asyncio.sleep(0.01)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone.set()
        finally:
            writer.close()


@asynccontextmanager
async def lied_to(store, liar, **limits):
    """A gateway with one worker at that provider, and a key with a budget of a dollar a day."""
    mint = KeyHasher(b"x" * 32)
    _, issued = await store.keys.create(mint, "acme", "a key", KeyPermissions(per_day=CAP))
    bucket = Bucket(f"key:{issued.text.split('_')[1]}", utc_day(time.time()), usd_to_nano(CAP))
    async with HttpTransport() as transport:
        [worker] = pool_of("ada")
        spec = WorkerSpec(worker=worker, provider="compatible", base_url=liar.url, key=Secret(KEY))
        client = open_client(spec, transport, policy=RetryPolicy(attempts=1))
        gate = Authenticator(store, mint, ADMIN)
        app_state = scripted_state({"ada": client}, store=store, authenticator=gate, **limits)
        async with Serving(app_state) as server:
            server.http.headers["authorization"] = f"Bearer {issued.text}"
            yield server, bucket


async def billed(store, bucket):
    await store.flush()
    [status] = await store.budgets.budget_status([bucket])
    assert status.reserved == 0, "nothing stays reserved"
    return status.spent


WRONG_USAGES = [
    {"prompt_tokens": -20, "completion_tokens": 10},
    {"prompt_tokens": 20, "completion_tokens": -(10**9)},
    {"prompt_tokens": 10**15, "completion_tokens": 10},
    {"prompt_tokens": 20, "completion_tokens": 9e14},
    {"prompt_tokens": "20", "completion_tokens": True},
    {"prompt_tokens": 20, "completion_tokens": 10, "cost": 1e300},
    {"prompt_tokens": 20, "completion_tokens": 10, "cost": -5},
    [],
    "none",
    None,
]


@pytest.mark.parametrize("usage", WRONG_USAGES, ids=str)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_usage_is_estimated_and_empties_no_budget(store, usage, stream):
    text = chunk("Fine.") + chunk(finish="stop", usage=usage) + DONE
    async with (
        Liar(events(text) if stream else http(whole(usage))) as liar,
        lied_to(store, liar) as (server, bucket),
    ):
        async with server.http.post(
            "/v1/chat/completions", json={"model": "worker/ada", "messages": HI, "stream": stream}
        ) as response:
            told = await response.text()
        assert response.status == 200 and "Fine." in told, told
        assert 0 < await billed(store, bucket) < usd_to_nano(Decimal("0.001"))


EXCESSIVE_USAGES = [
    {"prompt_tokens": 20, "completion_tokens": 100_000_000},
    {"prompt_tokens": 100_000_000, "completion_tokens": 10},
    {"prompt_tokens": 20, "completion_tokens": 10, "cost": 9999},
]


@pytest.mark.parametrize("usage", EXCESSIVE_USAGES, ids=str)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_usage_beyond_what_was_sent_and_allowed_empties_no_budget(
    store, usage, stream, caplog
):
    text = chunk("Fine.") + chunk(finish="stop", usage=usage) + DONE
    async with (
        Liar(events(text) if stream else http(whole(usage))) as liar,
        lied_to(store, liar) as (server, bucket),
    ):
        for _ in range(2):
            async with server.http.post(
                "/v1/chat/completions",
                json={"model": "worker/ada", "messages": HI, "stream": stream},
            ) as response:
                told = await response.text()
            assert response.status == 200 and "Fine." in told, told
        assert 0 < await billed(store, bucket) < usd_to_nano(CAP / 2)
    assert sum("worker ada: its provider states" in one for one in caplog.messages) == 2


def bomb(size):
    """Zeros, packed a thousandfold."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(b"\0" * 1_000_000) for _ in range(size)) + packer.flush()


DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000
NESTED = {"token": "a", "logprob": -1.0}
for _ in range(400):
    NESTED = {"token": "a", "logprob": -1.0, "top_logprobs": [NESTED]}
CALL = {"id": "c", "type": "function", "function": {"name": ["f"], "arguments": "{}"}}
ANSWERS = {
    "a page": lambda: http(b"<html>", "text/html"),
    "no type": lambda: http(b"{}", ""),
    "json as text": lambda: http(whole(), "text/plain"),
    "events for a whole answer": lambda: events(chunk("Fine."), END, DONE),
    "a redirect": lambda: http(
        b"", "text/html", "location: http://169.254.169.254/", status="302 Found"
    ),
    "no content": lambda: http(b"", status="204 No Content"),
    "half": lambda: http(whole())[:-9],
    "nothing": lambda: b"",
    "no http": lambda: b"SSH-2.0-OpenSSH\r\n\r\n",
    "a longer length": lambda: (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{}"
    ),
    "a negative length": lambda: (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: -9\r\n\r\n{}"
    ),
    "NaN": lambda: http(
        b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": NaN}}'
    ),
    "deep": lambda: http(DEEP),
    "a list": lambda: http(b"[]"),
    "a number": lambda: http(b"7"),
    "no choices": lambda: http({"choices": []}),
    "text of another type": lambda: http(whole(content={"a": 1})),
    "a tool without a name": lambda: http(whole(tool_calls=[CALL])),
    "a gzip bomb": lambda: http(bomb(100), "application/json", "content-encoding: gzip"),
    "no gzip": lambda: http(whole(), "application/json", "content-encoding: gzip"),
    "a header of a megabyte": lambda: http(whole(), "application/json", "x-a: " + "a" * 1_000_000),
    "40 MB": lambda: http(b" " * 40_000_000),
    "a status of its own": lambda: http(b"{}", status="999 Odd"),
    "an error that is none": lambda: http({"error": [["x"]]}),
    "an error of a megabyte": lambda: http(b"x" * 1_000_000, status="500 No"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_that_is_none_is_told_in_a_sentence(store, name, caplog):
    caplog.set_level(logging.ERROR)
    async with Liar(ANSWERS[name]()) as liar, lied_to(store, liar) as (server, bucket):
        with watched_steps() as steps:
            status, _, body = await server.post(json={"model": "worker/ada", "messages": HI})
        assert status == 200 or body["error"]["code"] != "server_error", body
        assert status in {200, 400, 502, 504} and "127.0.0.1" not in json.dumps(body), body
        assert await billed(store, bucket) < usd_to_nano(Decimal("0.01"))
        assert steps.longest < 0.5
    assert not caplog.records, caplog.text


def tool_call(number):
    """One more call of a tool, in a stream."""
    call = {"index": number, "id": f"c{number}", "function": {"name": "f", "arguments": "{}"}}
    return (
        b"data: " + json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode() + b"\n\n"
    )


STREAMS = {
    "more after the end": lambda: (chunk("Fine."), END, DONE, chunk("More."), DONE),
    "another id every time": lambda: (chunk("Fi", ident="a"), chunk("ne.", ident="b"), END, DONE),
    "no end": lambda: (chunk("Fine."),),
    "an end alone": lambda: (DONE,),
    "10 MB at once": lambda: (chunk("Fine." + "x" * 10_000_000), END, DONE),
    "no event": lambda: (b"Fine.\n\n",),
    "half an event": lambda: (chunk("Fine."), b"data: {"),
    "an event that is none": lambda: (chunk("Fine."), b"data: []\n\n", DONE),
    "usage twice": lambda: (chunk("Fine.", usage={"prompt_tokens": 10**14}), END, DONE),
    "usage missing": lambda: (chunk("Fine."), chunk(finish="stop"), DONE),
    "an index of any kind": lambda: (chunk("Fine."), b'data: {"choices":[{"index":"a"}]}\n\n', END, DONE),
    "a tool without a name": lambda: (b'data: {"choices":[{"delta":{"tool_calls":[{"id":[],"function":{"name":{}}}]}}]}\n\n', END, DONE),
    "probabilities without end": lambda: (b"data: " + json.dumps({"choices": [{"delta": {}, "logprobs": {"content": [NESTED]}}]}).encode() + b"\n\n", END, DONE),
    "a thousand tools and more": lambda: tuple(tool_call(number) for number in range(20_000)),
    "10 MB of comments": lambda: (chunk("Fine."), b": keep\n\n" * 1_250_000, END, DONE),
    "200,000 words": lambda: (chunk("word ") * 200_000, END, DONE),
    "bytes of no encoding": lambda: (b'data: {"choices":[{"delta":{"content":"\xff\xfe"}}]}\n\n', END, DONE),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_that_is_none_ends_in_a_sentence(store, name, caplog):
    caplog.set_level(logging.ERROR)
    async with Liar(events(*STREAMS[name]())) as liar, lied_to(store, liar) as (server, bucket):
        with watched_steps() as steps:
            frames = await server.frames(model="worker/ada")
        assert steps.longest < 0.5
        error = [json.loads(f[6:])["error"] for f in frames if f.startswith('data: {"error"')]
        assert (frames[-1] == "data: [DONE]") != bool(error), frames[-1][:300]
        assert all(one["code"] != "server_error" for one in error), error
        assert "More." not in "".join(frames)
        ids = {json.loads(f[6:])["id"] for f in frames if f.startswith('data: {"id"')}
        assert len(ids) == 1
        assert await billed(store, bucket) < usd_to_nano(Decimal("0.02"))
    assert not caplog.records, caplog.text


@pytest.mark.parametrize("then", [b": still here\n\n", chunk("more "), b"data: x"], ids=["comments", "words", "a line"])  # fmt: skip
async def test_a_stream_without_end_ends_with_the_deadline(store, then):
    liar = Liar(events(chunk("Fine.")), then)
    async with liar, lied_to(store, liar) as (server, bucket):
        began = time.monotonic()
        frames = await server.frames(model="worker/ada", orchestration={"deadline_s": 0.5})
        assert time.monotonic() - began < 30
        assert '"error"' in frames[-1], frames[-1]
        async with asyncio.timeout(30):
            await liar.gone.wait()
        assert 0 < await billed(store, bucket) < usd_to_nano(Decimal("0.01"))


CHUNKS = {
    "text": b"zz\r\nx\r\n0\r\n\r\n",
    "text behind the end of one": b"\r\nzz\r\nx\r\n0\r\n\r\n",
    "huge": b"ffffffffffffffff7\r\nx\r\n0\r\n\r\n",
    "no end": b"1\r\nxy\r\n0\r\n\r\n",
    "line feeds": b"1\nx\n0\n\n",
    "a long extension": b"1;" + b"x" * 100_000 + b"\r\nx\r\n0\r\n\r\n",
    "a long trailer": b"0\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("end", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("moment", [0.1, 0])
async def test_chunks_that_are_no_http_end_the_answer_at_once(store, end, stream, moment):
    begun = chunk("Fine.") if stream else b'{"choices": '
    kind = "text/event-stream" if stream else "application/json"
    framed = b"%x\r\n%b\r\n" % (len(begun), begun)
    framed = framed.removesuffix(b"\r\n") if end.startswith(b"\r\n") else framed
    liar = Liar(
        http(framed, kind, "transfer-encoding: chunked", length=False), end=end, moment=moment
    )
    async with liar, lied_to(store, liar) as (server, bucket), asyncio.timeout(20):
        if stream:
            [*_, last] = await server.frames(model="worker/ada")
            error = json.loads(last.removeprefix("data: "))["error"]
        else:
            status, _, body = await server.post(json={"model": "worker/ada", "messages": HI})
            assert status == 502, body
            error = body["error"]
        assert error["code"] == "upstream_error", error
        assert 0 < await billed(store, bucket) < usd_to_nano(Decimal("0.01"))


WAIT = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_provider_that_always_announces_its_answer_is_given_up(store, stream):
    liar = Liar(WAIT, WAIT * 10_000)
    asked = {"model": "worker/ada", "orchestration": {"deadline_s": 30}}
    async with liar, lied_to(store, liar) as (server, bucket):
        with watched_steps() as steps:
            began = time.monotonic()
            if stream:
                [*_, last] = await server.frames(**asked)
                error = json.loads(last.removeprefix("data: "))["error"]
            else:
                status, _, body = await server.post(json=asked | {"messages": HI})
                assert status == 502, body
                error = body["error"]
            assert time.monotonic() - began < 15
        assert "an invalid response" in error["message"], error
        assert steps.longest < 0.5
        async with asyncio.timeout(30):
            await liar.gone.wait()
        assert await billed(store, bucket) < usd_to_nano(Decimal("0.01"))


async def test_a_few_announcements_before_an_answer_are_skipped(store):
    async with Liar(WAIT * 3 + http(whole())) as liar, lied_to(store, liar) as (server, _):
        status, _, body = await server.post(json={"model": "worker/ada", "messages": HI})
    assert status == 200 and body["choices"][0]["message"]["content"] == "Fine."


async def test_a_redirect_is_not_followed(store):
    async with Liar(http(whole())) as other:
        there = f"location: {other.url}/chat/completions"
        answer = http(b"", "text/html", there, status="307 Temporary Redirect")
        async with Liar(answer) as liar, lied_to(store, liar) as (server, _):
            status, _, _ = await server.post(json={"model": "worker/ada", "messages": HI})
    assert (status, other.asked) == (502, 0)


async def test_two_hundred_at_once_are_each_answered_and_billed(store):
    answer = gzip.compress(json.dumps(whole()).encode())
    async with (
        Liar(http(answer, "application/json", "content-encoding: gzip")) as liar,
        lied_to(store, liar) as (server, bucket),
    ):
        asked = {"model": "worker/ada", "messages": HI}
        async with asyncio.TaskGroup() as tasks:
            sent = [tasks.create_task(server.post(json=asked)) for _ in range(200)]
        statuses = [one.result()[0] for one in sent]
        assert set(statuses) <= {200, 429, 503}, statuses
        good = statuses.count(200)
        assert good and await billed(store, bucket) == good * usd_to_nano(Decimal("0.00004"))
