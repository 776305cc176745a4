"""Redis as the processes of one deployment share it: what is counted there holds over all of them.

While Redis does not answer, whoever asks is told so at once and counts for itself: each process
then lets its part of every limit through.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast, final

import anyio

from batuta.distribution import install_hint
from batuta.errors import ConfigError

REST_S = 5.0
"""Seconds for which Redis is skipped after it failed."""
TIMEOUT_S = 2.0
"""Seconds that Redis may take; less, and a busy moment of this process looks like an outage."""
CONNECTIONS = 8
"""Connections of each event loop: an answer takes Redis a tenth of a millisecond, and whoever finds
none free waits for one."""
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


@final
class RedisConnections:
    """A pool of connections for each event loop, and whether Redis answers."""

    def __init__(
        self,
        url: str,
        processes: int = 1,
        *,
        patience: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect on first use.

        Args:
            url: redis://host:6379.
            processes: how many share it.
            patience: seconds that connecting, or an answer, may take.
            clock: tells when to try again.

        Raises:
            ConfigError: the extra is missing, or the URL is none of Redis.
        """
        try:
            from redis import asyncio as redis  # noqa: PLC0415 - an extra
            from redis.exceptions import RedisError  # noqa: PLC0415
        except ImportError:
            raise ConfigError(f"limits in Redis need an extra: {install_hint('redis')}") from None
        if not url.startswith(("redis://", "rediss://")):
            raise ConfigError("the setting server.redis must be a URL like redis://host:6379")
        self.processes = max(1, processes)
        self.clock = clock
        self._errors: tuple[type[Exception], ...] = (RedisError, OSError, TimeoutError)
        self._url = url
        self._patience = patience
        self._module = cast("Any", redis)
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = (
            weakref.WeakKeyDictionary()
        )
        self._down_until = float("-inf")
        self.is_down = False
        """Whether each process counts for itself at the moment."""

    async def ask(self, ask: Callable[[Any], Awaitable[_T]]) -> _T | None:
        """Return Redis's answer; None while it is away."""
        if self.clock() < self._down_until:
            return None
        try:
            with anyio.fail_after(2 * self._patience):
                answer = await ask(self._client())
        except self._errors as error:
            self._note_failure(error)
            return None
        if self.is_down:
            _LOG.warning("Redis can be used again")
        self.is_down = False
        return answer

    async def close(self) -> None:
        """Close this event loop's connections."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose(close_connection_pool=True)

    def share_of(self, limit: int) -> int:
        """Return the part of a limit that this process lets through while it counts for itself."""
        return max(1, limit // self.processes)

    def _client(self) -> Any:
        loop = asyncio.get_running_loop()
        found = self._clients.get(loop)
        if found is None:
            pool = self._module.BlockingConnectionPool.from_url(
                self._url,
                max_connections=CONNECTIONS,
                timeout=None,
                socket_timeout=self._patience,
                socket_connect_timeout=self._patience,
            )
            found = self._clients[loop] = self._module.Redis(connection_pool=pool)
        return found

    def _note_failure(self, error: Exception) -> None:
        """Skip Redis for a while; that is said once until it answers again."""
        self._down_until = self.clock() + REST_S
        if not self.is_down:
            share = f"1/{self.processes}" if self.processes > 1 else "the whole"
            kind = type(error).__name__
            _LOG.warning(
                "Redis cannot be used (%s): this process lets %s of each limit through", kind, share
            )
        self.is_down = True
