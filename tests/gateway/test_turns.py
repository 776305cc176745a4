"""Requests that come at once leave turns of the loop to others."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from batuta.core import Reply, Usage
from batuta.core.conductor import NULL_LISTENER
from batuta.gateway.app import create_app
from batuta.gateway.http.request_slots import MOST_BEGUN, LoopTurns
from gateway.live_server import scripted_state
from gateway.loop_steps import PATHS, LoopbackApp

pytestmark = pytest.mark.anyio


class Counting:
    """A worker that counts how many ask it in one turn of the loop."""

    def __init__(self) -> None:
        self.calls = self.most = 0

    async def complete(self, request, listener=NULL_LISTENER):
        self.calls += 1
        self.most = max(self.most, self.calls)
        return Reply(text="Hello.", usage=Usage(calls=1, input=10, output=10))

    @asynccontextmanager
    async def counting(self):
        loop, going = asyncio.get_running_loop(), True

        def turn():
            self.calls = 0
            if going:
                loop.call_soon(turn)

        turn()
        yield
        going = False


@pytest.mark.parametrize("path", PATHS)
async def test_of_many_requests_at_once_a_few_begin_in_a_turn(path):
    worker, loopback = Counting(), LoopbackApp()
    loopback.app_state = scripted_state({"ada": worker})
    loopback.app = create_app(loopback.app_state)
    turn = {"role": "user", "content": "hi"}
    asked = {"input": [turn]} if path == "/v1/responses" else {"messages": [turn]}
    body = json.dumps({"model": "worker/ada", "max_tokens": 9, **asked}).encode()
    if path == "/v1/responses":
        body = body.replace(b'"max_tokens"', b'"max_output_tokens"')
    async with worker.counting():
        statuses = await asyncio.gather(*(loopback.ask(path, body) for _ in range(100)))
    assert set(statuses) == {200}
    assert 0 < worker.most <= MOST_BEGUN


async def test_turns_are_given_in_order_and_none_to_those_who_have_gone():
    turns, gone_on = LoopTurns(2), list[int]()

    async def take(number):
        await turns.take()
        gone_on.append(number)

    tasks = [asyncio.create_task(take(number)) for number in range(7)]
    await asyncio.sleep(0)
    assert gone_on == [0, 1]
    tasks[2].cancel()
    tasks[5].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert gone_on == [0, 1, 3, 4, 6]
    await asyncio.sleep(0.01)
    await asyncio.wait_for(asyncio.gather(take(7), take(8)), 5)
    assert gone_on[-2:] == [7, 8]
