"""Requests for answers run so many at once; others wait in a bounded queue, or are refused."""

from __future__ import annotations

from typing import final

import anyio

from batuta.gateway.errors import APIError, server_closing
from batuta.gateway.http.server_limits import ConcurrencyLimits

LIMITED_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)
"""Where answers are asked for; everything else is quick and always let in."""


@final
class ConcurrencyLimiter:
    """The places of one server, and who waits for one."""

    def __init__(self, limits: ConcurrencyLimits | None = None) -> None:
        self._limits = limits = limits or ConcurrencyLimits()
        self._slots = anyio.Semaphore(limits.max_running, fast_acquire=True)
        self.waiting = 0
        """Requests that wait."""
        self.running = 0
        """Requests that have a place."""
        self.rejected = 0
        """Requests that found the queue full, or waited too long."""
        self.is_closing = False
        """Whether nobody new is let in, because the server stops."""
        self._empty = anyio.Event()

    def close(self) -> None:
        """Lets nobody new in."""
        self.is_closing = True
        if not self.running:
            self._empty.set()

    async def wait_until_empty(self) -> None:
        """Waits, after `close`, until the last one is served."""
        await self._empty.wait()

    def slot(self) -> Slot:
        """A place for the length of a block.

        Raises:
            APIError: when the block is entered: there is none, and none came free in time; or the
                server stops.
        """
        return Slot(self)

    async def acquire(self) -> None:
        """Takes a place; `release` must follow.

        Raises:
            APIError: as `slot`.
        """
        if self.is_closing:
            raise server_closing()
        try:
            self._slots.acquire_nowait()
        except anyio.WouldBlock:
            await self._wait_for_slot()
        self.running += 1

    def release(self) -> None:
        """Gives the place back."""
        self.running -= 1
        self._slots.release()
        if self.is_closing and not self.running:
            self._empty.set()

    async def _wait_for_slot(self) -> None:
        if self.waiting >= self._limits.max_waiting:
            raise self._overloaded_error()
        self.waiting += 1
        try:
            with anyio.fail_after(self._limits.queue_timeout):
                await self._slots.acquire()
        except TimeoutError:
            raise self._overloaded_error() from None
        finally:
            self.waiting -= 1
        if self.is_closing:
            self._slots.release()
            raise server_closing()

    def _overloaded_error(self) -> APIError:
        self.rejected += 1
        message = "The server is busy: too many requests are waiting; try again later."
        return APIError(503, "overloaded", message, headers={"retry-after": "2"})


@final
class Slot:
    """A place of a limiter, for the length of a block."""

    __slots__ = ("_limiter",)

    def __init__(self, limiter: ConcurrencyLimiter) -> None:
        self._limiter = limiter

    async def __aenter__(self) -> None:
        await self._limiter.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._limiter.release()
