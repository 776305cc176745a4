"""What is written within one turn of the loop is sent together, and nothing of it is lost."""

from __future__ import annotations

import asyncio

import pytest

from batuta.gateway.http.body import encode_json, send_json
from batuta.gateway.http.connections import MOST_GATHERED, GatheredTransport

pytestmark = pytest.mark.anyio


class Inner(asyncio.Transport):
    """Notes what it is told."""

    def __init__(self):
        super().__init__()
        self.sent, self.closed = [], False

    def write(self, data):
        assert not self.closed
        self.sent.append(bytes(data))

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return 7


async def open_both():
    inner = Inner()
    return inner, GatheredTransport(inner, asyncio.get_running_loop())


async def test_the_writes_of_a_turn_are_one():
    inner, gathered = await open_both()
    gathered.write(b"head ")
    gathered.write(b"body")
    assert (inner.sent, gathered.get_write_buffer_size()) == ([], 16)
    await asyncio.sleep(0)
    gathered.write(b" more")
    await asyncio.sleep(0)
    assert inner.sent == [b"head body", b" more"]
    assert gathered.get_write_buffer_size() == 7


async def test_much_does_not_wait_for_the_end_of_the_turn():
    inner, gathered = await open_both()
    piece = b"x" * 1_000
    for _ in range(3 * MOST_GATHERED // 1_000):
        gathered.write(piece)
        assert gathered.get_write_buffer_size() <= 7 + MOST_GATHERED
    await asyncio.sleep(0)
    assert b"".join(inner.sent) == piece * (3 * MOST_GATHERED // 1_000)


async def test_closing_sends_what_waits_and_aborting_drops_it():
    inner, gathered = await open_both()
    gathered.write(b"last words")
    gathered.close()
    assert (inner.sent, inner.closed) == ([b"last words"], True)
    inner, gathered = await open_both()
    gathered.write(b"last words")
    gathered.abort()
    await asyncio.sleep(0)
    assert (inner.sent, inner.closed) == ([], True)


async def test_nothing_is_written_to_a_connection_that_was_lost_meanwhile():
    inner, gathered = await open_both()
    gathered.write(b"for nobody")
    inner.close()
    await asyncio.sleep(0)
    assert inner.sent == []


@pytest.mark.parametrize("size", [0, 1, 3 * (1 << 20) - 2, 3 * (1 << 20) - 1, 5_000_000])
async def test_a_large_answer_is_written_in_pieces(size):
    sent, value = [], "x" * size

    async def send(message):
        sent.append(message)

    await send_json(send, value)
    head, *bodies = sent
    assert b"".join(message["body"] for message in bodies) == encode_json(value)
    assert dict(head["headers"])[b"content-length"] == str(size + 2).encode()
    assert all(0 < len(message["body"]) <= 1 << 20 for message in bodies)
    assert [message.get("more_body", False) for message in bodies] == [True] * (len(bodies) - 1) + [False]  # fmt: skip
