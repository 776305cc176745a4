"""Requests at the same time: exactly as many as a key may have, also over several replicas."""

import os
import uuid

import anyio
import pytest

from batuta.gateway.access.concurrency import LocalConcurrency, RedisConcurrency
from gateway.house import Halting
from gateway.town import Town

pytestmark = pytest.mark.anyio
REDIS = os.environ.get("BATUTA_TEST_REDIS", "redis://127.0.0.1:6379")


@pytest.fixture
def patient(monkeypatch):
    """A busy machine may take more than a second for the connections of a test."""
    monkeypatch.setattr("batuta.gateway.access.concurrency._PATIENCE", 10.0)


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


async def test_over_three_replicas_a_cap_is_exact(redis, patient):
    replicas, key = [RedisConcurrency(redis, 3) for _ in range(3)], uuid.uuid4().hex
    most, served = await crowd(replicas, key, 7)
    assert most == 7 <= served
    for token in range(7):
        assert await replicas[0].enter(key, f"a{token}", 7)
    assert not await replicas[1].enter(key, "b", 7)
    await replicas[0].leave(key, "a0")
    assert await replicas[1].enter(key, "b", 7)
    for one in replicas:
        await one.close()


async def test_what_a_dead_replica_had_comes_free_and_what_lives_is_kept(redis, patient):
    key = uuid.uuid4().hex
    dead, living, third = (RedisConcurrency(redis, 3, lease=2) for _ in range(3))
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
        await one.close()


async def test_while_redis_is_away_each_replica_lets_its_share_in():
    pytest.importorskip("redis")
    counter = RedisConcurrency("redis://127.0.0.1:1", 4)
    assert [await counter.enter("key", f"{n}", 8) for n in range(4)] == [True, True, False, False]
    await counter.leave("key", "0")
    assert await counter.enter("key", "5", 8)
    await counter.close()


async def test_a_key_without_a_cap_costs_redis_nothing():
    pytest.importorskip("redis")
    counter = RedisConcurrency("redis://127.0.0.1:1")
    began = anyio.current_time()
    for number in range(100):
        assert await counter.enter("key", f"{number}", None)
    assert anyio.current_time() - began < 5
    await counter.close()


async def test_two_servers_share_a_keys_concurrency(store, redis, patient):
    towns = [Town(store, ada=Halting()) for _ in range(2)]
    for town in towns:
        town.serving.house.rate_limiter.concurrency = RedisConcurrency(redis, 2)  # pyright: ignore[reportAttributeAccessIssue]
    async with towns[0] as one, towns[1] as two, anyio.create_task_group() as tasks:
        key = await one.key(concurrency=1)
        tasks.start_soon(one.chat, key)
        await one.serving.house.catalogue.clients["ada"].started.wait()  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        status, headers, said = await two.chat(key)
        assert (status, said["error"]["code"]) == (429, "rate_limit_exceeded")
        assert headers["retry-after"]
        tasks.cancel_scope.cancel()
