"""Rate limits: what a key used in the last 60 seconds, counted in memory or in Redis.

Each amount taken is kept with its time for 60 seconds (a sliding window); an unused part is
subtracted from the amount. A request that does not fit is refused, with the seconds until it may
fit. With Redis all replicas share the amounts; while Redis is down, each replica counts alone, up
to its share.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from time import monotonic
from typing import Protocol, final

from batuta.clients.redis_connections import RedisConnections
from batuta.gateway.access.concurrency import ConcurrencyCounter, LocalConcurrency, RedisConcurrency
from batuta.gateway.errors import APIError

MINUTE = 60.0
REQUESTS = "requests"
TOKENS = "tokens"
# Redis runs a script atomically and has the one clock that all replicas share, so simultaneous
# requests cannot exceed the cap. The sorted set has a member `id:amount` for each amount taken,
# scored by its time, and a last member `total`, scored by 1e15 plus the sum. All are in one key,
# since a full Redis could evict one of two keys. Lua writes numbers with 14 digits, hence `%.0f`.
_TOTAL = """
local log, BASE = KEYS[1], 1e15
local function read_total() return tonumber(redis.call('ZSCORE', log, 'total') or BASE) - BASE end
local function write_total(sum)
    redis.call('ZADD', log, string.format('%.0f', BASE + sum), 'total')
    redis.call('PEXPIRE', log, 120000)
end
"""
_TAKE = f"""{_TOTAL}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local amount, cap, used = tonumber(ARGV[2]), tonumber(ARGV[3]), read_total()
for _, old in ipairs(redis.call('ZRANGEBYSCORE', log, '-inf', now - 60000)) do
    used = used - tonumber(string.match(old, ':(%d+)$'))
    redis.call('ZREM', log, old)
end
if cap < 0 or used + amount <= cap then
    redis.call('ZADD', log, now, ARGV[1] .. ':' .. ARGV[2])
    write_total(used + amount)
    return {{1, used + amount, 60000}}
end
write_total(used)
local left, start = used, 0
while true do
    local some = redis.call('ZRANGE', log, start, start + 99, 'WITHSCORES')
    for i = 1, #some, 2 do
        if some[i] == 'total' then return {{0, used, 60000}} end
        left = left - tonumber(string.match(some[i], ':(%d+)$'))
        if left + amount <= cap then  -- a clock that was set back makes no wait beyond a minute
            return {{0, used, math.min(60000, some[i + 1] + 60000 - now)}}
        end
    end
    start = start + 100
end
"""
_GIVE_BACK = f"""{_TOTAL}
local id, amount, left = ARGV[1], ARGV[2], ARGV[3]
local at = redis.call('ZSCORE', log, id .. ':' .. amount)
if not at then return end
redis.call('ZREM', log, id .. ':' .. amount)
redis.call('ZADD', log, at, id .. ':' .. left)
write_total(read_total() - (amount - left))
"""


@dataclass(slots=True, kw_only=True)
class Taken:
    """An amount taken from a rate, part of which can be given back."""

    unit: str
    """The counted unit, such as `requests`."""
    name: str
    """The key's id, or another name under which the amount counts."""
    amount: int
    at: float = 0.0
    """When the amount was taken, by the process's clock; unused if Redis counts it."""
    id: str = ""
    """The amount's id in Redis; empty: this process counts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWindow:
    """The state of a rate after an amount was requested."""

    unit: str
    """The counted unit: `requests`, `tokens` or `bytes`."""
    cap: int
    """The maximum per minute; while Redis is down, this replica's share of it."""
    remaining: int
    """The remaining amount below the cap, at least 0."""
    reset: float
    """Seconds until the whole cap is available again or, after a refusal, until the amount fits;
    at most 60. For an amount above the cap it is 60, though it never fits."""
    taken: Taken | None = None
    """The amount that was counted; None: the amount did not fit."""

    @property
    def is_allowed(self) -> bool:
        """True if the amount fitted."""
        return self.taken is not None

    def headers(self) -> dict[str, str]:
        """Return the headers that OpenAI's clients read."""
        return {
            f"x-ratelimit-limit-{self.unit}": str(self.cap),
            f"x-ratelimit-remaining-{self.unit}": str(self.remaining),
            f"x-ratelimit-reset-{self.unit}": f"{self.reset:.3f}s",
        }


