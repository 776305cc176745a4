"""A client that waits its turn: within limits, and as fast as its provider wants to be called.

A provider that asks to slow down (429) works: it only says that this key sends too much. So calls
pause for a moment, and then pass through a token bucket of one token, filled at half the rate at
which it was called before. Every answer fills it a little faster, until it no longer delays any
call. The refusal may concern that one request only, and the provider may name a time of days: so
the pause of all other calls is short at first, doubles with each refusal in a row, and is bounded.

In Redis one script takes a turn or says how long to wait: the three limits are looked at together,
by Redis's own clock, so that they hold exactly however many processes ask. A call that lasts renews
its lease; the place of a process that was killed is free again after it. The windows of the
library `limits` are not used here: they would store an entry for each token, and have no places
for calls at the same time.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol, final
from uuid import uuid4

import anyio

from batuta.clients.redis_connections import RedisConnections
from batuta.clients.resilience import SleepFunction
from batuta.core import CallListener, Client, Reply, Request
from batuta.core.conductor import NULL_LISTENER
from batuta.core.run import Failure
from batuta.core.server_tools import NamedFiles, TakesFiles
from batuta.core.token_estimate import estimate_request_tokens
from batuta.errors import RateLimitError

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


class SharedTurns(Protocol):
    """Turns for calls of one account, over all processes."""

    @property
    def share(self) -> int:
        """The number of processes: each lets this part through while it counts for itself."""
        ...

    async def run(self, tokens: int, call: Callable[[], Awaitable[Reply]]) -> Reply | None:
        """Return the call's reply, made in its turn; None: nobody can be asked for turns now."""
        ...


@final
class RedisTurns:
    """Turns of one account in Redis; in this process in the order asked for."""

    def __init__(self, connections: RedisConnections, account: str, caps: ProviderCaps) -> None:
        """Asks nothing yet.

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


WINDOW_SECONDS = 60.0
SHORT_WAIT_SECONDS, MAX_WAIT_SECONDS = 2.0, 30.0
"""Seconds until the turn of a call whose provider asked to slow down: a farther one than the first
is told to the listener, who may go elsewhere instead; one farther than the second is refused."""
ASSUMED_OUTPUT_TOKENS = 1024
"""Tokens that a reply is taken to have until it is there, where the request sets no limit."""


class _Grant:
    """A place in a window: when it counts and how much."""

    __slots__ = ("amount", "at")

    def __init__(self, at: float, amount: int) -> None:
        self.at = at
        self.amount = amount


class _Window:
    """A window that grants at most `limit` in any minute, in the order asked for."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._grants: deque[_Grant] = deque()

    def ask(self, now: float, amount: int) -> _Grant:
        """Return a grant at the first moment that keeps the limit, now or later.

        More than the whole limit is granted alone, in an empty window.
        """
        grants = self._grants
        while grants and grants[0].at <= now - WINDOW_SECONDS:
            grants.popleft()
        at = max(now, grants[-1].at) if grants else now
        total = sum(grant.amount for grant in grants)
        for grant in grants:
            if total + amount <= self._limit:
                break
            at = max(at, grant.at + WINDOW_SECONDS)
            total -= grant.amount
        granted = _Grant(at, amount)
        grants.append(granted)
        return granted

    def give_back(self, grant: _Grant) -> None:
        """The call was never made."""
        if grant in self._grants:
            self._grants.remove(grant)


