"""How many are served at once: the others wait in a bounded queue, or are sent away at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import final

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from batuta.gateway.errors import APIError, server_closing

LIMITED_PATHS = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/messages"})
"""Where answers are asked for; everything else is quick and always let in."""


@dataclass(frozen=True, slots=True)
class ConcurrencyLimits:
    """What one process takes on."""

    max_running: int = 512
    """Answers that are worked on at the same time."""
    max_waiting: int = 1024
    """Requests that may wait for one of them to end."""
    queue_timeout: float = 30.0
    """Seconds that a request may wait."""

    def __post_init__(self) -> None:
        if self.max_running < 1 or self.max_waiting < 0 or self.queue_timeout < 0:
            raise ValueError("at least one answer runs, and nobody waits less than no time")


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

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """A place for the length of a block.

        Raises:
            APIError: there is none, and none came free in time; or the server stops.
        """
        if self.is_closing:
            raise server_closing()
        try:
            self._slots.acquire_nowait()
        except anyio.WouldBlock:
            await self._wait_for_slot()
        self.running += 1
        try:
            yield
        finally:
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
        message = "The server is busy: too many requests wait already; try again later."
        return APIError(503, "overloaded", message, headers={"retry-after": "2"})


@final
class ConcurrencyMiddleware:
    """Gives each request for an answer its place."""

    def __init__(self, app: ASGIApp, limiter: ConcurrencyLimiter) -> None:
        self.app = app
        self.limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, when there is a place."""
        if (
            scope["type"] != "http"
            or scope["method"] != "POST"
            or scope["path"] not in LIMITED_PATHS
        ):
            await self.app(scope, receive, send)
            return
        async with self.limiter.slot():
            await self.app(scope, receive, send)
