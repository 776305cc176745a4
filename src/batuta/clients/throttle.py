"""How fast a provider is called that has asked to slow down (429). Shared by all who call it.

The provider works: it only says that this key sends too much. So calls pause for as long as it
asks, and then pass through a token bucket of one token, filled at half the rate at which it was
called before. Every answer fills it a little faster, until it no longer holds anybody back.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import final

_RATE_WINDOW_SECONDS = 10.0
"""Seconds over which the rate of calls is seen."""
_MIN_RATE = 2.0
"""Calls a second that are let through after any pause: what is slower still, its pauses tell."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 30.0
"""Seconds of the pause where the provider names none; each in a row is twice as long."""
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

    @property
    def rate(self) -> float:
        """Calls a second that are let through; infinite if nobody is held back."""
        return self._rate

    def wait(self) -> float:
        """Seconds until the next call's turn."""
        return max(0.0, self._next - self._clock())

    def next_turn(self) -> float:
        """The next turn, taken: seconds until it."""
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
        if retry_after is None:
            retry_after = min(
                _FIRST_PAUSE_SECONDS * 2.0 ** min(self._row - 1, 10), _MAX_PAUSE_SECONDS
            )
        self._next = max(self._next, now + retry_after)

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
