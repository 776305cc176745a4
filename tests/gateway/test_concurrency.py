"""Requests at the same time: exactly as many as a key may have, also over several replicas."""

import os
import uuid
from dataclasses import replace

import anyio
import pytest

from batuta.clients import RedisConnections
from batuta.gateway.access.concurrency import LocalConcurrency, RedisConcurrency
from batuta.jobs import open_jobs
from batuta.store.key_hasher import parse_key_id
from gateway.keyed_server import HELLO, KeyedServer
from gateway.live_server import Halting

pytestmark = pytest.mark.anyio
REDIS = os.environ.get("BATUTA_TEST_REDIS", "redis://127.0.0.1:6379")


def counter(url, processes=1, **options):
    """Patient: a busy machine may take more than a second for the connections of a test."""
    return RedisConcurrency(RedisConnections(url, processes, patience=10.0), **options)


@pytest.fixture
async def redis(anyio_backend):
    client = pytest.importorskip("redis.asyncio").Redis.from_url(REDIS, socket_connect_timeout=1)
    try:
        await client.ping()
    except Exception as error:
        pytest.skip(f"no Redis server at {REDIS}: {error}")
    finally:
        await client.aclose()
    return REDIS


async def crowd(counters, key, cap, requests=200):
    """Many requests at all replicas: how many were inside at most, and how many got in."""
    inside, most, served = 0, 0, 0

    async def one(number):
        nonlocal inside, most, served
        counter, token = counters[number % len(counters)], f"run_{number}"
        if not await counter.enter(key, token, cap):
            return
        inside, served = inside + 1, served + 1
        most = max(most, inside)
        await anyio.sleep(0.2)
        inside -= 1
        await counter.leave(key, token)

    async with anyio.create_task_group() as tasks:
        for number in range(requests):
            tasks.start_soon(one, number)
    return most, served


async def test_in_memory_a_cap_is_exact():
    most, served = await crowd([LocalConcurrency()], "key", 7)
    assert most == 7 <= served


async def test_over_three_replicas_a_cap_is_exact(redis):
    replicas, key = [counter(redis, 3) for _ in range(3)], uuid.uuid4().hex
    most, served = await crowd(replicas, key, 7)
    assert most == 7 <= served
    for token in range(7):
        assert await replicas[0].enter(key, f"a{token}", 7)
    assert not await replicas[1].enter(key, "b", 7)
    await replicas[0].leave(key, "a0")
    assert await replicas[1].enter(key, "b", 7)
    for one in replicas:
        await one.redis.close()


