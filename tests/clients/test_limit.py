"""Turns: how many at once, how many a minute, and in which order."""

import anyio
import pytest

from batuta.clients import CallLimiter, RateLimitedClient, ScriptedClient
from batuta.core import Reply, Request, Sampling, Usage, user_message

pytestmark = pytest.mark.anyio


def ask(text="x", **sampling):
    return Request(messages=(user_message(text),), sampling=Sampling(**sampling))


class Counting:
    """A client that knows how many calls are in it."""

    def __init__(self):
        self.now = self.most = 0
        self.order = []

    async def complete(self, request, listener=None):
        self.now += 1
        self.most = max(self.most, self.now)
        self.order.append(request.messages[0].text)
        try:
            await anyio.sleep(0.005)
        finally:
            self.now -= 1
        return Reply(text="x", usage=Usage(calls=1, input=1, output=1))


class Clock:
    """Time that passes only in sleep."""

    def __init__(self):
        self.time = 100.0
        self.slept = []

    def __call__(self):
        return self.time

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds


async def test_at_most_so_many_at_once_in_the_order_they_came():
    inner, limiter = Counting(), CallLimiter(3)
    one, two = RateLimitedClient(inner, limiter), RateLimitedClient(inner, limiter)
    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon((one, two)[number % 2].complete, ask(str(number)))
    assert inner.most == 3
    assert inner.order == [str(number) for number in range(12)]


async def test_a_cancelled_waiter_leaves_no_trace():
    inner, limiter = Counting(), CallLimiter(1)
    client = RateLimitedClient(inner, limiter)
    async with anyio.create_task_group() as group:
        group.start_soon(client.complete, ask("first"))
        await anyio.sleep(0)
        with anyio.move_on_after(0.001):
            await client.complete(ask("given up"))
        group.start_soon(client.complete, ask("last"))
    assert inner.order == ["first", "last"]
    assert inner.now == 0


async def test_a_failing_call_gives_its_place_back():
    client = RateLimitedClient(ScriptedClient({}), CallLimiter(1))
    for _ in range(3):
        with pytest.raises(Exception, match="script"):
            await client.complete(ask())


async def test_calls_a_minute():
    clock = Clock()
    client = RateLimitedClient(
        ScriptedClient(lambda _: "x"), CallLimiter(8, rpm=3, clock=clock, sleep=clock.sleep)
    )
    starts = []
    for _ in range(7):
        await client.complete(ask())
        starts.append(clock.time - 100)
    assert starts == [0, 0, 0, 60, 60, 60, 120]


async def test_tokens_a_minute_are_estimated_then_corrected():
    clock = Clock()
    reply = Reply(text="x", usage=Usage(calls=1, input=10, output=90))
    limiter = CallLimiter(8, tpm=1000, clock=clock, sleep=clock.sleep)
    client = RateLimitedClient(ScriptedClient(lambda _: reply), limiter)
    for _ in range(5):  # each is taken for about 500 at first and proves to be 100
        await client.complete(ask(max_tokens=500))
    assert not clock.slept
    await client.complete(ask(max_tokens=500))
    assert clock.slept == [60.0]


async def test_more_than_the_whole_limit_goes_alone():
    clock = Clock()
    limiter = CallLimiter(8, tpm=10, clock=clock, sleep=clock.sleep)
    client = RateLimitedClient(ScriptedClient(lambda _: "x"), limiter)
    await client.complete(ask())
    await client.complete(ask())
    assert clock.slept == [60.0]


async def test_who_is_cancelled_while_waiting_gives_the_turn_back():
    clock = Clock()

    async def forever(_):
        await anyio.sleep_forever()

    limiter = CallLimiter(8, rpm=1, clock=clock, sleep=forever)
    client = RateLimitedClient(ScriptedClient(lambda _: "x"), limiter)
    await client.complete(ask())
    with anyio.move_on_after(0.01) as scope:
        await client.complete(ask())
    assert scope.cancelled_caught
    clock.time += 61
    assert (await client.complete(ask())).text == "x"


@pytest.mark.parametrize("bad", [(0,), (1, 0), (1, None, 0)])
def test_senseless_limits_are_refused(bad):
    with pytest.raises(ValueError, match="at least 1"):
        CallLimiter(*bad)
