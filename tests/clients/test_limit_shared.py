"""A provider's limits over several processes, in a real Redis on the loopback."""

import os
import signal
import subprocess
import sys
import time
from itertools import count

import anyio
import pytest

from batuta.clients import CallLimiter, RateLimitedClient, ScriptedClient
from batuta.clients.redis_connections import LEASE_S, ProviderCaps, RedisConnections, RedisSlots
from batuta.core import Reply, Request, Sampling, Usage, user_message
from batuta.errors import ConfigError, ProviderOverloadedError

pytestmark = pytest.mark.anyio
REDIS = os.environ.get("BATUTA_TEST_REDIS", "redis://127.0.0.1:6379")
ACCOUNTS = count()


@pytest.fixture
def account():
    redis = pytest.importorskip("redis")
    client = redis.Redis.from_url(REDIS)
    try:
        client.ping()
    except redis.ConnectionError as error:
        pytest.skip(f"no Redis at {REDIS}: {error}")
    name = f"test-{os.getpid()}-{next(ACCOUNTS)}"
    yield name
    for key in client.scan_iter(f"batuta:provider:{{{name}}}:*"):
        client.delete(key)
    client.close()


@pytest.fixture
async def connect():
    opened = []

    def make(url=REDIS, processes=1):
        opened.append(RedisConnections(url, processes))
        return opened[-1]

    yield make
    for connections in opened:
        await connections.close()


@pytest.mark.parametrize(
    "url", ["http://:S3CRET@h", "redis:/:S3CRET@h", "redis://:x@h:S3CRET", "redis://:S3CRET/x@h"]
)
def test_a_password_in_a_wrong_address_is_not_repeated(url):
    pytest.importorskip("redis")
    with pytest.raises(ConfigError, match="must be a URL like redis://host:6379") as found:
        RedisConnections(url)
    assert "S3CRET" not in str(found.value)


def ask(seed=1, most=10):
    return Request(messages=(user_message("x"),), sampling=Sampling(seed=seed, max_tokens=most))


class Counting:
    """A client that knows when it was called and how many calls are in it."""

    def __init__(self, seconds=0.01, tokens=10):
        self.seconds, self.tokens = seconds, tokens
        self.now = self.most = 0
        self.at = []

    async def complete(self, request, listener=None):
        self.now += 1
        self.at.append(time.monotonic())
        self.most = max(self.most, self.now)
        try:
            await anyio.sleep(self.seconds)
        finally:
            self.now -= 1
        return Reply(text="x", usage=Usage(calls=1, input=0, output=self.tokens))


def limited(inner, connections, account, *caps):
    turns = RedisSlots(connections, account, ProviderCaps(*caps))
    return RateLimitedClient(inner, CallLimiter(*caps, shared=turns))


async def test_calls_at_once_hold_over_all_processes(account, connect):
    inner = Counting()
    clients = [limited(inner, connect(), account, 3) for _ in range(4)]
    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(clients[number % 4].complete, ask())
    assert len(inner.at) == 40
    assert inner.most == 3


async def test_calls_a_minute_hold_over_all_processes(account, connect):
    inner = Counting(0)
    clients = [limited(inner, connect(), account, 32, 25) for _ in range(4)]
    with anyio.move_on_after(3):
        async with anyio.create_task_group() as group:
            for number in range(60):
                group.start_soon(clients[number % 4].complete, ask())
    assert len(inner.at) == 25


async def test_tokens_a_minute_hold_and_are_corrected(account, connect):
    """Each call is taken for about 1,000 tokens and needs 100: the cap is used by what is true."""
    inner = Counting(0, tokens=100)
    clients = [limited(inner, connect(), account, 1, None, 2000) for _ in range(2)]
    with anyio.move_on_after(3):
        async with anyio.create_task_group() as group:
            for number in range(60):
                group.start_soon(clients[number % 2].complete, ask(most=990))
    assert 10 <= len(inner.at) <= 12, "2000 less one estimate of 991, by a hundred each"


async def test_a_failed_or_cancelled_call_gives_its_place_back(account, connect):
    connections = connect()
    client = limited(
        ScriptedClient([ProviderOverloadedError("busy"), "x"]), connections, account, 1
    )
    with pytest.raises(ProviderOverloadedError):
        await client.complete(ask())
    with anyio.move_on_after(0.2):
        await limited(Counting(30), connections, account, 1).complete(ask())
    with anyio.fail_after(20):
        assert (await client.complete(ask())).text == "x"


HOLDER = """
import anyio, sys
from batuta.clients.redis_connections import ProviderCaps, RedisSlots
from batuta.clients.redis_connections import RedisConnections

async def main():
    turns = RedisSlots(RedisConnections(sys.argv[1]), sys.argv[2], ProviderCaps(1))
    async def call():
        print("called", flush=True)
        await anyio.sleep(120)
    await turns.run(1, call)

anyio.run(main)
"""


@pytest.mark.long
async def test_the_place_of_a_killed_process_is_free_after_its_lease(account, connect):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, REDIS, account], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"called\n"
        os.kill(holder.pid, signal.SIGKILL)
    began = time.monotonic()
    with anyio.fail_after(LEASE_S + 5):
        await limited(Counting(), connect(), account, 1).complete(ask())
    assert time.monotonic() - began > LEASE_S / 2


@pytest.mark.long
async def test_a_call_longer_than_its_lease_keeps_its_place(account, connect):
    inner = Counting(LEASE_S + 5)
    async with anyio.create_task_group() as group:
        group.start_soon(limited(inner, connect(), account, 1).complete, ask())
        await anyio.sleep(0.5)
        with anyio.move_on_after(LEASE_S + 3) as scope:
            await limited(inner, connect(), account, 1).complete(ask())
        assert scope.cancelled_caught
    assert inner.most == 1


async def test_without_redis_each_process_takes_its_part(connect, caplog):
    inner = Counting(0.05)
    away = connect("redis://127.0.0.1:1", processes=4)
    client = limited(inner, away, "nobody", 8, 40)
    with anyio.move_on_after(2):
        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(client.complete, ask())
    assert inner.most == 2
    assert len(inner.at) == 10
    assert away.is_down
    assert [r.message for r in caplog.records if "1/4" in r.message], "and says so"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1",
        "127.0.0.1:6379",
        "redis://127.0.0.1?ssl_cert_reqs=none",
        "redis://127.0.0.1?protocol=9",
        "rediss://127.0.0.1?ssl_cert_reqs=never",
    ],
)
def test_an_address_of_something_else_is_refused(url):
    """Of an option, too, that would otherwise fail only at every request."""
    with pytest.raises(ConfigError, match="redis://"):
        RedisConnections(url)


async def test_many_more_calls_than_connections_all_get_their_turn(account, connect):
    inner = Counting(0.01)
    client = limited(inner, connect(), account, 500)
    async with anyio.create_task_group() as group:
        for _ in range(500):
            group.start_soon(client.complete, ask())
    assert len(inner.at) == 500