@final
class CallLimiter:
    """Calls at the same time, calls a minute, tokens a minute; shared between clients.

    Waiting calls are served in the order in which they came; a cancelled one gives its place
    back. Token counts are estimated when a call begins and corrected when it ends. With `shared`
    the limits hold over all processes; while those cannot be asked this one takes its part of
    them.
    """

    def __init__(
        self,
        concurrency: int,
        rpm: int | None = None,
        tpm: int | None = None,
        *,
        shared: SharedTurns | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: SleepFunction = anyio.sleep,
    ) -> None:
        if concurrency < 1 or (rpm is not None and rpm < 1) or (tpm is not None and tpm < 1):
            raise ValueError("limits on concurrency, calls and tokens must be at least 1")
        self._shared = shared
        part = 1 if shared is None else shared.share
        self._slots = anyio.Semaphore(concurrency, fast_acquire=True)
        self._own_slots = anyio.Semaphore(max(1, concurrency // part), fast_acquire=True)
        self._calls = _Window(max(1, rpm // part)) if rpm is not None else None
        self._tokens = _Window(max(1, tpm // part)) if tpm is not None else None
        self._clock = clock
        self._sleep = sleep
        self.throttle = Throttle(clock=clock)

    async def run(self, inner: Client, request: Request, listener: CallListener) -> Reply:
        """`inner`'s reply, begun when the limits allow it.

        Raises:
            RateLimitError: the provider asked to be skipped for longer than a call waits here,
                or it does so now.
        """
        reported = await self._report_pause(listener)
        if self._shared is None:
            async with self._slots:
                return await self._call_within_windows(inner, request, listener, reported=reported)
        async with self._slots:
            call = partial(self._call, inner, request, listener, reported=reported)
            reply = await self._shared.run(_token_estimate(request), call)
            if reply is not None:
                return reply
            async with self._own_slots:
                return await self._call_within_windows(inner, request, listener, reported=reported)

    async def _call_within_windows(
        self, inner: Client, request: Request, listener: CallListener, *, reported: bool
    ) -> Reply:
        """`inner`'s reply, begun when this process's own limits a minute allow it."""
        if self._calls is None and self._tokens is None:
            return await self._call(inner, request, listener, reported=reported)
        grants = await self._wait_for_grants(request)
        reply = await self._call(inner, request, listener, reported=reported)
        if self._tokens is not None:
            grants[-1].amount = reply.usage.total
        return reply

    async def _call(
        self, inner: Client, request: Request, listener: CallListener, *, reported: bool
    ) -> Reply:
        """`inner`'s reply, as soon as the provider is not to be skipped any more."""
        if not reported:
            await self._report_pause(listener)
        await self._sleep_until_turn()
        began = self._clock()
        try:
            reply = await inner.complete(request, listener)
        except RateLimitError as error:
            self.throttle.record_rate_limit(began, error.retry_after)
            raise
        self.throttle.record_success()
        return reply

    async def _report_pause(self, listener: CallListener) -> bool:
        """Tells the listener, as a failed attempt, if the provider's pause is long.

        Raises:
            RateLimitError: it is too long.
            ClientError: the listener asks somebody else instead.
        """
        if not self.throttle.is_slowed:
            return False
        wait = self.throttle.wait()
        if wait > SHORT_WAIT_SECONDS:
            error = self._rate_limit_error(wait)
            if wait > MAX_WAIT_SECONDS:
                raise error
            await listener.on_failure(Failure.of(error))
        return wait > SHORT_WAIT_SECONDS

    async def _sleep_until_turn(self) -> None:
        throttle = self.throttle
        while True:
            if throttle.is_slowed and (wait := throttle.wait()) > MAX_WAIT_SECONDS:
                raise self._rate_limit_error(wait)
            refusals, wait = throttle.refusals, throttle.next_turn()
            if wait > 0:
                await self._sleep(wait)
            if refusals == throttle.refusals:  # else a call ahead was refused meanwhile
                return

    def _rate_limit_error(self, wait: float) -> RateLimitError:
        message = "the provider has asked to slow down; nothing was sent"
        return RateLimitError(message, retry_after=wait)

    async def _wait_for_grants(self, request: Request) -> list[_Grant]:
        now = self._clock()
        asked: list[tuple[_Window, _Grant]] = []
        if self._calls is not None:
            asked.append((self._calls, self._calls.ask(now, 1)))
        if self._tokens is not None:
            asked.append((self._tokens, self._tokens.ask(now, _token_estimate(request))))
        wait = max((grant.at - now for _, grant in asked), default=0.0)
        if wait > 0:
            try:
                await self._sleep(wait)
            except BaseException:
                for window, grant in asked:
                    window.give_back(grant)
                raise
        return [grant for _, grant in asked]


def _token_estimate(request: Request) -> int:
    """Return the tokens that the call is taken to need until they are known."""
    return estimate_request_tokens(request) + (request.sampling.max_tokens or ASSUMED_OUTPUT_TOKENS)


@final
class RateLimitedClient:
    """Calls `inner` within a limiter's limits."""

    def __init__(self, inner: Client, limiter: CallLimiter) -> None:
        self.inner = inner
        self.limiter = limiter

    def __repr__(self) -> str:
        return f"Limit({self.inner!r})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """`inner`'s reply; the wait for a turn comes first."""
        return await self.limiter.run(self.inner, request, listener)

    def with_files(self, files: NamedFiles) -> RateLimitedClient:
        """Return it with those files, where its programs can read some; else as it is."""
        if not isinstance(self.inner, TakesFiles):
            return self
        return RateLimitedClient(self.inner.with_files(files), self.limiter)


_RATE_WINDOW_SECONDS = 10.0
"""Seconds over which the rate of calls is seen."""
_MIN_RATE = 2.0
"""Calls a second that are let through after any pause: what is slower still, its pauses tell."""
_UNNAMED_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 2.0, 30.0
"""Seconds of the first pause if the provider names none, the most for the first one if it does, and
the most for any: each refusal in a row doubles the pause. Then one call tries for an answer."""
_RATE_INCREASE = 1.1
"""Factor of the rate for each answer."""


@final
class Throttle:
    """The pause and the bucket of one provider's key. Pure but for the clock."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent: deque[float] = deque()
        self._rate = inf
        self._usual = inf
        """The rate at which it was told to slow down."""
        self._next = 0.0
        self._slowed = -inf
        self._row = 0
        self.refusals = 0
        """The number of times that the pause was extended."""

    @property
    def rate(self) -> float:
        """Calls a second that are let through; infinite if nobody is held back."""
        return self._rate

    @property
    def is_slowed(self) -> bool:
        """Return True if the provider has ever asked to slow down: else no call waits."""
        return self._next > 0.0

    def wait(self) -> float:
        """Return the seconds until the next call's turn."""
        return max(0.0, self._next - self._clock())

    def next_turn(self) -> float:
        """Return the next turn, taken: seconds until it."""
        now = self._clock()
        at = max(now, self._next)
        if self._rate < inf:
            self._next = at + 1 / self._rate
        self._sent.append(at)
        while self._sent[0] < now - _RATE_WINDOW_SECONDS:
            self._sent.popleft()
        return at - now

    def record_rate_limit(self, began: float, retry_after: float | None) -> None:
        """The provider refused a call for its rate.

        Args:
            began: when the call began; those that were on their way together are slowed by once.
            retry_after: seconds that it asked to wait, if it did.
        """
        now = self._clock()
        if began >= self._slowed:
            self._row += 1
            if self._rate == inf:
                self._usual = max(self._recent_rate(now), 2 * _MIN_RATE)
            self._rate = max(_MIN_RATE, min(self._rate, self._usual) / 2)
            self._slowed = now
        first = _UNNAMED_PAUSE_SECONDS if retry_after is None else _FIRST_PAUSE_SECONDS
        longest = min(first * 2.0 ** min(self._row - 1, 10), _MAX_PAUSE_SECONDS)
        until = now + (longest if retry_after is None else min(retry_after, longest))
        if until > self._next:
            self._next = until
            self.refusals += 1

    def _recent_rate(self, now: float) -> float:
        """Calls a second of late."""
        elapsed = now - self._sent[0] if self._sent else 0.0
        return len(self._sent) / min(max(elapsed, 1.0), _RATE_WINDOW_SECONDS)

    def record_success(self) -> None:
        """The provider answered a call."""
        self._row = 0
        if self._rate < inf:
            self._rate *= _RATE_INCREASE
            if self._rate >= 2 * self._usual:
                self._rate = inf
