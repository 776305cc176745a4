"""Redis connections, and rate limits of providers counted in Redis over all processes.

After Redis failed to answer, it is skipped for a few seconds at a time, and each process enforces
its share of every limit by itself.

One script takes a slot of an account or returns how long to wait. It checks all three limits
together by Redis's own clock, so that they hold for any number of processes. A running call renews
its lease; the slot of a killed process becomes free when its lease expires. The windows of
the library `limits` are not used here: they would store an entry for each token, and do not limit
concurrent calls.
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
"""Seconds that Redis may take to answer; if it had less, a busy moment of this process would look
like an outage."""
CONNECTIONS = 8
"""Maximum number of connections per event loop; as Redis answers in a tenth of a millisecond, a
call waits for a free connection only briefly."""
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


@final
class RedisConnections:
    """A connection pool per event loop, with the state of Redis: available or not."""

    def __init__(
        self,
        url: str,
        processes: int = 1,
        *,
        patience: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check the URL; connections are opened on first use.

        Args:
            url: redis://host:6379.
            processes: the number of processes that share the limits.
            patience: seconds that connecting, or an answer, may take.
            clock: returns the current time in seconds, for the pause after a failure.

        Raises:
            ConfigError: the extra is not installed, or `url` is not a Redis URL, or one with an
                option that the library does not know.
        """
        try:
            from redis import asyncio as redis  # noqa: PLC0415 - an extra
            from redis.exceptions import RedisError  # noqa: PLC0415
        except ImportError:
            raise ConfigError(f"limits in Redis need an extra: {install_hint('redis')}") from None
        self.processes = max(1, processes)
        self.clock = clock
        self._errors: tuple[type[Exception], ...] = (RedisError, OSError, TimeoutError)
        self._url = url if url.startswith(("redis://", "rediss://")) else ""
        self._patience = patience
        self._module = cast("Any", redis)
        try:
            self._open_pool().make_connection()  # checks the options, and does not connect
        except (ValueError, TypeError, RedisError):  # not shown: it may quote the password
            raise ConfigError(
                "BATUTA_REDIS or the setting server.redis must be a URL like redis://host:6379, "
                "whose options, if it has any, are options of redis-py"
            ) from None
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = (
            weakref.WeakKeyDictionary()
        )
        self._down_until = float("-inf")
        self.is_down = False
        """Whether Redis is unavailable, so that each process enforces its share of the limits."""

    async def ask(self, query: Callable[[Any], Awaitable[_T]]) -> _T | None:
        """Return the result of `query` with a Redis client; None if Redis is unavailable."""
        if self.clock() < self._down_until:
            return None
        try:
            with anyio.fail_after(2 * self._patience):
                answer = await query(self._client())
        except self._errors as error:
            self._note_failure(error)
            return None
        if self.is_down:
            _LOG.warning("Redis is available again")
        self.is_down = False
        return answer

    async def close(self) -> None:
        """Close this event loop's connections."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose(close_connection_pool=True)

    def share_of(self, limit: int) -> int:
        """Return this process's share of a limit while Redis is unavailable: at least 1."""
        return max(1, limit // self.processes)

    def _client(self) -> Any:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = self._module.Redis(connection_pool=self._open_pool())
        return client

    def _open_pool(self) -> Any:
        """Return a new connection pool, without a connection."""
        return self._module.BlockingConnectionPool.from_url(
            self._url,
            max_connections=CONNECTIONS,
            timeout=None,
            socket_timeout=self._patience,
            socket_connect_timeout=self._patience,
        )

    def _note_failure(self, error: Exception) -> None:
        """Skip Redis for a while; log the first failure of an outage."""
        self._down_until = self.clock() + REST_S
        if not self.is_down:
            share = f"1/{self.processes}" if self.processes > 1 else "the whole"
            kind = type(error).__name__
            _LOG.warning(
                "Redis is unavailable (%s): this process enforces %s of each limit", kind, share
            )
        self.is_down = True


LEASE_S = 30.0
"""Seconds for which a slot is held unless it is renewed."""
RENEWAL_S = 10.0
"""Seconds between two renewals of a slot."""
POLL_S = 0.05
"""Approximate seconds between attempts to get a slot; Redis does not notify when a slot is free."""
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
"""Takes a slot and returns -1, else the milliseconds to wait; 0: too many calls are running."""
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
    """A provider's limits for one account."""

    concurrency: int
    """Maximum number of calls at the same time."""
    rpm: int | None = None
    """Maximum number of calls per minute; None: no limit."""
    tpm: int | None = None
    """Maximum number of tokens per minute; None: no limit."""


@final
class RedisSlots:
    """Slots of one account, counted in Redis; this process's calls wait in order of arrival."""

    def __init__(self, connections: RedisConnections, account: str, caps: ProviderCaps) -> None:
        """Prepare the keys of the account.

        Args:
            connections: the connections to Redis.
            account: the account's name; all processes that use the same name share its limits.
            caps: the limits.
        """
        self._connections = connections
        self._caps = caps
        kinds = ("running", "calls", "tokens", "total")
        self._keys = [f"batuta:provider:{{{account}}}:{kind}" for kind in kinds]
        self._first = anyio.Lock()

    @property
    def processes(self) -> int:
        """The number of processes that share the limits."""
        return self._connections.processes

    async def run(self, tokens: int, call: Callable[[], Awaitable[Reply]]) -> Reply | None:
        """Wait for a slot, make the call and return its reply.

        Returns None, without making the call, if Redis is unavailable.

        Args:
            tokens: the estimated tokens of the call; corrected by its reply.
            call: makes the call.
        """
        owner, used = uuid4().hex, -1
        try:
            async with self._first:
                if not await self._take(owner, tokens):
                    return None
            reply = await self._call_with_renewals(owner, call)
            used = reply.usage.total
            return reply
        finally:
            await self._end(owner, tokens, used)

    async def _call_with_renewals(self, owner: str, call: Callable[[], Awaitable[Reply]]) -> Reply:
        """Make the call and return its reply; renew the slot's lease meanwhile."""
        outcome: Reply | Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._renew, owner)
            try:
                outcome = await call()
            except Exception as error:  # noqa: BLE001 - raised below, not in a group
                outcome = error
            group.cancel_scope.cancel()
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None  # noqa: S101 - cancelled otherwise
        return outcome

    async def _take(self, owner: str, tokens: int) -> bool:
        """Wait for a slot; return False if Redis is unavailable."""
        caps = self._caps
        arguments = (caps.concurrency, caps.rpm or 0, caps.tpm or 0, tokens, int(1000 * LEASE_S))
        while True:
            wait = await self._connections.ask(
                lambda redis: redis.eval(_TAKE, 4, *self._keys, owner, *arguments)
            )
            if wait is None or wait < 0:
                return wait is not None
            seconds = wait / 1000 if wait else POLL_S * random.uniform(0.5, 1.5)
            await anyio.sleep(seconds)

    async def _renew(self, owner: str) -> None:
        """Renew the lease periodically; a failed renewal is repeated the next time."""
        lease = int(1000 * LEASE_S)
        while True:
            await anyio.sleep(RENEWAL_S)
            await self._connections.ask(
                lambda redis: redis.eval(_RENEW, 1, self._keys[0], owner, lease)
            )

    async def _end(self, owner: str, tokens: int, used: int) -> None:
        """Free the slot and correct the estimate to the tokens used, unless `used` is -1."""
        with anyio.CancelScope(shield=True):
            await self._connections.ask(
                lambda redis: redis.eval(_END, 4, *self._keys, owner, tokens, used)
            )
