"""Rates: in memory by a clock, in Redis by several limiters, and while Redis is away."""

import logging
import os
import time
import uuid
from urllib.parse import urlsplit

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import RedisConnections
from batuta.errors import ConfigError
from batuta.gateway.access.rate_limit import (
    MINUTE,
    REQUESTS,
    TOKENS,
    LocalRateLimiter,
    RedisRateLimiter,
)
from fakes.proxy import Proxy

pytestmark = pytest.mark.anyio
REDIS = os.environ.get("BATUTA_TEST_REDIS", "redis://127.0.0.1:6379")


class Clock:
    def __init__(self, now=600.0):
        self.now = now

    def __call__(self):
        return self.now


def limiter(url, processes=1, clock=time.monotonic, patience=10.0):
    """Patient: a busy machine may take more than a second for the connections of a test."""
    return RedisRateLimiter(RedisConnections(url, processes, clock=clock, patience=patience))


@pytest.fixture
async def redis():
    client = pytest.importorskip("redis.asyncio").Redis.from_url(REDIS, socket_connect_timeout=1)
    try:
        await client.ping()
    except OSError as error:
        pytest.skip(f"no Redis server at {REDIS}: {error}")
    except Exception as error:
        pytest.skip(f"no Redis server at {REDIS}: {error}")
    finally:
        await client.aclose()
    return REDIS


async def test_what_fits_is_let_through_and_the_rest_is_told_when_to_come():
    clock = Clock()
    rates = LocalRateLimiter(clock)
    for left in (2, 1, 0):
        window = await rates.take(REQUESTS, "k", 3)
        assert (window.is_allowed, window.remaining, window.cap) == (True, left, 3)
    refused = await rates.take(REQUESTS, "k", 3)
    assert not refused.is_allowed
    assert (await rates.take(REQUESTS, "other", 3)).is_allowed
    clock.now += refused.reset - 0.01
    assert not (await rates.take(REQUESTS, "k", 3)).is_allowed
    clock.now += 0.02
    assert (await rates.take(REQUESTS, "k", 3)).is_allowed


@given(
    cap=st.integers(1, 20),
    steps=st.lists(st.tuples(st.floats(0, 90), st.integers(1, 5)), max_size=60),
)
def test_no_minute_takes_more_than_the_cap_and_a_minute_of_patience_helps(cap, steps):
    async def check():
        clock, taken = Clock(), []
        rates = LocalRateLimiter(clock)
        for wait, amount in steps:
            clock.now += wait
            window = await rates.take(REQUESTS, "k", cap, amount)
            assert 0 <= window.remaining <= cap
            if window.is_allowed:
                taken.append((clock.now, amount))
            elif amount <= cap:
                assert window.reset <= MINUTE
                clock.now += window.reset + 1e-6
                assert (await rates.take(REQUESTS, "k", cap, amount)).is_allowed
                taken.append((clock.now, amount))
        for start, _ in taken:
            inside = sum(amount for at, amount in taken if start <= at < start + MINUTE - 1e-3)
            assert inside <= cap

    anyio.run(check)


async def test_what_was_used_after_all_counts_over_the_cap():
    clock = Clock()
    rates = LocalRateLimiter(clock)
    assert (await rates.take(TOKENS, "k", 100, 10)).is_allowed
    await rates.add(TOKENS, "k", 100, 500)
    assert not (await rates.take(TOKENS, "k", 100, 1)).is_allowed
    clock.now += 2 * MINUTE
    assert (await rates.take(TOKENS, "k", 100, 1)).is_allowed


@pytest.mark.parametrize("second", [0.0, 30.0, 59.0])
async def test_one_request_a_minute_waits_a_minute_at_most(second):
    clock = Clock(600 + second)
    rates = LocalRateLimiter(clock)
    assert (await rates.take(REQUESTS, "k", 1)).is_allowed
    clock.now += 1
    refused = await rates.take(REQUESTS, "k", 1)
    assert (refused.is_allowed, refused.reset) == (False, MINUTE - 1)
    clock.now += refused.reset
    assert (await rates.take(REQUESTS, "k", 1)).is_allowed


