"""Rates: how much a key used in the last minute, in memory or in Redis.

In memory a sliding window of two counters: the minute that runs, and the one before it as far as
it still reaches into the last 60 seconds. With several replicas the counters are in Redis; while
it cannot be reached each replica counts for itself, up to its share.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Protocol, final

import anyio

from batuta.distribution import install_hint
from batuta.errors import ConfigError
from batuta.gateway.access.concurrency import ConcurrencyCounter, LocalConcurrency, RedisConcurrency

if TYPE_CHECKING:
    from limits import RateLimitItem

MINUTE = 60.0
REQUESTS = "requests"
TOKENS = "tokens"
_REDIS_TIMEOUT = 1.0
"""Seconds that Redis may take; less, and a busy moment of this process looks like an outage."""
_REDIS_RETRY = 5.0
"""Seconds for which Redis is skipped after it failed."""
_MISSING_EXTRA = f"limits in Redis need an extra: {install_hint('redis')}"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWindow:
    """What is left of a rate."""

    unit: str
    """`requests` or `tokens`."""
    cap: int
    remaining: int
    reset: float
    """Seconds until the whole cap can be had again; for what was refused, until it may pass."""
    is_allowed: bool = True

    def headers(self) -> dict[str, str]:
        """As OpenAI's clients read them."""
        return {
            f"x-ratelimit-limit-{self.unit}": str(self.cap),
            f"x-ratelimit-remaining-{self.unit}": str(self.remaining),
            f"x-ratelimit-reset-{self.unit}": f"{self.reset:.3f}s",
        }


class RateLimiter(Protocol):
    """Counts by name.

    Laws: in any minute no more than `cap` is let through by `take` (for tokens, `add` may count
    more than that afterwards); what is refused is not counted.
    """

    async def take(self, what: str, name: str, cap: int, amount: int = 1) -> RateWindow:
        """Counts the amount, if it fits in the cap."""
        ...

    async def add(self, what: str, name: str, cap: int, amount: int) -> None:
        """Counts what was used after all, whether it fits or not."""
        ...

    @property
    def concurrency(self) -> ConcurrencyCounter:
        """Counts what goes on at the same time."""
        ...

    async def close(self) -> None:
        """Lets connections go."""
        ...


@dataclass(slots=True)
class _WindowCount:
    minute: int
    """Of the minute."""
    current: int = 0
    previous: int = 0


@final
class LocalRateLimiter:
    """In memory, of this process alone."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.concurrency: ConcurrencyCounter = LocalConcurrency()
        self._counts: dict[tuple[str, str], _WindowCount] = {}
        self._swept_minute = 0

    async def take(self, what: str, name: str, cap: int, amount: int = 1) -> RateWindow:
        """Counts the amount, if it fits in the cap."""
        count, share = self._count(what, name)
        reaching = count.previous * (1 - share)
        if reaching + count.current + amount > cap:
            wait = _seconds_until_fit(count, share, cap, amount)
            return RateWindow(
                unit=what,
                cap=cap,
                remaining=max(0, int(cap - reaching - count.current)),
                reset=wait,
                is_allowed=False,
            )
        count.current += amount
        reset = MINUTE * (2 - share)
        return RateWindow(
            unit=what, cap=cap, remaining=max(0, int(cap - reaching - count.current)), reset=reset
        )

    async def add(self, what: str, name: str, cap: int, amount: int) -> None:
        """Counts what was used after all, whether it fits or not."""
        count, _ = self._count(what, name)
        count.current = max(0, count.current + amount)

    async def close(self) -> None:
        """Nothing."""

    def _count(self, what: str, name: str) -> tuple[_WindowCount, float]:
        """The name's counters, and which part of the running minute is over."""
        number, rest = divmod(self._clock(), MINUTE)
        minute = int(number)
        if minute != self._swept_minute:
            self._counts = {k: c for k, c in self._counts.items() if c.minute >= minute - 1}
            self._swept_minute = minute
        count = self._counts.setdefault((what, name), _WindowCount(minute))
        if count.minute < minute:
            count.previous = count.current if count.minute == minute - 1 else 0
            count.current, count.minute = 0, minute
        return count, rest / MINUTE


def _seconds_until_fit(count: _WindowCount, share: float, cap: int, amount: int) -> float:
    """Seconds until the amount fits."""
    left = 1 - share
    if (
        count.current + amount <= cap
    ):  # it fits as soon as enough of the minute before is out of reach
        return MINUTE * max(0.0, left - (cap - amount - count.current) / count.previous)
    over = (
        (count.current + amount - cap) / count.current if count.current and amount <= cap else 1.0
    )
    return MINUTE * (left + over)


