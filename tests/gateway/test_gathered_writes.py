"""What is written within one turn of the loop is sent together, and nothing of it is lost."""

from __future__ import annotations

import asyncio

import pytest

from batuta.gateway.http.gathered_writes import MOST_GATHERED, GatheredTransport

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
