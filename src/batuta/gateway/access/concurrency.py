"""How many requests of a key go on at the same time: in one process, or in all replicas."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Any, Protocol, final

import anyio

from batuta.errors import ConfigError

LEASE = 30.0
"""Seconds after which the requests of a process that died do not count any more."""
_RENEWED = 8.0
"""Seconds between renewals."""
_PATIENCE = 1.0
"""Seconds that Redis may take."""
_CONNECTIONS = 8
"""To Redis at the same time; an answer takes it a tenth of a millisecond."""
_REST = 5.0
"""Seconds for which Redis is skipped after it failed."""
_LOG = logging.getLogger(__name__)

# Redis runs a script as one step and has the one clock that all replicas share.
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
    """Counts what goes on, by key.

    Laws: of a key with a cap never more than that many are let in at the same time; whoever was
    let in is let out once.
    """

    async def enter(self, key: str, token: str, cap: int | None) -> bool:
        """Counts the request under its token; False: there are as many as may be."""
        ...

    async def leave(self, key: str, token: str) -> None:
        """The request has ended."""
        ...

    async def renew(self) -> None:
        """Tells the other replicas that this one lives, until cancelled."""
        ...

    async def close(self) -> None:
        """Lets connections go."""
        ...


@final
class LocalConcurrency:
    """Counts in memory, for this process alone."""

    def __init__(self) -> None:
        self._inside: Counter[str] = Counter()

    async def enter(self, key: str, token: str, cap: int | None) -> bool:
        """Counts the request, unless there are as many as may be."""
        if cap is not None and self._inside[key] >= cap:
            return False
        self._inside[key] += 1
        return True

    async def leave(self, key: str, token: str) -> None:
        """The request has ended."""
        self._inside[key] -= 1
        if self._inside[key] <= 0:
            del self._inside[key]

    async def renew(self) -> None:
        """Nobody else counts."""

    async def close(self) -> None:
        """Nothing."""


@final
class RedisConcurrency:
    """Counts in Redis, for all replicas; while it is away each lets its share in."""

    def __init__(
        self,
        url: str,
        replicas: int = 1,
        *,
        lease: float = LEASE,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Connects on first use.

        Args:
            url: where Redis is.
            replicas: how many there are.
            lease: seconds for which a process that died is still counted.
            clock: tells when to try again.

        Raises:
            ConfigError: the extra is not installed.
        """
        try:
            from redis.asyncio import BlockingConnectionPool, Redis  # noqa: PLC0415 - an extra
        except ImportError:
            message = "limits in Redis need an extra: pip install 'batuta-llm[redis]'"
            raise ConfigError(message) from None
        kind: Any = BlockingConnectionPool
        pool = kind.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=None,
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
        )
        self._redis: Any = Redis(connection_pool=pool)
        self._down = False
        self._replicas = max(1, replicas)
        self._lease = lease
        self._clock = clock
        self._held: dict[str, set[str]] = {}
        self._down_until = float("-inf")

    async def enter(self, key: str, token: str, cap: int | None) -> bool:
        """Counts the request in Redis; by this replica's share while it cannot be reached."""
        if cap is not None:
            args = (token, cap, self._lease)
            answer = await self._asked(lambda: self._redis.eval(_ENTER, 1, _redis_key(key), *args))
            share = max(1, cap // self._replicas)
            let_in = len(self._held.get(key, ())) < share if answer is None else bool(answer)
            if not let_in:
                return False
        self._held.setdefault(key, set()).add(token)
        return True

    async def leave(self, key: str, token: str) -> None:
        """The request has ended."""
        held = self._held.get(key, set())
        held.discard(token)
        if not held:
            self._held.pop(key, None)
        with anyio.CancelScope(shield=True):
            await self._asked(lambda: self._redis.zrem(_redis_key(key), token))

    async def renew(self) -> None:
        """Renews what goes on here, until cancelled."""
        while True:
            await anyio.sleep(min(_RENEWED, self._lease / 3))
            for key, held in tuple(self._held.items()):
                ask = partial(self._redis.eval, _RENEW, 1, _redis_key(key), self._lease, *held)
                await self._asked(ask)

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.aclose(close_connection_pool=True)

    async def _asked(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What Redis says; None if it says nothing."""
        if self._clock() < self._down_until:
            return None
        try:
            with anyio.fail_after(2 * _PATIENCE):
                answer = await ask()
        except Exception as error:  # noqa: BLE001 - whatever the client raises
            self._down_until = self._clock() + _REST
            if not self._down:
                kind = type(error).__name__
                _LOG.warning("Redis cannot be used (%s): each replica counts for itself", kind)
            self._down = True
            return None
        self._down = False
        return answer


def _redis_key(key: str) -> str:
    return f"batuta:concurrency:{key}"
