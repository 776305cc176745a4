"""Many requests sent at once on one connection: read ahead of their answers, but not without end."""

import json
import logging
from contextlib import suppress

import anyio
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Reply
from batuta.core.conductor import NULL_LISTENER
from batuta.usage import Usage

from .live_server import HI, Halting
from .test_connections import ends, guarded

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def post(body):
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    )
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + data


async def test_a_few_are_answered_in_turn():
    async with guarded() as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(GET * 40 + GET.replace(b"/healthz", b"/nothing"))
        said = b""
        with anyio.fail_after(60):
            while b" 404 " not in said:
                said += await stream.receive()
    assert said.count(b"HTTP/1.1 200") == 40
    assert said.rindex(b" 200 ") < said.index(b" 404 "), "the last is answered last"


async def test_too_many_close_the_connection_and_nothing_is_kept_of_them(caplog):
    caplog.set_level(logging.ERROR)
    ada = Halting()
    async with guarded(ada) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(post({"model": "worker/ada", "messages": HI}))
            with anyio.fail_after(60):
                await ada.started.wait()
            with suppress(anyio.BrokenResourceError):  # closed before all was sent
                await stream.send(GET * 20_000)
            assert await ends(stream, 30) == b""
        with anyio.fail_after(60):
            await ada.cancelled.wait()
        async with await anyio.connect_tcp("127.0.0.1", port) as other:
            await other.send(GET)
            assert b" 200 " in await other.receive(), "others are served"
    assert not caplog.records, caplog.text


async def test_a_run_ends_with_its_reader_though_another_request_waits_behind_it():
    """Uvicorn tells the request that was read last; the one under way is another."""
    ada = Halting()
    async with guarded(ada) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(post({"model": "worker/ada", "messages": HI}) + GET)
            with anyio.fail_after(60):
                await ada.started.wait()
        with anyio.fail_after(60):
            await ada.cancelled.wait()


@pytest.mark.parametrize("following", [GET, GET * 2, b"G"])
async def test_a_run_that_waited_ends_with_its_reader_too(following):
    ada = Halting()
    async with guarded(ada) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(GET + post({"model": "worker/ada", "messages": HI}) + following)
            with anyio.fail_after(60):
                await ada.started.wait()
        with anyio.fail_after(60):
            await ada.cancelled.wait()


CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize(
    ("head", "unit"),
    [
        (CHUNKED + b"1\r\na\r\n0\r\n", b"a: b\r\n"),
        (CHUNKED + b"1\r\na\r\n0\r\na: ", b"b" * 64),
        (CHUNKED + b"1;", b"b" * 64),
    ],
    ids=["trailers", "one trailer", "one extension of a chunk"],
)
async def test_what_is_in_a_body_beside_its_contents_has_an_end(head, unit):
    async with guarded() as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(head)
        sent = 0
        with anyio.fail_after(60), suppress(anyio.BrokenResourceError):
            while sent < 50_000_000:
                await stream.send(unit * 1000)
                sent += 1000 * len(unit)
                await anyio.sleep(0)
        assert sent < 20_000_000, "what the kernel takes in, and no more"


async def test_a_head_without_end_behind_a_request_that_is_answered_has_one():
    ada = Halting()
    async with guarded(ada) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(post({"model": "worker/ada", "messages": HI}))
        with anyio.fail_after(60):
            await ada.started.wait()
            with suppress(anyio.BrokenResourceError):
                await stream.send(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 40_000)
            await ada.cancelled.wait()


async def test_a_trailer_is_no_header():
    """Nor does a body in many small pieces count as too much beside its contents."""
    body = json.dumps({"model": "worker/ada", "messages": HI}).encode()
    pieces = b"".join(b"1\r\n%c\r\n" % letter for letter in body + b" " * 100_000)
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n")
    async with guarded() as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(
            head + pieces + b"0\r\nX-Request-Id: mine-0123\r\nIdempotency-Key: k\r\n\r\n"
        )
        said = b""
        with anyio.fail_after(60):
            while not said.endswith(b"}"):
                said += await stream.receive()
    assert b" 200 " in said and b"Hello there" in said and b"mine-0123" not in said


async def test_many_headers_are_refused_as_too_long():
    async with guarded() as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 300 + b"\r\n"
        )
        assert b" 431 " in await ends(stream, 30)


class Slow:
    """A worker that takes a moment."""

    async def complete(self, request, listener=NULL_LISTENER):
        await anyio.sleep(0.01)
        return Reply(text="Hello.", usage=Usage(calls=1))


async def send_without_end(stream, data):
    while True:
        await stream.send(data)


ONE = post({"model": "worker/ada", "messages": HI})


async def test_large_requests_that_wait_are_too_many_sooner():
    """A few of them have as many bytes of headers as may wait."""
    one = ONE.replace(b"\r\n\r\n", b"\r\na: " + b"b" * 50_000 + b"\r\n\r\n")
    async with guarded(Slow()) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:

        async def read():
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    await stream.receive()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
                await send_without_end(stream, one)
            tasks.cancel_scope.cancel()


async def test_who_goes_on_sending_a_little_ahead_is_served_as_long_as_it_likes():
    sent, answered = 0, 0
    async with guarded(Slow()) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        with anyio.fail_after(60):
            while answered < 300:
                while sent < answered + 20:
                    await stream.send(ONE)
                    sent += 1
                answered += (await stream.receive()).count(b"HTTP/1.1 200")


BODY = json.dumps({"model": "worker/ada", "messages": HI}).encode()
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d" % len(BODY)


def offering(protocol, framing):
    """The headers of a request that offers to change the protocol, as Java's client sends it."""
    return b"\r\n".join([
        b"POST /v1/chat/completions HTTP/1.1", b"Host: localhost",
        b"Connection: Upgrade, HTTP2-Settings", b"Content-Type: application/json", framing,
        b"HTTP2-Settings: AAEAAEAA", b"Upgrade: " + protocol, b"", b"",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("framing", "body"), [(LENGTH, BODY), (b"Transfer-Encoding: chunked", CHUNKS)]
)
async def test_the_body_of_a_request_that_offers_another_protocol_is_read(framing, body):
    """Its body is no request of its own, which a proxy's other client would get the answer to."""
    async with guarded(ScriptedClient(lambda _: "Fine.")) as port:
        for protocol, cut in (
            (b"h2c", None),
            (b"h2c", 0),
            (b"x/1", -1),
            (b"websocket", 9),
            (b"h2c", -90),
        ):
            head = offering(protocol, framing)
            asked = head + body + GET
            at = len(asked) if cut is None else len(head) + cut
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                for piece in filter(None, (asked[:at], asked[at:])):
                    await stream.send(piece)
                    await anyio.sleep(0.02)
                said = b""
                with anyio.fail_after(60):
                    while b'{"status":"ok"}' not in said:
                        said += await stream.receive()
            assert said.count(b"HTTP/1.1 200") == said.count(b"HTTP/1.1 ") == 2
            assert b'"Fine."' in said


async def test_many_offers_in_one_piece_are_refused_like_many_requests(caplog):
    caplog.set_level(logging.ERROR)
    async with guarded(Halting()) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            with suppress(anyio.BrokenResourceError):
                await stream.send((offering(b"h2c", LENGTH) + BODY) * 2_000)
            assert await ends(stream, 30) == b""
        async with await anyio.connect_tcp("127.0.0.1", port) as other:
            await other.send(
                GET.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost") + GET
            )
            said = b""
            with anyio.fail_after(60):
                while said.count(b'{"status":"ok"}') < 2:
                    said += await other.receive()
    assert not caplog.records, caplog.text
