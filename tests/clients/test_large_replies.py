"""Whole replies of megabytes are read beside the event loop, and have a bound on their values."""

from __future__ import annotations

import asyncio
import json

import pytest

from batuta.clients import HttpTransport, Secret, WorkerSpec, open_client
from batuta.core import Request, Worker, WorkerId, user_message
from batuta.errors import InvalidReplyError
from gateway.loop_steps import watched_steps

pytestmark = pytest.mark.anyio
LONGEST = 0.2
"""Seconds of one step; before, both texts took three times as long."""
TOKEN = {"token": " the", "logprob": -0.25, "bytes": [32, 116, 104, 101]}


def whole(text="Fine.", **more):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **more}
    return json.dumps({"model": "m", "choices": [choice]}, ensure_ascii=False).encode()


async def complete(body):
    """The reply whose body that is, and the longest step of the loop."""

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(size)
        kind = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        writer.write(kind + b"content-length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 1 << 18):
            writer.write(body[at : at + (1 << 18)])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    worker = Worker(id=WorkerId("ada"), model="m")
    spec = WorkerSpec(worker=worker, provider="compatible", base_url=url, key=Secret("k"))
    async with server, HttpTransport() as http:
        client = open_client(spec, http)
        with watched_steps() as steps:
            asked = client.complete(Request(messages=(user_message("Hi."),)))
            return await asyncio.create_task(asked), steps.longest


@pytest.mark.parametrize(
    "made",
    [
        lambda: whole(logprobs={"content": [{**TOKEN, "top_logprobs": [TOKEN] * 20}] * 4000}),
        lambda: whole("sun 😀 " * 2_500_000),
    ],
    ids=["values", "text"],
)
async def test_a_large_reply_does_not_hold_the_loop(made):
    reply, longest = await complete(made())
    assert reply.text and longest < LONGEST


async def test_a_reply_of_too_many_values_is_an_error():
    body = whole()[:-1] + b', "x": [' + b"1," * 1_100_000 + b"1]}"
    with pytest.raises(InvalidReplyError):
        await complete(body)
