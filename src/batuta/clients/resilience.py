"""Clients around a provider's: they leave it alone for a while, and try again.

The circuit breaker. Closed: calls pass. After `failures` in a row it opens: calls fail at once, so
that another worker takes over without a wait. After a pause one call is let through; if it is
answered the breaker closes, else it opens again for twice as long.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import final

import anyio

from batuta.core import CallListener, Client, Reply, Request
from batuta.core.conductor import NULL_LISTENER
from batuta.core.redaction import clean_message
from batuta.core.run import Failure
from batuta.errors import (
    BadRequestError,
    CircuitOpenError,
    ClientError,
    ContextLengthError,
    NotRecordedError,
    ProviderTimeoutError,
    RateLimitError,
)

_REQUEST_ERRORS = (BadRequestError, ContextLengthError, NotRecordedError, RateLimitError)
"""Errors that say nothing about whether the provider works: it slows, and `RateLimitedClient` sees
to that."""
_PROXY_TIMEOUTS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.GATEWAY_TIMEOUT, 524)
"""Statuses of a proxy whose model did not answer in time; the last one is Cloudflare's."""
_LATENCY_WEIGHT = 0.2
"""Weight of the latest call in the mean of seconds."""


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """The conditions under which a breaker opens, and for how long."""

    failures: int = 5
    """Number of failures in a row."""
    pause: float = 15.0
    """Seconds; the first one, each next is twice as long."""
    longest: float = 300.0

    def __post_init__(self) -> None:
        if self.failures < 1 or self.pause <= 0 or self.longest < self.pause:
            raise ValueError("a breaker opens after 1 failure or more, for more than 0 seconds")


class BreakerState(StrEnum):
    """The states of a breaker, which says whether calls pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """One call is on its way to see whether the provider answers again."""


@final
class WorkerHealth:
    """How a worker has been doing, for all who call it; reading it costs nothing."""

    def __init__(
        self,
        policy: BreakerPolicy = BreakerPolicy(),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self._clock = clock
        self._until: float | None = None
        self._pause = policy.pause
        self._probing = False
        self.calls = 0
        """Calls that ended, answered or not."""
        self.failures = 0
        """Number of those calls that the provider failed."""
        self.row = 0
        """Failures since the last answer."""
        self.opened = 0
        """Times that the breaker opened."""
        self.seconds: float | None = None
        """Seconds of an answered call, the latest weighing most; None if none was answered yet."""
        self.error: str | None = None
        """The code of the last failure."""
        self.reason = ""
        """The provider's message of the last failure; it may repeat another caller's request, so
        only the operator is shown it."""

    @property
    def state(self) -> BreakerState:
        """Tell whether calls pass."""
        if self._until is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if self._probing else BreakerState.OPEN

    @property
    def wait(self) -> float:
        """Seconds until a call is let through; 0 if one would be now."""
        if self._until is None:
            return 0.0
        return max(0.0, self._until - self._clock())

    def allow_call(self) -> bool:
        """Return True if a call may be made; a probe must end in one of the three methods below."""
        if self._until is None:
            return True
        if self._probing or self.wait > 0:
            return False
        self._probing = True
        return True

    def record_success(self, seconds: float) -> None:
        """Note that the call was answered."""
        self.calls += 1
        self.row = 0
        self._until, self._pause, self._probing = None, self.policy.pause, False
        old = seconds if self.seconds is None else self.seconds
        self.seconds = old + _LATENCY_WEIGHT * (seconds - old)

    def record_failure(self, code: str, reason: str = "") -> None:
        """Note that the provider failed the call."""
        self.calls += 1
        self.failures += 1
        self.row += 1
        self.error, self.reason = code, reason
        if self._probing:
            self._pause = min(self._pause * 2, self.policy.longest)
        if self._probing or (self._until is None and self.row >= self.policy.failures):
            self._until = self._clock() + self._pause
            self.opened += 1
        self._probing = False

    def record_abandoned(self) -> None:
        """Note that the call ended without telling anything about the provider."""
        self._probing = False


@final
class CircuitBreakerClient:
    """Calls `inner` unless its provider is skipped."""

    def __init__(self, inner: Client, health: WorkerHealth, worker: str) -> None:
        self.inner = inner
        self.health = health
        self._worker = worker

    def __repr__(self) -> str:
        return f"Breaker({self.inner!r}, {self.health.state})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return `inner`'s reply.

        Raises:
            CircuitOpenError: the provider has failed too often; nothing was sent.
        """
        health = self.health
        if not health.allow_call():
            wait = max(health.wait, 1.0)
            raise CircuitOpenError(
                f"{self._worker} failed {health.row} times in a row, the last time "
                f"{health.error}, and is skipped for {wait:.0f} s",
                retry_after=wait,
            )
        began = time.perf_counter()
        try:
            reply = await self.inner.complete(request, listener)
        except _REQUEST_ERRORS:
            health.record_abandoned()
            raise
        except ClientError as error:
            health.record_failure(error.code, clean_message(str(error)))
            raise
        except BaseException:  # cancelled, or a limit of the run: not the provider's doing
            health.record_abandoned()
            raise
        health.record_success(time.perf_counter() - began)
        return reply


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
    max_silence: float = 60.0
    """Seconds: a call that was silent for longer is not made again. Whoever asked has waited
    enough, and what a silent model thought is billed each time."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.base, self.cap, self.max_wait, self.max_silence) < 0:
            raise ValueError("a retry policy needs at least 1 attempt and no negative wait")

    def wait(self, attempt: int, error: ClientError, rng: random.Random) -> float | None:
        """Return the seconds to wait after the failed call number `attempt` (from 1).

        None means to give up.
        """
        if attempt >= self.attempts or not error.retryable:
            return None
        drawn = rng.uniform(0.0, min(self.cap, self.base * 2 ** (attempt - 1)))
        asked = error.retry_after
        if asked is None:
            return drawn
        # All who were told the same moment must not come back at the same moment.
        return None if asked > self.max_wait else asked + min(drawn, 0.1 * asked)


def _is_silence(error: ClientError) -> bool:
    """Return True if nothing came from the model in time, to us or to a proxy before it."""
    return isinstance(error, ProviderTimeoutError) or error.status in _PROXY_TIMEOUTS


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
        identity: Mapping[str, str] | None = None,
    ) -> None:
        self.inner = inner
        self.identity: Mapping[str, str] = identity or {}
        """See `clients.identity`."""
        self.policy = policy
        self._rng = rng or random.Random()
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"Retry({self.inner!r})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply of the first call that gives one.

        Before each further call the listener is told of the failure, which carries the tokens
        and dollars that the broken call cost.

        Raises:
            ClientError: the last call's error, or one that will not pass.
            LimitReachedError: the listener allows no further call.
        """
        attempt = 1
        while True:
            began = time.monotonic()
            try:
                return await self.inner.complete(request, listener)
            except ClientError as error:
                wait = self.policy.wait(attempt, error, self._rng)
                lasted = time.monotonic() - began
                if wait is None or (_is_silence(error) and lasted > self.policy.max_silence):
                    raise
                failure = Failure.of(error)
            await listener.on_failure(failure)
            await self._sleep(wait)
            attempt += 1