def check_rate(windows: Sequence[RateWindow]) -> None:
    """Check that the request's amount fitted in the last of these rates.

    Raises:
        APIError: the amount did not fit.
    """
    last = windows[-1]
    if last.is_allowed:
        return
    message = f"This key may use {last.cap} {last.unit} per minute; retry in {last.reset:.1f} s."
    headers = {name: value for w in windows for name, value in w.headers().items()}
    raise APIError(429, "rate_limit_exceeded", message, headers=headers | retry_headers(last.reset))


async def enter_concurrency(limiter: RateLimiter, key: str, token: str, most: int | None) -> None:
    """Count a concurrent request under its token; `leave` of `limiter.concurrency` must follow.

    Args:
        limiter: the limits.
        key: the key's id.
        token: identifies the request.
        most: maximum number of the key's concurrent requests; None: no limit.

    Raises:
        APIError: the key already has `most` requests; nothing is counted.
    """
    if not await limiter.concurrency.enter(key, token, most):
        message = f"This key may have {most} requests at the same time; wait for one to end."
        raise APIError(429, "rate_limit_exceeded", message, headers=retry_headers(1.0))


def retry_headers(seconds: float) -> dict[str, str]:
    """Return the headers with the time after which clients may retry, also in milliseconds."""
    return {"retry-after": str(max(1, ceil(seconds))), "retry-after-ms": str(ceil(seconds * 1000))}


class RateLimiter(Protocol):
    """Counts amounts per minute, by unit and name.

    Laws: `take` admits at most `cap` in any minute (`add` may exceed `cap` afterwards). A refused
    amount is not counted; if it is at most `cap` and nothing else is counted, it fits within a
    minute. An amount given back is free immediately; giving it back after its minute changes
    nothing. With Redis the laws hold as long as Redis answers: when it fails, or is back, the
    amounts counted in the other place are not known.
    """

    async def take(self, unit: str, name: str, cap: int, amount: int = 1) -> RateWindow:
        """Count the amount, if it fits in the cap."""
        ...

    async def add(self, unit: str, name: str, cap: int, amount: int) -> None:
        """Count an amount that was already used, even if it exceeds the cap."""
        ...

    async def give_back(self, taken: Taken, amount: int) -> None:
        """Subtract the unused part, at most what is left of `taken`, as if it were never taken."""
        ...

    @property
    def concurrency(self) -> ConcurrencyCounter:
        """Counts concurrent requests."""
        ...

    async def close(self) -> None:
        """Close the connections, if there are any."""
        ...


@dataclass(slots=True)
class _LastMinute:
    """The amounts taken under one name in the last minute, oldest first."""

    taken: deque[Taken] = field(default_factory=deque[Taken])
    total: int = 0

    def forget_older(self, moment: float) -> None:
        """Drop the amounts taken at or before that time."""
        while self.taken and self.taken[0].at <= moment:
            self.total -= self.taken.popleft().amount

    def append(self, taken: Taken) -> None:
        self.taken.append(taken)
        self.total += taken.amount

    def seconds_until_fit(self, now: float, cap: int, amount: int) -> float:
        """Return the seconds until the amount fits, if nothing else is taken before.

        Return a minute for an amount above the cap.
        """
        left = self.total
        for taken in self.taken:
            left -= taken.amount
            if left + amount <= cap:
                return min(MINUTE, taken.at + MINUTE - now)  # rounding may exceed a minute
        return MINUTE


