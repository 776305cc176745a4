"""Redis as the processes of one deployment share it: what is counted there holds over all of them.

While Redis does not answer, whoever asks is told so at once and counts for itself: each process
then lets its part of every limit through.

A provider's turn is taken by one script, or it says how long to wait: the three limits of an
account are looked at together, by Redis's own clock, so that they hold exactly however many
processes ask. A call that lasts renews its lease; the place of a process that was killed is free
again after it. The windows of the library `limits` are not used here: they would store an entry for
each token, and have no places for calls at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast, final
from uuid import uuid4

import anyio

from batuta.core import Reply
from batuta.distribution import install_hint
from batuta.errors import ConfigError

REST_S = 5.0
"""Seconds for which Redis is skipped after it failed."""
TIMEOUT_S = 2.0
"""Seconds that Redis may take; less, and a busy moment of this process looks like an outage."""
CONNECTIONS = 8
"""Connections of each event loop: an answer takes Redis a tenth of a millisecond, and whoever finds
none free waits for one."""
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


@final
class RedisConnections:
    """A pool of connections for each event loop, and whether Redis answers."""

    def __init__(
        self,
        url: str,
        processes: int = 1,
        *,
        patience: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect on first use.

        Args:
            url: redis://host:6379.
            processes: how many share it.
            patience: seconds that connecting, or an answer, may take.
            clock: tells when to try again.

        Raises:
            ConfigError: the extra is missing, or the URL is none of Redis.
        """
        try:
            from redis import asyncio as redis  # noqa: PLC0415 - an extra
            from redis.asyncio.connection import parse_url  # noqa: PLC0415
            from redis.exceptions import RedisError  # noqa: PLC0415
        except ImportError:
            raise ConfigError(f"limits in Redis need an extra: {install_hint('redis')}") from None
        try:
            parse_url(url if url.startswith(("redis://", "rediss://")) else "")
        except ValueError:  # not shown: a port that is no number may be half a password
            raise ConfigError(
                "BATUTA_REDIS or the setting server.redis must be a URL like redis://host:6379"
            ) from None
        self.processes = max(1, processes)
        self.clock = clock
        self._errors: tuple[type[Exception], ...] = (RedisError, OSError, TimeoutError)
        self._url = url
        self._patience = patience
        self._module = cast("Any", redis)
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = (
            weakref.WeakKeyDictionary()
        )
        self._down_until = float("-inf")
        self.is_down = False
        """Whether each process counts for itself at the moment."""

    async def ask(self, ask: Callable[[Any], Awaitable[_T]]) -> _T | None:
        """Return Redis's answer; None while it is away."""
        if self.clock() < self._down_until:
            return None
        try:
            with anyio.fail_after(2 * self._patience):
                answer = await ask(self._client())
        except self._errors as error:
            self._note_failure(error)
            return None
        if self.is_down:
            _LOG.warning("Redis can be used again")
        self.is_down = False
        return answer

    async def close(self) -> None:
        """Close this event loop's connections."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose(close_connection_pool=True)

    def share_of(self, limit: int) -> int:
        """Return the part of a limit that this process lets through while it counts for itself."""
        return max(1, limit // self.processes)

    def _client(self) -> Any:
        loop = asyncio.get_running_loop()
        found = self._clients.get(loop)
        if found is None:
            pool = self._module.BlockingConnectionPool.from_url(
                self._url,
                max_connections=CONNECTIONS,
                timeout=None,
                socket_timeout=self._patience,
                socket_connect_timeout=self._patience,
            )
            found = self._clients[loop] = self._module.Redis(connection_pool=pool)
        return found

    def _note_failure(self, error: Exception) -> None:
        """Skip Redis for a while; that is said once until it answers again."""
        self._down_until = self.clock() + REST_S
        if not self.is_down:
            share = f"1/{self.processes}" if self.processes > 1 else "the whole"
            kind = type(error).__name__
            _LOG.warning(
                "Redis cannot be used (%s): this process lets %s of each limit through", kind, share
            )
        self.is_down = True


LEASE_S = 30.0
"""Seconds that a place lasts unless it is renewed."""
RENEWAL_S = 10.0
POLL_S = 0.05
"""Seconds to wait for a place, about: nobody tells when one gets free."""
_TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local running, calls, tokens, total = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, most, rpm, tpm = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local amount, lease = tonumber(ARGV[5]), tonumber(ARGV[6])
local past = now - 60000
redis.call('ZREMRANGEBYSCORE', running, '-inf', now)
redis.call('ZREMRANGEBYSCORE', calls, '-inf', past)
for _, old in ipairs(redis.call('ZRANGEBYSCORE', tokens, '-inf', past)) do
    redis.call('DECRBY', total, string.match(old, ':(%d+)$'))
    redis.call('ZREM', tokens, old)
end
if redis.call('ZCARD', running) >= most then return 0 end
local wait = 0
if rpm > 0 and redis.call('ZCARD', calls) >= rpm then
    local first = redis.call('ZRANGE', calls, -rpm, -rpm, 'WITHSCORES')
    wait = math.max(wait, first[2] + 60000 - now + 1)
end
if tpm > 0 then
    local left = tonumber(redis.call('GET', total) or '0')
    if left > 0 and left + amount > tpm then
        local every = redis.call('ZRANGE', tokens, 0, -1, 'WITHSCORES')
        for i = 1, #every, 2 do
            left = left - tonumber(string.match(every[i], ':(%d+)$'))
            if left <= 0 or left + amount <= tpm then
                wait = math.max(wait, every[i + 1] + 60000 - now + 1)
                break
            end
        end
    end
end
if wait > 0 then return wait end
redis.call('ZADD', running, now + lease, id)
redis.call('PEXPIRE', running, 2 * lease)
if rpm > 0 then
    redis.call('ZADD', calls, now, id)
    redis.call('PEXPIRE', calls, 120000)
end
if tpm > 0 then
    redis.call('ZADD', tokens, now, id .. ':' .. amount)
    redis.call('INCRBY', total, amount)
    redis.call('PEXPIRE', tokens, 120000)
    redis.call('PEXPIRE', total, 120000)
end
return -1
"""
_END = """
local running, tokens, total = KEYS[1], KEYS[3], KEYS[4]
local id, estimate, used = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREM', running, id)
if used >= 0 and used ~= estimate then
    local at = redis.call('ZSCORE', tokens, id .. ':' .. estimate)
    if at then
        redis.call('ZREM', tokens, id .. ':' .. estimate)
        redis.call('ZADD', tokens, at, id .. ':' .. used)
        redis.call('INCRBY', total, used - estimate)
    end
end
"""
_RENEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZADD', KEYS[1], 'XX', now + ARGV[2], ARGV[1])
"""


@dataclass(frozen=True, slots=True)
class ProviderCaps:
    """The limits that a provider sets to one account."""

    concurrency: int
    rpm: int | None = None
    """Calls a minute."""
    tpm: int | None = None
    """Tokens a minute."""


@final
class RedisTurns:
    """Turns of one account in Redis; in this process in the order asked for."""

    def __init__(self, connections: RedisConnections, account: str, caps: ProviderCaps) -> None:
        """Take what the scripts need.

        Args:
            connections: where the counts are.
            account: whose limits these are; all that give the same name share them.
            caps: the limits.
        """
        self._connections = connections
        self._caps = caps
        kinds = ("running", "calls", "tokens", "total")
        self._keys = [f"batuta:provider:{{{account}}}:{kind}" for kind in kinds]
        self._first = anyio.Lock()

    @property
    def share(self) -> int:
        """The number of processes."""
        return self._connections.processes

    async def run(self, tokens: int, call: Callable[[], Awaitable[Reply]]) -> Reply | None:
        """Return the call's reply, made in its turn; None: Redis cannot be asked now."""
        owner, used = uuid4().hex, -1
        try:
            async with self._first:
                if not await self._take(owner, tokens):
                    return None
            reply = await self._renewed(owner, call)
            used = reply.usage.total
            return reply
        finally:
            await self._end(owner, tokens, used)

    async def _renewed(self, owner: str, call: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the call's reply; its place is renewed meanwhile."""
        found: Reply | Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._renew, owner)
            try:
                found = await call()
            except Exception as error:  # noqa: BLE001 - raised below, not in a group
                found = error
            group.cancel_scope.cancel()
        if isinstance(found, Exception):
            raise found
        assert found is not None  # noqa: S101 - cancelled otherwise
        return found

    async def _take(self, owner: str, tokens: int) -> bool:
        """Wait for a turn; False: Redis cannot be asked."""
        caps = self._caps
        arguments = (caps.concurrency, caps.rpm or 0, caps.tpm or 0, tokens, int(1000 * LEASE_S))
        while True:
            wait = await self._connections.ask(
                lambda redis: redis.eval(_TAKE, 4, *self._keys, owner, *arguments)
            )
            if wait is None or wait < 0:
                return wait is not None
            longest = wait / 1000 if wait else POLL_S * random.uniform(0.5, 1.5)
            await anyio.sleep(longest)

    async def _renew(self, owner: str) -> None:
        """Keep the place, again and again; what fails is tried again next time."""
        lease = int(1000 * LEASE_S)
        while True:
            await anyio.sleep(RENEWAL_S)
            await self._connections.ask(
                lambda redis: redis.eval(_RENEW, 1, self._keys[0], owner, lease)
            )

    async def _end(self, owner: str, tokens: int, used: int) -> None:
        """Free the place and write what was really used."""
        with anyio.CancelScope(shield=True):
            await self._connections.ask(
                lambda redis: redis.eval(_END, 4, *self._keys, owner, tokens, used)
            )
