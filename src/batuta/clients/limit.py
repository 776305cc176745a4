"""A client that waits its turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import final

import anyio

from batuta.clients.retry import Sleep
from batuta.clients.throttle import Throttle
from batuta.core import Client, Listener, Reply, Request
from batuta.core.conductor import SILENT
from batuta.core.estimate import tokens_in
from batuta.core.run import Failure
from batuta.errors import RateLimited

MINUTE = 60.0
SHORT_TURN, LONGEST_TURN = 2.0, 30.0
"""Seconds until the turn of a call whose provider asked to slow down: a farther one than the first
is told to the listener, who may go elsewhere instead; one farther than the second is refused."""
ASSUMED_OUTPUT = 1024
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
        while grants and grants[0].at <= now - MINUTE:
            grants.popleft()
        at = max(now, grants[-1].at) if grants else now
        total = sum(grant.amount for grant in grants)
        for grant in grants:
            if total + amount <= self._limit:
                break
            at = max(at, grant.at + MINUTE)
            total -= grant.amount
        granted = _Grant(at, amount)
        grants.append(granted)
        return granted

    def give_back(self, grant: _Grant) -> None:
        """The call was never made."""
        if grant in self._grants:
            self._grants.remove(grant)


@final
class Limiter:
    """Calls at the same time, calls a minute, tokens a minute; shared between clients.

    Waiting calls are served in the order in which they came; a cancelled one gives its place
    back. Token counts are estimated when a call begins and corrected when it ends.
    """

    def __init__(
        self,
        concurrency: int,
        rpm: int | None = None,
        tpm: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = anyio.sleep,
    ) -> None:
        if concurrency < 1 or (rpm is not None and rpm < 1) or (tpm is not None and tpm < 1):
            raise ValueError("limits on concurrency, calls and tokens are at least 1")
        self._slots = anyio.Semaphore(concurrency, fast_acquire=True)
        self._calls = _Window(rpm) if rpm is not None else None
        self._tokens = _Window(tpm) if tpm is not None else None
        self._clock = clock
        self._sleep = sleep
        self.throttle = Throttle(clock=clock)

    async def run(self, inner: Client, request: Request, listener: Listener) -> Reply:
        """`inner`'s reply, begun when the limits allow it.

        Raises:
            RateLimited: the provider asked to be left alone for longer than a call waits here,
                or it does so now.
            ClientError: as `inner` or the listener does.
        """
        told = await self._tell_pause(listener)
        async with self._slots:
            grants = await self._turn(request)
            if not told:
                await self._tell_pause(listener)
            await self._sleep_until_turn()
            began = self._clock()
            try:
                reply = await inner.complete(request, listener)
            except RateLimited as error:
                self.throttle.slow(began, error.retry_after)
                raise
            self.throttle.ease()
            if self._tokens is not None:
                grants[-1].amount = reply.usage.total
            return reply

    async def _tell_pause(self, listener: Listener) -> bool:
        """Tells the listener, as a failed attempt, if the provider's pause is long.

        Raises:
            RateLimited: it is too long.
            ClientError: the listener asks somebody else instead.
        """
        wait = self.throttle.wait()
        if wait > SHORT_TURN:
            error = self._refusal(wait)
            if wait > LONGEST_TURN:
                raise error
            await listener.failed(Failure.of(error))
        return wait > SHORT_TURN

    async def _sleep_until_turn(self) -> None:
        wait = self.throttle.wait()
        if wait > LONGEST_TURN:
            raise self._refusal(wait)
        wait = self.throttle.take()
        if wait > 0:
            await self._sleep(wait)

    def _refusal(self, wait: float) -> RateLimited:
        message = "the provider has asked to slow down; nothing was sent"
        return RateLimited(message, retry_after=wait)

    async def _turn(self, request: Request) -> list[_Grant]:
        now = self._clock()
        asked: list[tuple[_Window, _Grant]] = []
        if self._calls is not None:
            asked.append((self._calls, self._calls.ask(now, 1)))
        if self._tokens is not None:
            amount = tokens_in(request) + (request.sampling.max_tokens or ASSUMED_OUTPUT)
            asked.append((self._tokens, self._tokens.ask(now, amount)))
        wait = max((grant.at - now for _, grant in asked), default=0.0)
        if wait > 0:
            try:
                await self._sleep(wait)
            except BaseException:
                for window, grant in asked:
                    window.give_back(grant)
                raise
        return [grant for _, grant in asked]


@final
class Limit:
    """Calls `inner` within a limiter's limits."""

    def __init__(self, inner: Client, limiter: Limiter) -> None:
        self.inner = inner
        self.limiter = limiter

    def __repr__(self) -> str:
        return f"Limit({self.inner!r})"

    async def complete(self, request: Request, listener: Listener = SILENT) -> Reply:
        """`inner`'s reply; the wait for a turn comes first.

        Raises:
            ClientError: as `inner` does.
        """
        return await self.limiter.run(self.inner, request, listener)
