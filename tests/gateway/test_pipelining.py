"""Many requests sent at once on one connection: read ahead of their answers, but not without end."""

import json
import logging
from contextlib import suppress

import anyio
import pytest

from .house import HI, Halting
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
        with anyio.fail_after(30):
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
            with anyio.fail_after(30):
                await ada.started.wait()
            with suppress(anyio.BrokenResourceError):  # closed before all was sent
                await stream.send(GET * 20_000)
            assert await ends(stream, 30) == b""
        with anyio.fail_after(30):
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
            with anyio.fail_after(30):
                await ada.started.wait()
        with anyio.fail_after(30):
            await ada.cancelled.wait()


@pytest.mark.parametrize("following", [GET, GET * 2, b"G"])
async def test_a_run_that_waited_ends_with_its_reader_too(following):
    ada = Halting()
    async with guarded(ada) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(GET + post({"model": "worker/ada", "messages": HI}) + following)
            with anyio.fail_after(30):
                await ada.started.wait()
        with anyio.fail_after(30):
            await ada.cancelled.wait()
