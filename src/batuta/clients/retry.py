"""A client that tries again."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import final

import anyio

from batuta.core import CallListener, Client, Reply, Request
from batuta.core.conductor import NULL_LISTENER
from batuta.core.run import Failure
from batuta.errors import ClientError

SleepFunction = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently a call is tried again."""

    attempts: int = 3
    """Calls at most, the first included."""
    base: float = 0.5
    """Seconds: the first wait is drawn from [0, base], each next from twice as much."""
    cap: float = 8.0
    """Seconds: a drawn wait is at most this."""
    max_wait: float = 30.0
    """Seconds: a provider that asks for more is given up at once."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.base, self.cap, self.max_wait) < 0:
            raise ValueError("a retry policy has at least 1 attempt and no negative wait")

    def wait(self, attempt: int, error: ClientError, rng: random.Random) -> float | None:
        """Seconds to wait after the failed call number `attempt` (from 1); None: give up."""
        if attempt >= self.attempts or not error.retryable:
            return None
        drawn = rng.uniform(0.0, min(self.cap, self.base * 2 ** (attempt - 1)))
        asked = error.retry_after
        if asked is None:
            return drawn
        # All who were told the same moment must not come back at the same moment.
        return None if asked > self.max_wait else asked + min(drawn, 0.1 * asked)


@final
class RetryClient:
    """Tries `inner` again after errors that may pass, with exponential backoff and full jitter."""

    def __init__(
        self,
        inner: Client,
        policy: RetryPolicy = RetryPolicy(),
        *,
        rng: random.Random | None = None,
        sleep: SleepFunction = anyio.sleep,
    ) -> None:
        self.inner = inner
        self.policy = policy
        self._rng = rng or random.Random()
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"Retry({self.inner!r})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """The reply of the first call that gives one.

        Before each further call the listener is told of the failure, which carries the tokens
        and dollars that the broken call cost.

        Raises:
            ClientError: the last call's error, or one that will not pass.
            LimitReachedError: the listener allows no further call.
        """
        attempt = 1
        while True:
            try:
                return await self.inner.complete(request, listener)
            except ClientError as error:
                wait = self.policy.wait(attempt, error, self._rng)
                if wait is None:
                    raise
                failure = Failure.of(error)
            await listener.on_failure(failure)
            await self._sleep(wait)
            attempt += 1
