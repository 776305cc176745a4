"""Circuit breaker and retries around a provider's client.

A closed breaker lets calls pass. After `failures` in a row it opens: calls fail immediately, so
that another worker takes over without a wait. After a pause one call is let through. If that call
is answered, the breaker closes; if the provider fails it, the breaker opens again for twice as
long, up to `longest`. If it ends otherwise, or takes longer than the pause, the next call is let
through: a long answer is no failure.
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
"""Errors that do not mean that the provider is down; `RateLimitedClient` handles rate limits."""
_PROXY_TIMEOUTS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.GATEWAY_TIMEOUT, 524)
"""Statuses of a proxy whose upstream did not answer in time; 524 is Cloudflare's."""
_LATENCY_WEIGHT = 0.2
"""Weight of the latest call in the moving average of the latency."""


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a breaker opens, and for how long."""

    failures: int = 5
    """Number of consecutive failures after which the breaker opens."""
    pause: float = 15.0
    """Seconds of the first pause; each following pause is twice as long, up to `longest`."""
    longest: float = 300.0
    """Maximum seconds of a pause."""

    def __post_init__(self) -> None:
        if self.failures < 1 or self.pause <= 0 or self.longest < self.pause:
            raise ValueError(
                "a breaker needs at least 1 failure to open, a first pause of more than 0 seconds, "
                "and a longest pause that is not shorter"
            )


class BreakerState(StrEnum):
    """The states of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """One call is in flight to probe whether the provider answers again."""


@final
class WorkerHealth:
    """A worker's recent calls and its breaker state, shared by all its callers."""

    def __init__(
        self,
        policy: BreakerPolicy = BreakerPolicy(),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self._clock = clock
        self._until: float | None = None
        """The time from which the next call may probe; None while the breaker is closed."""
        self._pause = policy.pause
        """Seconds of the current or next pause."""
        self._probing = False
        self.calls = 0
        """Number of calls that the provider answered or failed."""
        self.failures = 0
        """Number of calls that the provider failed."""
        self.row = 0
        """Number of failures since the last answer."""
        self.opened = 0
        """Number of times that the breaker opened."""
        self.seconds: float | None = None
        """Moving average of the seconds of answered calls; None before the first answer."""
        self.error: str | None = None
        """The code of the last failure; None before the first failure."""
        self.reason = ""
        """The provider's message of the last failure; it may repeat another caller's request, so
        only the operator is shown it."""

    @property
    def state(self) -> BreakerState:
        """The state of the breaker."""
        if self._until is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if self._probing else BreakerState.OPEN

    @property
    def wait(self) -> float:
        """Seconds until the next call may probe the provider; 0 while the breaker is closed."""
        if self._until is None:
            return 0.0
        return max(0.0, self._until - self._clock())

    def allow_call(self) -> bool:
        """Return True if a call may be made; report its end by one of the three methods below.

        While the breaker is open, an allowed call probes the provider.
        """
        if self._until is None:
            return True
        if self.wait > 0:
            return False
        self._probing, self._until = True, self._clock() + self._pause
        return True

    def record_success(self, seconds: float) -> None:
        """Record that the call was answered."""
        self.calls += 1
        self.row = 0
        self._until, self._pause, self._probing = None, self.policy.pause, False
        old = seconds if self.seconds is None else self.seconds
        self.seconds = old + _LATENCY_WEIGHT * (seconds - old)

    def record_failure(self, code: str, reason: str = "") -> None:
        """Record that the provider failed the call."""
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
        """Record that the call ended without a sign of the provider's health."""
        if self._probing:
            self._probing, self._until = False, self._clock()


@final
class CircuitBreakerClient:
    """Calls `inner` unless the worker's circuit breaker is open."""

    def __init__(self, inner: Client, health: WorkerHealth, worker: str) -> None:
        self.inner = inner
        self.health = health
        self._worker = worker

    def __repr__(self) -> str:
        return f"Breaker({self.inner!r}, {self.health.state})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return `inner`'s reply.

        Raises:
            CircuitOpenError: the breaker is open, or another call probes the provider; nothing was
                sent.
            ClientError: the call failed.
            LimitReachedError: the listener allows no further attempt.
        """
        health = self.health
        if not health.allow_call():
            wait = max(health.wait, 1.0)
            raise CircuitOpenError(
                f"{self._worker} failed {health.row} time{'' if health.row == 1 else 's'} in a "
                f"row, the last time {health.error}, and is skipped for {wait:.0f} s",
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
        except BaseException:  # cancelled, or a limit of the run: not the provider's fault
            health.record_abandoned()
            raise
        health.record_success(time.perf_counter() - began)
        return reply


SleepFunction = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a call is retried, and after which waits."""

    attempts: int = 3
    """Maximum number of attempts, including the first."""
    base: float = 0.5
    """Seconds: the first wait is drawn from [0, base], each following wait from twice as much."""
    cap: float = 8.0
    """Maximum seconds of a drawn wait."""
    max_wait: float = 30.0
    """Seconds: if the provider asks to wait longer, the call is not retried."""
    max_silence: float = 60.0
    """Seconds: a call that timed out later than this is not retried. The caller has waited long
    enough, and the reasoning of a silent model is billed for every attempt."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.base, self.cap, self.max_wait, self.max_silence) < 0:
            raise ValueError("a retry policy needs at least 1 attempt and no negative wait")

    def wait(self, attempt: int, error: ClientError, rng: random.Random) -> float | None:
        """Return the seconds to wait after failed attempt number `attempt` (from 1).

        None means that the call is not retried.
        """
        if attempt >= self.attempts or not error.retryable:
            return None
        drawn = rng.uniform(0.0, min(self.cap, self.base * 2 ** (attempt - 1)))
        retry_after = error.retry_after
        if retry_after is None:
            return drawn
        if retry_after > self.max_wait:
            return None
        # Jitter, so that calls with the same `Retry-After` are not repeated at the same moment.
        return retry_after + min(drawn, 0.1 * retry_after)


def _is_silence(error: ClientError) -> bool:
    """Return True if the model did not answer in time, to us or to a proxy."""
    return isinstance(error, ProviderTimeoutError) or error.status in _PROXY_TIMEOUTS


@final
class RetryClient:
    """Retries `inner` after transient errors, with exponential backoff and full jitter."""

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
        """See `providers.Identity`."""
        self.policy = policy
        self._rng = rng or random.Random()
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"Retry({self.inner!r})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply of the first successful attempt.

        Before each further attempt the listener receives the failure, with the usage and cost of
        the failed attempt.

        Raises:
            ClientError: the last attempt failed, an error is not retried, or the listener forbids a
                further attempt.
            LimitReachedError: the budget does not allow a further attempt.
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
