"""What a provider has said and stated counts, however its stream ends."""

from __future__ import annotations

import asyncio
import json
import selectors

import pytest

from batuta.clients import HttpTransport, Secret, WorkerSpec, open_client
from batuta.clients.http_target import HttpTarget
from batuta.clients.openai.stream import OpenAIStreamAccumulator
from batuta.clients.stream_reading import USAGE_SECONDS, read_stream
from batuta.clients.transport import EventStream
from batuta.core import Request, Worker, WorkerId, user_message
from batuta.core.conductor import NullListener
from batuta.errors import InvalidReplyError

pytestmark = pytest.mark.anyio
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99999\r\n\r\n"
USAGE = {"prompt_tokens": 1000, "completion_tokens": 500}


def chunk(text="", finish=None, **more):
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]
    return b"data: " + json.dumps({"model": "m", "choices": choices, **more}).encode() + b"\n\n"


class Upstream:
    """Answers every request as `say` does, and then breaks the connection."""

    def __init__(self, say):
        self.say, self.left = say, asyncio.Event()

    async def answer(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(size)
        writer.write(HEAD)
        await self.say(writer)
        await writer.drain()
        writer.close()
        self.left.set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_):
        self.server.close()


class Slow(NullListener):
    """Reads no further until its upstream has left."""

    def __init__(self, upstream):
        self.upstream, self.said = upstream, []

    @property
    def streaming(self):
        return True

    async def on_delta(self, delta):
        self.said.append(delta.text)
        await self.upstream.left.wait()
        await asyncio.sleep(0.1)


async def complete(upstream):
    worker = Worker(id=WorkerId("ada"), model="m")
    spec = WorkerSpec(worker=worker, provider="compatible", base_url=upstream.url, key=Secret("k"))
    listener = Slow(upstream)
    async with HttpTransport() as http:
        request = Request(messages=(user_message("Hi."),))
        return await open_client(spec, http).complete(request, listener), listener.said


async def test_what_came_before_a_connection_broke_is_read_though_nobody_had_read_it():
    async def say(writer):
        writer.write(chunk("It is ", "stop"))
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.write(chunk("sunny.") + chunk(usage=USAGE))

    async with Upstream(say) as upstream:
        reply, said = await complete(upstream)
    assert reply.text == "It is sunny." and said == ["It is ", "sunny."]
    assert (reply.usage.input, reply.usage.output) == (1000, 500)


async def test_counts_that_come_bit_by_bit_behind_what_cannot_be_read_are_counted():
    async def say(writer):
        writer.write(b'data: {"choices": 7, "model": []}\n\ndata: [7]\n\n')
        for _ in range(8):  # longer in all than a silence is waited for
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(b": more\n\n")
        writer.write(chunk(usage=USAGE))

    async with Upstream(say) as upstream:
        with pytest.raises(InvalidReplyError) as caught:
            await complete(upstream)
    assert (caught.value.usage.input, caught.value.usage.output) == (1000, 500)


class Counting:
    """Reads chunks of chat completions, and counts them."""

    def __init__(self):
        self.inner, self.read = OpenAIStreamAccumulator(), 0

    @property
    def is_finished(self):
        return self.inner.is_finished

    @property
    def is_closed(self):
        return self.inner.is_closed

    def add_event(self, event, data):
        self.read += 1
        return self.inner.add_event(event, data)

    def result(self):
        return self.inner.result()


SAID = chunk("It is ", "stop") + b"data: [DONE]\n\n"


@pytest.mark.parametrize("reply", [SAID, b"data: [7]\n\n"])
async def test_what_is_repeated_behind_the_end_is_read_once_and_the_counts_are_not_missed(reply):
    async def say(writer):
        writer.write(reply * 300 + chunk(usage=USAGE) + reply * 300)

    accumulator = Counting()
    async with Upstream(say) as upstream, HttpTransport() as http:
        target = HttpTarget(url=upstream.url)
        opened = await http.open_reply(target, {}, streamed=True)
        assert isinstance(opened, EventStream)
        with opened as events, pytest.raises(InvalidReplyError):
            await read_stream(target, accumulator, events, NullListener())
    usage = accumulator.result().usage
    assert usage is not None and (usage.input, usage.output) == (1000, 500)
    assert accumulator.read < 10


class Hurried(asyncio.SelectorEventLoop):
    """An event loop in which waits pass at once."""

    class Selector(selectors.SelectSelector):
        now = 0.0

        def select(self, timeout=None):
            self.now += timeout or 0.0
            return super().select(0)

    def __init__(self):
        self.waits = self.Selector()
        super().__init__(self.waits)

    def time(self):
        return self.waits.now


class Commented:
    """A stream of these events, and then of a comment every second."""

    target, is_over = HttpTarget(url="http://ada.example"), False

    def __init__(self, *events):
        self.events = list(events)

    async def batch(self):
        await asyncio.sleep(1.0)
        return [("", self.events.pop(0))] if self.events else []

    def rest(self):
        return []


def test_comments_behind_the_reason_for_stopping_do_not_hold_a_reply_up():
    last = b"".join([chunk("sunny.", "stop"), chunk(usage=USAGE)]).replace(b"data: ", b"")
    stream = Commented(chunk("It is ")[6:], *filter(None, last.split(b"\n\n")))
    reading = read_stream(stream.target, OpenAIStreamAccumulator(), stream, NullListener())  # pyright: ignore[reportArgumentType]
    with asyncio.Runner(loop_factory=Hurried) as runner:
        provider_reply = runner.run(asyncio.wait_for(reading, 10 * USAGE_SECONDS))
    assert provider_reply.reply.text == "It is sunny."
    assert provider_reply.usage is not None and provider_reply.usage.output == 500
