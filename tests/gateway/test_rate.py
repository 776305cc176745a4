"""Rates: in memory by a clock, in Redis by several limiters, and while Redis is away."""

import logging
import os
import uuid
from urllib.parse import urlsplit

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.errors import ConfigError
from batuta.gateway.access.rate_limit import (
    MINUTE,
    REQUESTS,
    TOKENS,
    FallbackRateLimiter,
    LocalRateLimiter,
    RedisRateLimiter,
    open_rate_limiter,
)
from fakes.proxy import Proxy

pytestmark = pytest.mark.anyio
REDIS = os.environ.get("BATUTA_TEST_REDIS", "redis://127.0.0.1:6379")


class Clock:
    def __init__(self, now=600.0):
        self.now = now

    def __call__(self):
        return self.now


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
def test_no_minute_takes_more_than_two_caps_and_patience_helps(cap, steps):
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
                clock.now += window.reset + 1e-6
                assert (await rates.take(REQUESTS, "k", cap, amount)).is_allowed
                taken.append((clock.now, amount))
        for start, _ in taken:
            inside = sum(amount for at, amount in taken if start <= at < start + MINUTE)
            assert inside <= 2 * cap
            first = start // MINUTE
            assert sum(a for at, a in taken if at // MINUTE == first) <= cap

    anyio.run(check)


async def test_what_was_used_after_all_counts_over_the_cap():
    clock = Clock()
    rates = LocalRateLimiter(clock)
    assert (await rates.take(TOKENS, "k", 100, 10)).is_allowed
    await rates.add(TOKENS, "k", 100, 500)
    assert not (await rates.take(TOKENS, "k", 100, 1)).is_allowed
    clock.now += 2 * MINUTE
    assert (await rates.take(TOKENS, "k", 100, 1)).is_allowed


async def test_two_replicas_share_one_cap_in_redis(redis):
    one, two, name = RedisRateLimiter(redis, 10), RedisRateLimiter(redis, 10), uuid.uuid4().hex
    allowed = 0

    async def go(rates):
        nonlocal allowed
        for _ in range(20):
            window = await rates.take(REQUESTS, name, 100)
            allowed += window.is_allowed

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(go, (one, two)[number % 2])
    assert allowed <= 100
    assert allowed >= 90  # in a crowd a hit that lost a race is taken back, and may be missed
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
    rates = FallbackRateLimiter(RedisRateLimiter("redis://127.0.0.1:1"), 4, clock)
    allowed = [(await rates.take(REQUESTS, "k", 20)).is_allowed for _ in range(8)]
    assert allowed == [True] * 5 + [False] * 3
    assert rates.is_down
    await rates.add(TOKENS, "k", 20, 5)
    clock.now += 6  # it is tried again, and fails again
    await rates.take(REQUESTS, "k", 20)
    told = [record for record in caplog.records if "Redis cannot be used" in record.message]
    assert len(told) == 1
    assert "1/4" in told[0].message
    await rates.close()


@pytest.mark.parametrize("how", ["cut", "mute"])
async def test_a_redis_that_goes_away_holds_nobody_up(redis, how):
    place = urlsplit(redis)
    clock, name = Clock(), uuid.uuid4().hex
    async with Proxy(place.hostname, place.port or 6379) as proxy:
        rates = FallbackRateLimiter(RedisRateLimiter(f"redis://127.0.0.1:{proxy.port}"), 2, clock)
        assert (await rates.take(REQUESTS, name, 4)).cap == 4
        await getattr(proxy, how)()
        with anyio.fail_after(30):
            taken = [await rates.take(REQUESTS, name, 4) for _ in range(3)]
            await rates.add(TOKENS, name, 4, 1)
        assert rates.is_down
        assert [(window.cap, window.is_allowed) for window in taken] == [
            (2, True),
            (2, True),
            (2, False),
        ]
        await proxy.mend()
        clock.now += 6
        assert (await rates.take(REQUESTS, name, 4)).cap == 4
        assert not rates.is_down
        await rates.close()


async def test_it_is_used_again_when_it_is_back(redis, caplog):
    caplog.set_level(logging.WARNING)
    clock, name = Clock(), uuid.uuid4().hex

    class Flaky:
        def __init__(self):
            self.real, self.away = RedisRateLimiter(redis, 10), True

        async def take(self, *arguments):
            if self.away:
                raise ConnectionError
            return await self.real.take(*arguments)

        async def add(self, *arguments):
            await self.real.add(*arguments)

        async def close(self):
            await self.real.close()

    flaky = Flaky()
    rates = FallbackRateLimiter(flaky, 2, clock)  # pyright: ignore[reportArgumentType]
    assert (await rates.take(REQUESTS, name, 2)).cap == 1
    flaky.away = False
    assert (await rates.take(REQUESTS, name, 2)).cap == 1  # left alone for a while
    clock.now += 6
    assert (await rates.take(REQUESTS, name, 2)).cap == 2
    assert not rates.is_down
    await rates.close()


def test_a_setting_that_is_no_url_of_redis_is_refused():
    pytest.importorskip("redis")
    with pytest.raises(ConfigError, match=r"server\.redis must be a URL"):
        open_rate_limiter("http://127.0.0.1")
    assert isinstance(open_rate_limiter(), LocalRateLimiter)


async def test_of_many_at_once_no_more_tokens_pass_than_the_cap(redis):
    name, limiters = uuid.uuid4().hex, [RedisRateLimiter(redis, 10) for _ in range(3)]
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
    for limiter in limiters:
        await limiter.close()
