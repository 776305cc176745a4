"""Rate and concurrency limits of a worker, and slowing down after 429 responses.

A 429 does not mean that the provider is down, only that this key sends too much. So calls pause for
a moment, and then pass through a token bucket of one token, filled at half the previous rate of
calls. Every answer raises the rate a little; at twice the previous rate, calls are no longer
delayed. A 429 may concern one request only, and its `Retry-After` may be days. So the pause for all
other calls is short at first, doubles with each consecutive 429, and is bounded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import final

import anyio

from batuta.clients.redis_connections import RedisSlots
from batuta.clients.resilience import SleepFunction
from batuta.core import CallListener, Client, Reply, Request
from batuta.core.conductor import NULL_LISTENER
from batuta.core.run import Failure
from batuta.core.server_tools import NamedFiles, TakesFiles
from batuta.core.token_estimate import estimate_request_tokens
from batuta.errors import RateLimitError

WINDOW_SECONDS = 60.0
SHORT_WAIT_SECONDS, MAX_WAIT_SECONDS = 2.0, 30.0
"""After a 429, a wait longer than `SHORT_WAIT_SECONDS` is reported to the listener, which may use
another worker instead; a call that must wait longer than `MAX_WAIT_SECONDS` is refused."""
ASSUMED_OUTPUT_TOKENS = 1024
"""Output tokens assumed while a call runs, if the request sets no limit."""


@dataclass(slots=True, eq=False)
class _Grant:
    """An entry of a window: calls or tokens, and the time from which they may be used."""

    at: float
    amount: int


class _Window:
    """A sliding window that grants at most `limit` in any minute, in the order of requests."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._grants: deque[_Grant] = deque()

    def ask(self, now: float, amount: int) -> _Grant:
        """Return a grant at the earliest moment that respects the limit, now or later.

        An amount above the whole limit is granted alone, in an empty window.
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
        """Remove a grant whose call was never made."""
        if grant in self._grants:
            self._grants.remove(grant)


@final
class CallLimiter:
    """Limits on concurrent calls, calls per minute and tokens per minute; shared by clients.

    A limit of None does not apply. The calls of this process are served in the order of arrival; a
    cancelled call frees its slot. Token counts are estimated when a call begins and corrected when
    its reply is received. With `shared` the limits hold over all processes; while Redis is
    unavailable, this process uses its share of them.
    """

    def __init__(
        self,
        concurrency: int,
        rpm: int | None = None,
        tpm: int | None = None,
        *,
        shared: RedisSlots | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: SleepFunction = anyio.sleep,
    ) -> None:
        if concurrency < 1 or (rpm is not None and rpm < 1) or (tpm is not None and tpm < 1):
            raise ValueError("limits on concurrency, calls and tokens must be at least 1")
        self._shared = shared
        processes = 1 if shared is None else shared.processes
        self._slots = anyio.Semaphore(concurrency, fast_acquire=True)
        self._own_slots = anyio.Semaphore(max(1, concurrency // processes), fast_acquire=True)
        """This process's share of the concurrent calls while Redis is unavailable."""
        self._calls = _Window(max(1, rpm // processes)) if rpm is not None else None
        self._tokens = _Window(max(1, tpm // processes)) if tpm is not None else None
        self._clock = clock
        self._sleep = sleep
        self.throttle = Throttle(clock=clock)

    async def run(self, inner: Client, request: Request, listener: CallListener) -> Reply:
        """Call `inner` as soon as the limits allow it, and return its reply.

        Raises:
            RateLimitError: the provider answered 429, or the pause after an earlier 429 is longer
                than a call may wait.
            ClientError: the call failed, or the listener does not wait for a long pause.
            LimitReachedError: the listener allows no further attempt after a long pause.
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
        """Call `inner` as soon as this process's limits per minute allow it; return its reply."""
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
        """Call `inner` after any pause that the provider's 429s require; return its reply."""
        if not reported:
            await self._report_pause(listener)
        await self._sleep_until_slot()
        began = self._clock()
        try:
            reply = await inner.complete(request, listener)
        except RateLimitError as error:
            self.throttle.record_rate_limit(began, error.retry_after)
            raise
        self.throttle.record_success()
        return reply

    async def _report_pause(self, listener: CallListener) -> bool:
        """Report a long pause to the listener as a failed attempt; return True if it was reported.

        Raises:
            RateLimitError: the pause is longer than a call may wait.
            ClientError: the listener does not wait.
            LimitReachedError: the listener allows no further attempt.
        """
        if not self.throttle.was_ever_slowed:
            return False
        wait = self.throttle.remaining_wait()
        if wait > SHORT_WAIT_SECONDS:
            error = self._rate_limit_error(wait)
            if wait > MAX_WAIT_SECONDS:
                raise error
            await listener.on_failure(Failure.of(error))
        return wait > SHORT_WAIT_SECONDS

    async def _sleep_until_slot(self) -> None:
        throttle = self.throttle
        while True:
            if throttle.was_ever_slowed and (wait := throttle.remaining_wait()) > MAX_WAIT_SECONDS:
                raise self._rate_limit_error(wait)
            extensions, wait = throttle.extensions, throttle.reserve_slot()
            if wait > 0:
                await self._sleep(wait)
            if extensions == throttle.extensions:  # no 429 came while this call was waiting
                return

    def _rate_limit_error(self, wait: float) -> RateLimitError:
        message = "the provider has asked to slow down; nothing was sent"
        return RateLimitError(message, retry_after=wait)

    async def _wait_for_grants(self, request: Request) -> list[_Grant]:
        now = self._clock()
        granted: list[tuple[_Window, _Grant]] = []
        if self._calls is not None:
            granted.append((self._calls, self._calls.ask(now, 1)))
        if self._tokens is not None:
            granted.append((self._tokens, self._tokens.ask(now, _token_estimate(request))))
        wait = max((grant.at - now for _, grant in granted), default=0.0)
        if wait > 0:
            try:
                await self._sleep(wait)
            except BaseException:
                for window, grant in granted:
                    window.give_back(grant)
                raise
        return [grant for _, grant in granted]


def _token_estimate(request: Request) -> int:
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
        """Return `inner`'s reply after waiting for the limits.

        Raises:
            RateLimitError, ClientError, LimitReachedError: see `CallLimiter.run`.
        """
        return await self.limiter.run(self.inner, request, listener)

    def with_files(self, files: NamedFiles) -> RateLimitedClient:
        """Return a client whose programs can read `files`; this client if `inner` takes none."""
        if not isinstance(self.inner, TakesFiles):
            return self
        return RateLimitedClient(self.inner.with_files(files), self.limiter)


_RATE_WINDOW_SECONDS = 10.0
"""Seconds over which the rate of calls is measured."""
_MIN_RATE = 2.0
"""Minimum rate after a pause, in calls per second; a provider with a lower limit sends new 429s."""
_UNNAMED_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 2.0, 30.0
"""Seconds: the first pause if the provider names none, the longest first pause if it names one, and
the longest pause of all. Each consecutive 429 doubles the first two, up to the third."""
_RATE_INCREASE = 1.1
"""Factor by which each answer raises the rate."""


@final
class Throttle:
    """The pause and the token bucket after 429 responses; computes times and never waits."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent: deque[float] = deque()
        self._rate = inf
        self._rate_before = inf
        """Calls per second before calls were slowed; infinite before the first 429."""
        self._next = 0.0
        """The time at which the next call may begin; 0 before the first 429."""
        self._slowed = -inf
        """The time at which the rate was last lowered."""
        self._consecutive = 0
        """The number of consecutive 429 responses; concurrent calls count as one."""
        self.extensions = 0
        """The number of times that the pause was extended."""

    @property
    def rate(self) -> float:
        """Calls per second that are let through; infinite if calls are not slowed."""
        return self._rate

    @property
    def was_ever_slowed(self) -> bool:
        """Whether the provider has ever answered 429; if not, no call waits."""
        return self._next > 0.0

    def remaining_wait(self) -> float:
        """Return the seconds until the next call may begin."""
        return max(0.0, self._next - self._clock())

    def reserve_slot(self) -> float:
        """Reserve the next slot; return the seconds until the slot begins."""
        now = self._clock()
        at = max(now, self._next)
        if self._rate < inf:
            self._next = at + 1 / self._rate
        self._sent.append(at)
        while self._sent[0] < now - _RATE_WINDOW_SECONDS:
            self._sent.popleft()
        return at - now

    def record_rate_limit(self, began: float, retry_after: float | None) -> None:
        """Record a 429 response.

        Args:
            began: when the call began; 429s of concurrent calls lower the rate only once.
            retry_after: seconds that the provider asked to wait, if it did.
        """
        now = self._clock()
        if began >= self._slowed:
            self._consecutive += 1
            if self._rate == inf:
                self._rate_before = max(self._recent_rate(now), 2 * _MIN_RATE)
            self._rate = max(_MIN_RATE, min(self._rate, self._rate_before) / 2)
            self._slowed = now
        first = _UNNAMED_PAUSE_SECONDS if retry_after is None else _FIRST_PAUSE_SECONDS
        longest = min(first * 2.0 ** min(self._consecutive - 1, 10), _MAX_PAUSE_SECONDS)
        until = now + (longest if retry_after is None else min(retry_after, longest))
        if until > self._next:
            self._next = until
            self.extensions += 1

    def _recent_rate(self, now: float) -> float:
        elapsed = now - self._sent[0] if self._sent else 0.0
        return len(self._sent) / min(max(elapsed, 1.0), _RATE_WINDOW_SECONDS)

    def record_success(self) -> None:
        """Record that the provider answered a call."""
        self._consecutive = 0
        if self._rate < inf:
            self._rate *= _RATE_INCREASE
            if self._rate >= 2 * self._rate_before:
                self._rate = inf
