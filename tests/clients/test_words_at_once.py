"""Words of a stream that came at once are told as one fragment, in their order, and all of them."""

from __future__ import annotations

import json

import pytest

from batuta.clients import HttpTransport, Secret, WorkerSpec, open_client
from batuta.core import Reply, Request, Worker, WorkerId, user_message
from batuta.core.conductor import NullListener
from batuta.errors import InvalidReplyError
from clients.test_stream_ends import USAGE, Upstream

pytestmark = pytest.mark.anyio


class Listener(NullListener):
    """Notes each fragment."""

    def __init__(self):
        self.said = []

    @property
    def streaming(self):
        return True

    async def on_delta(self, delta):
        self.said.append((delta.choice, delta.reasoning, delta.text, delta.tool_arguments))


def piece(index=0, finish=None, **delta):
    choices = [{"index": index, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"model": "m", "choices": choices}).encode() + b"\n\n"


def call(arguments):
    name = {"name": "f"} if arguments == "{" else {}
    part = {"index": 0, "id": "call_1", "function": {**name, "arguments": arguments}}
    return piece(tool_calls=[part])


async def told(*events):
    async def say(writer):
        writer.write(b"".join(events))

    listener = Listener()
    async with Upstream(say) as upstream, HttpTransport() as http:
        worker = Worker(id=WorkerId("ada"), model="m")
        spec = WorkerSpec(
            worker=worker, provider="compatible", base_url=upstream.url, key=Secret("k")
        )
        try:
            request = Request(messages=(user_message("Hi."),))
            reply = await open_client(spec, http).complete(request, listener)
        except InvalidReplyError as error:
            return error, listener.said
    return reply, listener.said


async def test_words_of_one_kind_are_one_fragment_and_keep_their_place():
    reply, said = await told(
        piece(reasoning_content="Hm"), piece(reasoning_content=", well."),
        piece(content="It "), piece(content="is \ud83c"), piece(content="\udf1e."),
        call("{"), call("}"), piece(content=" Yes."), piece(index=1, content="No."),
        piece(finish="stop"), piece(index=1, finish="stop"),
        b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\ndata: [DONE]\n\n",
    )  # fmt: skip
    assert isinstance(reply, Reply)
    assert said == [
        (0, "Hm, well.", "", ""),
        (0, "", "It is \U0001f31e.", ""),
        (0, "", "", "{"),
        (0, "", "", "}"),
        (0, "", " Yes.", ""),
        (1, "", "No.", ""),
    ]
    assert reply.text == "It is \U0001f31e. Yes." and reply.alternatives[0].text == "No."


async def test_words_before_what_cannot_be_read_are_told():
    error, said = await told(piece(content="It "), piece(content="is"), b"data: [7]\n\n")
    assert isinstance(error, InvalidReplyError)
    assert set(said) == {(0, "", "It is", "")}  # by each attempt
