"""A client that waits its turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import final

import anyio

from batuta.clients.limits_shared import SharedTurns
from batuta.clients.retry import SleepFunction
from batuta.clients.throttle import Throttle
from batuta.core import CallListener, Client, Reply, Request
from batuta.core.conductor import NULL_LISTENER
from batuta.core.run import Failure
from batuta.core.token_estimate import estimate_request_tokens
from batuta.errors import RateLimitError

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
    """At most `limit` in any minute, granted in the order asked for."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._grants: deque[_Grant] = deque()

    def ask(self, now: float, amount: int) -> _Grant:
        """A grant at the first moment that keeps the limit, now or later.

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
            raise ValueError("limits on concurrency, calls and tokens are at least 1")
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
            ClientError: as `inner` or the listener does.
        """
        told = await self._report_pause(listener)

        async def call() -> Reply:
            return await self._call(inner, request, listener, told=told)

        async with self._slots:
            if self._shared is not None:
                reply = await self._shared.run(_token_estimate(request), call)
                if reply is not None:
                    return reply
            async with self._own_slots:
                grants = await self._wait_for_grants(request)
                reply = await call()
                if self._tokens is not None:
                    grants[-1].amount = reply.usage.total
                return reply

    async def _call(
        self, inner: Client, request: Request, listener: CallListener, *, told: bool
    ) -> Reply:
        """`inner`'s reply, as soon as the provider is not to be skipped any more."""
        if not told:
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
        wait = self.throttle.wait()
        if wait > SHORT_WAIT_SECONDS:
            error = self._rate_limit_error(wait)
            if wait > MAX_WAIT_SECONDS:
                raise error
            await listener.on_failure(Failure.of(error))
        return wait > SHORT_WAIT_SECONDS

    async def _sleep_until_turn(self) -> None:
        wait = self.throttle.wait()
        if wait > MAX_WAIT_SECONDS:
            raise self._rate_limit_error(wait)
        wait = self.throttle.next_turn()
        if wait > 0:
            await self._sleep(wait)

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
    """Tokens that the call is taken to need until they are known."""
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
        """`inner`'s reply; the wait for a turn comes first.

        Raises:
            ClientError: as `inner` does.
        """
        return await self.limiter.run(self.inner, request, listener)
