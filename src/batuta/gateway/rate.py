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

from batuta.errors import ConfigError

if TYPE_CHECKING:
    from limits import RateLimitItem

MINUTE = 60.0
REQUESTS = "requests"
TOKENS = "tokens"
_PATIENCE = 0.25
"""Seconds that Redis may take."""
_REST = 5.0
"""Seconds for which Redis is left alone after it failed."""
_EXTRA = "limits in Redis need an extra: pip install 'batuta[redis]'"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Window:
    """What is left of a rate."""

    what: str
    """`requests` or `tokens`."""
    cap: int
    remaining: int
    reset: float
    """Seconds until the whole cap can be had again; for what was refused, until it may pass."""
    allowed: bool = True

    def headers(self) -> dict[str, str]:
        """As OpenAI's clients read them."""
        return {
            f"x-ratelimit-limit-{self.what}": str(self.cap),
            f"x-ratelimit-remaining-{self.what}": str(self.remaining),
            f"x-ratelimit-reset-{self.what}": f"{self.reset:.3f}s",
        }


class Rates(Protocol):
    """Counts by name.

    Laws: in any minute no more than `cap` is let through by `take` (for tokens, `add` may count
    more than that afterwards); what is refused is not counted.
    """

    async def take(self, what: str, name: str, cap: int, amount: int = 1) -> Window:
        """Counts the amount, if it fits in the cap."""
        ...

    async def add(self, what: str, name: str, cap: int, amount: int) -> None:
        """Counts what was used after all, whether it fits or not."""
        ...

    async def close(self) -> None:
        """Lets connections go."""
        ...


@dataclass(slots=True)
class _Count:
    number: int
    """Of the minute."""
    now: int = 0
    before: int = 0


@final
class LocalRates:
    """In memory, of this process alone."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._counts: dict[tuple[str, str], _Count] = {}
        self._swept = 0

    async def take(self, what: str, name: str, cap: int, amount: int = 1) -> Window:
        """Counts the amount, if it fits in the cap."""
        count, share = self._count(what, name)
        reaching = count.before * (1 - share)
        if reaching + count.now + amount > cap:
            wait = _wait(count, share, cap, amount)
            return Window(what, cap, max(0, int(cap - reaching - count.now)), wait, allowed=False)
        count.now += amount
        reset = MINUTE * (2 - share)
        return Window(what, cap, max(0, int(cap - reaching - count.now)), reset)

    async def add(self, what: str, name: str, cap: int, amount: int) -> None:
        """Counts what was used after all, whether it fits or not."""
        count, _ = self._count(what, name)
        count.now = max(0, count.now + amount)

    async def close(self) -> None:
        """Nothing."""

    def _count(self, what: str, name: str) -> tuple[_Count, float]:
        """The name's counters, and which part of the running minute is over."""
        number, rest = divmod(self._clock(), MINUTE)
        minute = int(number)
        if minute != self._swept:
            self._counts = {k: c for k, c in self._counts.items() if c.number >= minute - 1}
            self._swept = minute
        count = self._counts.setdefault((what, name), _Count(minute))
        if count.number < minute:
            count.before = count.now if count.number == minute - 1 else 0
            count.now, count.number = 0, minute
        return count, rest / MINUTE


def _wait(count: _Count, share: float, cap: int, amount: int) -> float:
    """Seconds until the amount fits."""
    left = 1 - share
    if count.now + amount <= cap:  # it fits as soon as enough of the minute before is out of reach
        return MINUTE * max(0.0, left - (cap - amount - count.now) / count.before)
    over = (count.now + amount - cap) / count.now if count.now and amount <= cap else 1.0
    return MINUTE * (left + over)


@final
class RedisRates:
    """In Redis, of all replicas together; raises what its client raises."""

    def __init__(self, url: str, patience: float = _PATIENCE) -> None:
        """Connects on first use.

        Args:
            url: where Redis is.
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
            raise ConfigError(
                "limits in Redis need an extra: pip install 'batuta[redis]'"
            ) from None
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
            raise ConfigError(_EXTRA) from None
        self._storage: Any = storage
        self._item: Callable[[int], RateLimitItem] = RateLimitItemPerMinute
        self._requests = SlidingWindowCounterRateLimiter(storage)
        self._tokens = FixedWindowRateLimiter(storage)

    async def take(self, what: str, name: str, cap: int, amount: int = 1) -> Window:
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
        return Window(what, cap, max(0, stats.remaining), reset, allowed=allowed)

    async def add(self, what: str, name: str, cap: int, amount: int) -> None:
        """Counts what was used after all, whether it fits or not."""
        if amount > 0:
            await self._tokens.hit(self._item(cap), what, name, cost=amount)

    async def close(self) -> None:
        """Closes the connections."""
        await self._storage.bridge.storage.aclose()


@final
class SharedRates:
    """Redis while it answers; else this replica's share, in memory."""

    def __init__(
        self, shared: Rates, replicas: int = 1, clock: Callable[[], float] = monotonic
    ) -> None:
        """Asks nothing yet.

        Args:
            shared: counts for all replicas.
            replicas: how many there are.
            clock: tells when to try again.
        """
        self._shared = shared
        self._local = LocalRates(clock)
        self._replicas = max(1, replicas)
        self._clock = clock
        self._down_until = float("-inf")
        self.down = False
        """Whether each replica counts for itself at the moment."""

    async def take(self, what: str, name: str, cap: int, amount: int = 1) -> Window:
        """Counts the amount, if it fits in the cap."""
        if self._may_ask():
            try:
                with anyio.fail_after(2 * _PATIENCE):
                    window = await self._shared.take(what, name, cap, amount)
            except Exception as error:  # noqa: BLE001 - whatever the client raises
                self._failed(error)
            else:
                self._worked()
                return window
        return await self._local.take(what, name, max(1, cap // self._replicas), amount)

    async def add(self, what: str, name: str, cap: int, amount: int) -> None:
        """Counts what was used after all, whether it fits or not."""
        if self._may_ask():
            try:
                with anyio.fail_after(2 * _PATIENCE):
                    await self._shared.add(what, name, cap, amount)
            except Exception as error:  # noqa: BLE001 - whatever the client raises
                self._failed(error)
            else:
                return
        await self._local.add(what, name, cap, amount)

    async def close(self) -> None:
        """Lets connections go."""
        await self._shared.close()

    def _may_ask(self) -> bool:
        return self._clock() >= self._down_until

    def _failed(self, error: Exception) -> None:
        self._down_until = self._clock() + _REST
        if not self.down:
            share = f"1/{self._replicas}" if self._replicas > 1 else "the whole"
            _LOG.warning(
                "Redis cannot be used (%s): this replica lets %s of each limit through",
                type(error).__name__,
                share,
            )
        self.down = True

    def _worked(self) -> None:
        if self.down:
            _LOG.warning("Redis can be used again")
        self.down = False


def open_rates(url: str = "", replicas: int = 1) -> Rates:
    """In Redis if a URL is given, else in memory.

    Raises:
        ConfigError: the extra is not installed, or the URL is none of Redis.
    """
    return SharedRates(RedisRates(url), replicas) if url else LocalRates()