async def test_one_request_a_minute_waits_a_minute_at_most_in_redis(redis):
    rates, name = limiter(redis), uuid.uuid4().hex
    assert (await rates.take(REQUESTS, name, 1)).is_allowed
    refused = await rates.take(REQUESTS, name, 1)
    assert not refused.is_allowed and MINUTE - 5 < refused.reset <= MINUTE
    await rates.close()


async def test_what_was_not_used_is_free_in_the_minute_in_which_it_was_taken():
    clock = Clock()
    rates = LocalRateLimiter(clock)
    first = await rates.take(TOKENS, "k", 100, 90)
    assert first.taken is not None
    clock.now += 30
    assert not (await rates.take(TOKENS, "k", 100, 90)).is_allowed
    await rates.give_back(first.taken, 80)
    assert (await rates.take(TOKENS, "k", 100, 90)).remaining == 0
    clock.now += 31  # the ten are free again; the other ninety are not
    assert (await rates.take(TOKENS, "k", 100, 10)).remaining == 0


async def test_what_is_given_back_later_makes_no_room_in_another_minute():
    clock = Clock()
    rates = LocalRateLimiter(clock)
    first = await rates.take(TOKENS, "k", 100, 100)
    assert first.taken is not None
    clock.now += MINUTE + 1
    assert (await rates.take(TOKENS, "k", 100, 100)).is_allowed
    await rates.give_back(first.taken, 100)
    assert not (await rates.take(TOKENS, "k", 100, 1)).is_allowed


async def test_what_was_not_used_is_given_back_in_redis_once(redis):
    one, two, name = limiter(redis), limiter(redis), uuid.uuid4().hex
    first = await one.take(TOKENS, name, 100, 90)
    assert first.taken is not None
    assert not (await two.take(TOKENS, name, 100, 20)).is_allowed
    await one.give_back(first.taken, 70)
    assert (await two.take(TOKENS, name, 100, 20)).remaining == 60
    await one.give_back(first.taken, 70)  # no more than is left of it
    assert (await two.take(TOKENS, name, 100, 1)).remaining == 79
    await one.close()
    await two.close()


async def test_a_redis_that_evicts_a_rate_forgets_it_whole(redis):
    """A full Redis may drop any key: a rate is one key, so that none of its parts outlives another."""
    rates, name = limiter(redis), uuid.uuid4().hex
    given = [(await rates.take("requests", name, 3)).taken for _ in range(3)]
    client = pytest.importorskip("redis.asyncio").Redis.from_url(redis)
    (key,) = [key async for key in client.scan_iter(f"batuta:rate:*{name}*")]
    await client.delete(key)
    assert given[0] is not None
    await rates.give_back(given[0], 1)
    passed = [(await rates.take("requests", name, 3)).is_allowed for _ in range(5)]
    assert passed == [True] * 3 + [False] * 2
    await client.aclose()
    await rates.close()


async def test_a_clock_of_redis_that_is_set_back_makes_nobody_wait_longer_than_a_minute(redis):
    rates, name = limiter(redis), uuid.uuid4().hex
    for _ in range(3):
        await rates.take("requests", name, 3)
    client = pytest.importorskip("redis.asyncio").Redis.from_url(redis)
    (key,) = [key async for key in client.scan_iter(f"batuta:rate:*{name}*")]
    for member, at in await client.zrange(key, 0, -1, withscores=True):
        if b":" in member:
            await client.zadd(key, {member: at + 3_600_000})
    window = await rates.take("requests", name, 3)
    assert not window.is_allowed and window.reset <= 60
    await client.aclose()
    await rates.close()


async def test_what_redis_counted_is_not_given_back_to_this_replica(redis):
    clock, name = Clock(), uuid.uuid4().hex
    async with Proxy(urlsplit(redis).hostname, urlsplit(redis).port or 6379) as proxy:
        rates = limiter(f"redis://127.0.0.1:{proxy.port}", 1, clock, 1.0)
        shared = await rates.take(TOKENS, name, 100, 100)
        await proxy.cut()
        assert (await rates.take(TOKENS, name, 100, 100)).is_allowed
        assert shared.taken is not None
        await rates.give_back(shared.taken, 100)
        assert rates.redis.is_down
        assert not (await rates.take(TOKENS, name, 100, 1)).is_allowed
        await rates.close()


