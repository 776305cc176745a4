"""Counts the concurrent requests of each key, in one process or over all replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Collection
from functools import partial
from typing import Any, Protocol, final

import anyio

from batuta.clients.redis_connections import RedisConnections

LEASE = 30.0
"""Seconds after which the requests of a dead process no longer count."""
_RENEW_SECONDS = 8.0
"""Maximum seconds between renewals."""

# Redis runs a script as one step and has the one clock that all replicas share. The arguments are
# the token, the cap and the lease in seconds; or to renew, the lease and the tokens.
_ENTER = """
local now = redis.call('TIME')[1] + 0
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[1])
redis.call('EXPIRE', KEYS[1], tonumber(ARGV[3]) * 2)
return 1
"""
_RENEW = """
local now = redis.call('TIME')[1] + 0
for index = 2, #ARGV do redis.call('ZADD', KEYS[1], now + tonumber(ARGV[1]), ARGV[index]) end
redis.call('EXPIRE', KEYS[1], tonumber(ARGV[1]) * 2)
return 1
"""


class ConcurrencyCounter(Protocol):
    """Counts concurrent requests by key.

    Law: a key has at most `cap` concurrent requests. While Redis is down, each replica admits its
    share of `cap`, so there may be more than `cap` until these requests have ended. The caller
    calls `leave` once for each request that `enter` counted.
    """

    async def enter(self, key: str, token: str, cap: int | None) -> bool:
        """Count the request under its token; return False if the key has reached its cap.

        A cap of None means no limit.
        """
        ...

    async def leave(self, key: str, token: str) -> None:
        """Stop counting the request, which has ended."""
        ...

    async def renew(self) -> None:
        """Renew this replica's leases until cancelled; a counter without leases returns at once."""
        ...


@final
class LocalConcurrency:
    """Counts in memory, for this process alone."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()

    async def enter(self, key: str, token: str, cap: int | None) -> bool:
        """Count the request; return False if the key has reached its cap."""
        if cap is not None and self._running[key] >= cap:
            return False
        self._running[key] += 1
        return True

    async def leave(self, key: str, token: str) -> None:
        """Stop counting the request, which has ended."""
        self._running[key] -= 1
        if self._running[key] <= 0:
            del self._running[key]

    async def renew(self) -> None:
        """Do nothing: there are no leases."""


@final
class RedisConcurrency:
    """Counts in Redis for all replicas; while Redis is down, each replica admits its share."""

    def __init__(self, redis: RedisConnections, *, lease: float = LEASE) -> None:
        """Count nothing yet; `lease` is in seconds, see `LEASE`."""
        self.redis = redis
        self._lease = lease
        self._held: dict[str, set[str]] = {}

    async def enter(self, key: str, token: str, cap: int | None) -> bool:
        """Count the request in Redis, or against this replica's share while Redis is down.

        Return False if the cap or share is reached. Without a cap, the request is always admitted,
        and the next renewal counts it in Redis.
        """
        if cap is not None:
            args = (token, cap, self._lease)
            try:
                answer = await self.redis.ask(
                    lambda redis: redis.eval(_ENTER, 1, _redis_key(key), *args)
                )
            except BaseException:  # cancelled, although Redis may have counted the request
                await self._remove(key, (token,))
                raise
            held = len(self._held.get(key, ()))
            if not (held < self.redis.share_of(cap) if answer is None else answer):
                return False
        self._held.setdefault(key, set()).add(token)
        return True

    async def leave(self, key: str, token: str) -> None:
        """Stop counting the request, which has ended."""
        held = self._held.get(key, set())
        held.discard(token)
        if not held:
            self._held.pop(key, None)
        await self._remove(key, (token,))

    async def renew(self) -> None:
        """Renew the leases of this replica's requests until cancelled."""
        while True:
            await anyio.sleep(min(_RENEW_SECONDS, self._lease / 3))
            for key, held in tuple(self._held.items()):
                renewed = tuple(held)
                args = (self._lease, *renewed)
                ask = partial(_renew_in_redis, key, args)
                await self.redis.ask(ask)
                # A request that ended during the renewal may have been added again by it.
                if left := set(renewed) - self._held.get(key, set()):
                    await self._remove(key, left)

    async def _remove(self, key: str, tokens: Collection[str]) -> None:
        with anyio.CancelScope(shield=True):
            await self.redis.ask(lambda redis: redis.zrem(_redis_key(key), *tokens))


def _renew_in_redis(key: str, args: tuple[float | str, ...], redis: Any) -> Awaitable[Any]:
    return redis.eval(_RENEW, 1, _redis_key(key), *args)


def _redis_key(key: str) -> str:
    return f"batuta:concurrency:{key}"