@final
class RedisRateLimiter:
    """In Redis, of all replicas together; raises what its client raises."""

    def __init__(self, url: str, patience: float = _REDIS_TIMEOUT, replicas: int = 1) -> None:
        """Connects on first use.

        Args:
            url: where Redis is.
            replicas: how many there are.
            patience: seconds that connecting, or an answer, may take.

        Raises:
            ConfigError: the extra is not installed, or the URL is none of Redis.
        """
        try:
            from limits import RateLimitItemPerMinute  # noqa: PLC0415 - an extra
            from limits.aio.storage import RedisStorage  # noqa: PLC0415
            from limits.aio.strategies import (  # noqa: PLC0415
                FixedWindowRateLimiter,
                SlidingWindowCounterRateLimiter,
            )
            from limits.errors import ConfigurationError  # noqa: PLC0415
        except ImportError:
            raise ConfigError(_MISSING_EXTRA) from None
        if not url.startswith(("redis://", "rediss://")):
            raise ConfigError("the setting server.redis must be a URL like redis://host:6379")
        try:
            storage = RedisStorage(
                f"async+{url}",
                implementation="redispy",
                key_prefix="batuta",
                socket_timeout=patience,
                socket_connect_timeout=patience,
            )
        except ConfigurationError:
            raise ConfigError(_MISSING_EXTRA) from None
        self._storage: Any = storage
        self.concurrency: ConcurrencyCounter = RedisConcurrency(url, replicas)
        self._item: Callable[[int], RateLimitItem] = RateLimitItemPerMinute
        self._requests = SlidingWindowCounterRateLimiter(storage)
        self._tokens = FixedWindowRateLimiter(storage)

    async def take(self, what: str, name: str, cap: int, amount: int = 1) -> RateWindow:
        """Counts the amount, if it fits in the cap."""
        item = self._item(cap)
        if what == REQUESTS:
            allowed = await self._requests.hit(item, what, name, cost=amount)
            stats = await self._requests.get_window_stats(item, what, name)
        else:  # what is counted afterwards may exceed the cap, so this window must take it
            allowed = await self._tokens.test(item, what, name, cost=amount)
            if allowed:
                await self._tokens.hit(item, what, name, cost=amount)
            stats = await self._tokens.get_window_stats(item, what, name)
        reset = max(0.0, stats.reset_time - time())
        return RateWindow(
            unit=what, cap=cap, remaining=max(0, stats.remaining), reset=reset, is_allowed=allowed
        )

    async def add(self, what: str, name: str, cap: int, amount: int) -> None:
        """Counts what was used after all, whether it fits or not."""
        if amount > 0:
            await self._tokens.hit(self._item(cap), what, name, cost=amount)

    async def close(self) -> None:
        """Closes the connections."""
        await self.concurrency.close()
        await self._storage.bridge.storage.aclose()


@final
class FallbackRateLimiter:
    """Redis while it answers; else this replica's share, in memory."""

    def __init__(
        self, shared: RateLimiter, replicas: int = 1, clock: Callable[[], float] = monotonic
    ) -> None:
        """Asks nothing yet.

        Args:
            shared: counts for all replicas.
            replicas: how many there are.
            clock: tells when to try again.
        """
        self._shared = shared
        self._local = LocalRateLimiter(clock)
        self._replicas = max(1, replicas)
        self._clock = clock
        self._down_until = float("-inf")
        self.is_down = False
        """Whether each replica counts for itself at the moment."""

    @property
    def concurrency(self) -> ConcurrencyCounter:
        """Of all replicas."""
        return self._shared.concurrency

    async def take(self, what: str, name: str, cap: int, amount: int = 1) -> RateWindow:
        """Counts the amount, if it fits in the cap."""
        if self._may_try_shared():
            try:
                with anyio.fail_after(2 * _REDIS_TIMEOUT):
                    window = await self._shared.take(what, name, cap, amount)
            except Exception as error:  # noqa: BLE001 - whatever the client raises
                self._mark_down(error)
            else:
                self._mark_up()
                return window
        return await self._local.take(what, name, max(1, cap // self._replicas), amount)

    async def add(self, what: str, name: str, cap: int, amount: int) -> None:
        """Counts what was used after all, whether it fits or not."""
        if self._may_try_shared():
            try:
                with anyio.fail_after(2 * _REDIS_TIMEOUT):
                    await self._shared.add(what, name, cap, amount)
            except Exception as error:  # noqa: BLE001 - whatever the client raises
                self._mark_down(error)
            else:
                return
        await self._local.add(what, name, cap, amount)

    async def close(self) -> None:
        """Lets connections go."""
        await self._shared.close()

    def _may_try_shared(self) -> bool:
        return self._clock() >= self._down_until

    def _mark_down(self, error: Exception) -> None:
        self._down_until = self._clock() + _REDIS_RETRY
        if not self.is_down:
            share = f"1/{self._replicas}" if self._replicas > 1 else "the whole"
            _LOG.warning(
                "Redis cannot be used (%s): this replica lets %s of each limit through",
                type(error).__name__,
                share,
            )
        self.is_down = True

    def _mark_up(self) -> None:
        if self.is_down:
            _LOG.warning("Redis can be used again")
        self.is_down = False


def open_rate_limiter(url: str = "", replicas: int = 1) -> RateLimiter:
    """In Redis if a URL is given, else in memory.

    Raises:
        ConfigError: the extra is not installed, or the URL is none of Redis.
    """
    return (
        FallbackRateLimiter(RedisRateLimiter(url, replicas=replicas), replicas)
        if url
        else LocalRateLimiter()
    )