async def test_what_a_dead_replica_had_comes_free_and_what_lives_is_kept(redis):
    key = uuid.uuid4().hex
    dead, living, third = (counter(redis, 3, lease=2) for _ in range(3))
    assert await dead.enter(key, "dead", 2)
    assert await living.enter(key, "living", 2)
    assert not await third.enter(key, "third", 2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(living.renew)
        await anyio.sleep(3.5)
        assert await third.enter(key, "third", 2)
        assert not await third.enter(key, "fourth", 2)
        tasks.cancel_scope.cancel()
    for one in (dead, living, third):
        await one.redis.close()


async def test_while_redis_is_away_each_replica_lets_its_share_in():
    pytest.importorskip("redis")
    shared = counter("redis://127.0.0.1:1", 4)
    assert [await shared.enter("key", f"{n}", 8) for n in range(4)] == [True, True, False, False]
    await shared.leave("key", "0")
    assert await shared.enter("key", "5", 8)
    await shared.redis.close()


async def test_a_key_without_a_cap_costs_redis_nothing():
    pytest.importorskip("redis")
    shared = counter("redis://127.0.0.1:1")
    began = anyio.current_time()
    for number in range(100):
        assert await shared.enter("key", f"{number}", None)
    assert anyio.current_time() - began < 5
    await shared.redis.close()


class Crossing:
    """Redis, to which a renewal comes late: what is asked meanwhile overtakes it."""

    def __init__(self, redis):
        self.redis, self.renewing, self.gate = redis, anyio.Event(), anyio.Event()
        self.share_of = redis.share_of

    async def ask(self, ask):
        return await self.redis.ask(lambda client: ask(_Late(client, self)))


class _Late:
    def __init__(self, client, crossing):
        self.client, self.crossing = client, crossing
        self.zrem = client.zrem

    async def eval(self, script, *arguments):
        if "ZCARD" not in script:
            self.crossing.renewing.set()
            await self.crossing.gate.wait()
        return await self.client.eval(script, *arguments)


async def test_a_renewal_that_crosses_a_leave_brings_nobody_back(redis):
    connections, key = RedisConnections(redis, patience=10.0), uuid.uuid4().hex
    crossing = Crossing(connections)
    counter = RedisConcurrency(crossing, lease=6)  # pyright: ignore[reportArgumentType]
    assert await counter.enter(key, "gone", 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(counter.renew)
        await crossing.renewing.wait()
        await counter.leave(key, "gone")
        crossing.gate.set()
        await anyio.sleep(1)
        assert await counter.enter(key, "next", 1)
        tasks.cancel_scope.cancel()
    await counter.leave(key, "next")
    await connections.close()


async def test_two_servers_share_a_keys_concurrency(store, redis):
    keyed_servers = [KeyedServer(store, ada=Halting()) for _ in range(2)]
    for keyed in keyed_servers:
        keyed.serving.app_state.rate_limiter.concurrency = counter(redis, 2)  # pyright: ignore[reportAttributeAccessIssue]
    async with keyed_servers[0] as one, keyed_servers[1] as two, anyio.create_task_group() as tasks:
        key = await one.key(concurrency=1)
        tasks.start_soon(one.chat, key)
        await one.serving.app_state.catalogue.clients["ada"].started.wait()  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        status, headers, said = await two.chat(key)
        assert (status, said["error"]["code"]) == (429, "rate_limit_exceeded")
        assert headers["retry-after"]
        tasks.cancel_scope.cancel()


class Gated:
    """Answers once it is let; knows how many calls there were at the same time."""

    def __init__(self):
        self.gate, self.inside, self.most, self.calls = anyio.Event(), 0, 0, 0

    async def complete(self, request, listener=None):
        self.inside, self.calls = self.inside + 1, self.calls + 1
        self.most = max(self.most, self.inside)
        try:
            await self.gate.wait()
            return HELLO
        finally:
            self.inside -= 1

    async def until(self, count):
        with anyio.fail_after(60):
            while self.calls < count:
                await anyio.sleep(0.02)


async def submitted(keyed, key, count=1):
    """The ids of so many background responses of the key."""
    asked = {"model": "worker/ada", "input": "Hi!", "background": True}
    told = [await keyed.ask(key, "/v1/responses", json=asked) for _ in range(count)]
    assert [status for status, _, _ in told] == [200] * count, told
    return [body["id"] for _, _, body in told]


async def completed(keyed, key, names):
    with anyio.fail_after(60):
        for name in names:
            status = None
            while status != "completed":
                _, _, body = await keyed.ask(key, f"/v1/responses/{name}", method="GET")
                status = body["status"]
                assert status in {"queued", "in_progress", "completed"}, body
                await anyio.sleep(0.02)


@pytest.fixture
async def jobs(tmp_path, anyio_backend):
    async with open_jobs(tmp_path / "jobs.db") as jobs:
        yield jobs


async def test_jobs_and_requests_of_a_key_have_one_limit(store, jobs):
    ada = Gated()
    keyed = KeyedServer(store, ada=ada)
    keyed.serving.app_state = replace(keyed.serving.app_state, jobs=jobs)
    async with keyed:
        key, other = await keyed.key(concurrency=1), await keyed.key("other")
        names = await submitted(keyed, key, 5)
        await ada.until(1)
        status, headers, body = await keyed.chat(key)
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert headers["retry-after"]
        await submitted(keyed, other, 2)
        await ada.until(3)
        await anyio.sleep(0.5)
        assert ada.inside == 3  # one of the key, two of another tenant
        ada.gate.set()
        await completed(keyed, key, names)
        with anyio.fail_after(60):  # the last job's place comes free a moment after its answer
            while (await keyed.chat(key))[0] != 200:
                await anyio.sleep(0.02)


async def test_a_job_waits_for_a_request_of_its_key(store, jobs):
    ada = Gated()
    keyed = KeyedServer(store, ada=ada)
    keyed.serving.app_state = replace(keyed.serving.app_state, jobs=jobs)
    async with keyed, anyio.create_task_group() as tasks:
        key = await keyed.key(concurrency=1)
        tasks.start_soon(keyed.chat, key)
        await ada.until(1)
        names = await submitted(keyed, key)
        await anyio.sleep(0.5)
        assert ada.calls == 1
        ada.gate.set()
        await completed(keyed, key, names)


async def test_jobs_of_a_key_that_was_revoked_fail_and_wait_for_nothing(store, jobs):
    ada = Gated()
    keyed = KeyedServer(store, ada=ada)
    keyed.serving.app_state = replace(keyed.serving.app_state, jobs=jobs)
    async with keyed:
        key = await keyed.key(concurrency=1)
        names = await submitted(keyed, key, 2)
        await ada.until(1)
        await store.keys.revoke(parse_key_id(key))
        states = set()
        with anyio.fail_after(60):
            # Jobs that came in the same moment are run in any order.
            while states != {"queued", "failed"}:
                states = {(await store.responses.get(n, "acme")).status for n in names}
                await anyio.sleep(0.02)
        assert ada.calls == 1
        ada.gate.set()


async def test_jobs_of_two_servers_share_a_keys_limit(store, redis):
    ada = Gated()
    keyed_servers = [KeyedServer(store, background=True, ada=ada) for _ in range(2)]
    for keyed in keyed_servers:
        keyed.serving.app_state.rate_limiter.concurrency = counter(redis, 2)  # pyright: ignore[reportAttributeAccessIssue]
    async with keyed_servers[0] as one, keyed_servers[1] as two:
        key = await one.key(concurrency=3)
        first, second = await submitted(one, key, 4), await submitted(two, key, 4)
        await ada.until(3)
        await anyio.sleep(1)
        assert ada.inside == 3
        assert (await two.chat(key))[0] == 429
        ada.gate.set()
        await completed(one, key, first)
        await completed(two, key, second)
        assert ada.most == 3


class SlowRedis:
    """Counts a request, and is slow to say so."""

    def __init__(self):
        self.counted = set()

    async def ask(self, ask):
        return await ask(self)

    async def eval(self, _script, _keys, _key, token, *_):
        self.counted.add(token)
        await anyio.sleep(60)

    async def zrem(self, _key, token):
        self.counted.discard(token)


async def test_a_request_that_is_given_up_while_it_enters_is_not_counted():
    redis = SlowRedis()
    with anyio.move_on_after(0.01):
        await RedisConcurrency(redis).enter("key", "run-1", 1)  # pyright: ignore[reportArgumentType]
    assert not redis.counted