async def test_two_replicas_share_one_cap_in_redis(redis):
    one, two, name = limiter(redis), limiter(redis), uuid.uuid4().hex
    allowed = 0

    async def go(rates):
        nonlocal allowed
        for _ in range(20):
            window = await rates.take(REQUESTS, name, 100)
            allowed += window.is_allowed

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(go, (one, two)[number % 2])
    assert allowed == 100
    assert (await one.take(TOKENS, name, 100, 60)).is_allowed
    await two.add(TOKENS, name, 100, 500)
    refused = await one.take(TOKENS, name, 100, 1)
    assert (refused.is_allowed, refused.remaining) == (False, 0)
    assert 0 < refused.reset <= MINUTE
    await one.close()
    await two.close()


async def test_while_redis_is_away_each_replica_lets_its_share_through(caplog):
    pytest.importorskip("redis")
    caplog.set_level(logging.WARNING)
    clock = Clock()
    rates = limiter("redis://127.0.0.1:1", 4, clock)
    allowed = [(await rates.take(REQUESTS, "k", 20)).is_allowed for _ in range(8)]
    assert allowed == [True] * 5 + [False] * 3
    assert rates.redis.is_down
    await rates.add(TOKENS, "k", 20, 5)
    clock.now += 6  # it is tried again, and fails again
    await rates.take(REQUESTS, "k", 20)
    told = [record for record in caplog.records if "Redis is unavailable" in record.message]
    assert len(told) == 1
    assert "1/4" in told[0].message
    await rates.close()


@pytest.mark.parametrize("how", ["cut", "mute"])
async def test_a_redis_that_goes_away_holds_nobody_up(redis, how):
    place = urlsplit(redis)
    clock, name = Clock(), uuid.uuid4().hex
    async with Proxy(place.hostname, place.port or 6379) as proxy:
        patience = 5.0 if how == "mute" else 10.0  # a mute one is waited for in earnest
        rates = limiter(f"redis://127.0.0.1:{proxy.port}", 2, clock, patience)
        assert (await rates.take(REQUESTS, name, 4)).cap == 4
        await getattr(proxy, how)()
        with anyio.fail_after(60):
            taken = [await rates.take(REQUESTS, name, 4) for _ in range(3)]
            await rates.add(TOKENS, name, 4, 1)
        assert rates.redis.is_down
        assert [(window.cap, window.is_allowed) for window in taken] == [
            (2, True),
            (2, True),
            (2, False),
        ]
        await proxy.mend()
        clock.now += 6
        assert (await rates.take(REQUESTS, name, 4)).cap == 4
        assert not rates.redis.is_down
        await rates.close()


async def test_it_is_left_alone_for_a_while_and_used_again_when_it_is_back(redis, caplog):
    caplog.set_level(logging.WARNING)
    place, clock, name = urlsplit(redis), Clock(), uuid.uuid4().hex
    async with Proxy(place.hostname, place.port or 6379) as proxy:
        rates = limiter(f"redis://127.0.0.1:{proxy.port}", 2, clock)
        await proxy.cut()
        assert (await rates.take(REQUESTS, name, 2)).cap == 1
        await proxy.mend()
        assert (await rates.take(REQUESTS, name, 2)).cap == 1
        clock.now += 6
        assert (await rates.take(REQUESTS, name, 2)).cap == 2
        assert not rates.redis.is_down
        assert "is available again" in caplog.text
        await rates.close()


def test_a_setting_that_is_no_url_of_redis_is_refused():
    pytest.importorskip("redis")
    with pytest.raises(ConfigError, match=r"server\.redis must be a URL"):
        RedisConnections("http://127.0.0.1")


async def test_of_many_at_once_no_more_tokens_pass_than_the_cap(redis):
    name, limiters = uuid.uuid4().hex, [limiter(redis) for _ in range(3)]
    passed = []

    async def take(number):
        window = await limiters[number % 3].take(TOKENS, name, 1000, 90)
        passed.append(window.is_allowed)

    async with anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(take, number)
    assert sum(passed) == 11
    await limiters[0].add(TOKENS, name, 1000, 500)  # what was used after all may pass the cap
    window = await limiters[1].take(TOKENS, name, 1000, 1)
    assert not window.is_allowed and 0 < window.reset <= MINUTE
    for each in limiters:
        await each.close()