@final
class LocalRateLimiter:
    """Counts in memory, for this process alone."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.concurrency: ConcurrencyCounter = LocalConcurrency()
        self._names: dict[tuple[str, str], _LastMinute] = {}
        self._swept_at = clock()

    async def take(self, unit: str, name: str, cap: int, amount: int = 1) -> RateWindow:
        """Count the amount, if it fits in the cap."""
        now = self._clock()
        last = self._last_minute(unit, name, now)
        if last.total + amount > cap:
            wait = last.seconds_until_fit(now, cap, amount)
            left = max(0, cap - last.total)
            return RateWindow(unit=unit, cap=cap, remaining=left, reset=wait)
        taken = Taken(unit=unit, name=name, amount=amount, at=now)
        last.append(taken)
        left = cap - last.total
        return RateWindow(unit=unit, cap=cap, remaining=left, reset=MINUTE, taken=taken)

    async def add(self, unit: str, name: str, cap: int, amount: int) -> None:
        """Count an amount that was already used, even if it exceeds the cap."""
        now = self._clock()
        taken = Taken(unit=unit, name=name, amount=amount, at=now)
        self._last_minute(unit, name, now).append(taken)

    async def give_back(self, taken: Taken, amount: int) -> None:
        """Subtract the unused part, unless its minute is over."""
        now = self._clock()
        if taken.at <= now - MINUTE:
            return
        less = min(amount, taken.amount)
        taken.amount -= less
        self._last_minute(taken.unit, taken.name, now).total -= less

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _last_minute(self, unit: str, name: str, now: float) -> _LastMinute:
        """Return the name's amounts of the last minute; once a minute, drop idle names."""
        if now - self._swept_at >= MINUTE:
            self._names = {
                key: last
                for key, last in self._names.items()
                if last.taken and last.taken[-1].at > now - MINUTE
            }
            self._swept_at = now
        last = self._names.get((unit, name))
        if last is None:
            last = self._names[unit, name] = _LastMinute()
        last.forget_older(now - MINUTE)
        return last


@final
class RedisRateLimiter:
    """Counts in Redis for all replicas; while Redis is down, in memory up to a replica's share."""

    def __init__(self, redis: RedisConnections) -> None:
        self.redis = redis
        self._local = LocalRateLimiter(redis.clock)
        self.concurrency: ConcurrencyCounter = RedisConcurrency(redis)

    async def take(self, unit: str, name: str, cap: int, amount: int = 1) -> RateWindow:
        """Count the amount, if it fits in the cap."""
        taken = Taken(unit=unit, name=name, amount=amount, id=secrets.token_hex(8))
        answer = await self._take(taken, cap)
        if answer is None:
            return await self._local.take(unit, name, self.redis.share_of(cap), amount)
        passed, used, wait_ms = answer
        return RateWindow(
            unit=unit,
            cap=cap,
            remaining=max(0, cap - used),
            reset=wait_ms / 1000,
            taken=taken if passed else None,
        )

    async def add(self, unit: str, name: str, cap: int, amount: int) -> None:
        """Count an amount that was already used, even if it exceeds the cap."""
        taken = Taken(unit=unit, name=name, amount=amount, id=secrets.token_hex(8))
        if await self._take(taken, _NO_CAP) is None:
            await self._local.add(unit, name, cap, amount)

    async def give_back(self, taken: Taken, amount: int) -> None:
        """Subtract the unused part of an amount, in Redis or in memory, where it was counted.

        If Redis counted it and does not answer now, nothing is given back.
        """
        if not taken.id:
            await self._local.give_back(taken, amount)
            return
        before, left = taken.amount, max(0, taken.amount - amount)
        taken.amount = left
        await self.redis.ask(
            lambda redis: redis.eval(_GIVE_BACK, 1, _redis_key(taken), taken.id, before, left)
        )

    async def close(self) -> None:
        """Close the connections."""
        await self.redis.close()

    async def _take(self, taken: Taken, cap: int) -> tuple[int, int, int] | None:
        """Return whether the amount fitted (0 or 1), the total, and the milliseconds to `reset`.

        The total includes the amount if it fitted. Return None if Redis does not answer.
        """
        answer: list[int] | None = await self.redis.ask(
            lambda redis: redis.eval(_TAKE, 1, _redis_key(taken), taken.id, taken.amount, cap)
        )
        return None if answer is None else (int(answer[0]), int(answer[1]), int(answer[2]))


_NO_CAP = -1


def _redis_key(taken: Taken) -> str:
    return f"batuta:rate:{{{taken.unit}:{taken.name}}}"
