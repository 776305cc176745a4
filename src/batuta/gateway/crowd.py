"""How many are served at once: the others wait in a bounded queue, or are sent away at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import final

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from batuta.gateway.refusal import Refusal, closing

DOORS = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/messages"})
"""Where answers are asked for; everything else is quick and always let in."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one process takes on."""

    running: int = 512
    """Answers that are worked on at the same time."""
    waiting: int = 1024
    """Requests that may wait for one of them to end."""
    patience: float = 30.0
    """Seconds that a request may wait."""

    def __post_init__(self) -> None:
        if self.running < 1 or self.waiting < 0 or self.patience < 0:
            raise ValueError("at least one answer runs, and nobody waits less than no time")


@final
class Crowd:
    """The places of one server, and who waits for one."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._places = anyio.Semaphore(traffic.running, fast_acquire=True)
        self.waiting = 0
        """Requests that wait."""
        self.running = 0
        """Requests that have a place."""
        self.turned_away = 0
        """Requests that found the queue full, or waited too long."""
        self.closing = False
        """Whether nobody new is let in, because the server stops."""
        self._empty = anyio.Event()

    def close(self) -> None:
        """Lets nobody new in."""
        self.closing = True
        if not self.running:
            self._empty.set()

    async def emptied(self) -> None:
        """Waits, after `close`, until the last one is served."""
        await self._empty.wait()

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """A place for the length of a block.

        Raises:
            Refusal: there is none, and none came free in time; or the server stops.
        """
        if self.closing:
            raise closing()
        try:
            self._places.acquire_nowait()
        except anyio.WouldBlock:
            await self._wait()
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._places.release()
            if self.closing and not self.running:
                self._empty.set()

    async def _wait(self) -> None:
        if self.waiting >= self._traffic.waiting:
            raise self._full()
        self.waiting += 1
        try:
            with anyio.fail_after(self._traffic.patience):
                await self._places.acquire()
        except TimeoutError:
            raise self._full() from None
        finally:
            self.waiting -= 1
        if self.closing:
            self._places.release()
            raise closing()

    def _full(self) -> Refusal:
        self.turned_away += 1
        message = "The server is busy: too many requests wait already; try again later."
        return Refusal(503, "overloaded", message, headers={"retry-after": "2"})


@final
class Doorkeeper:
    """Gives each request for an answer its place."""

    def __init__(self, app: ASGIApp, crowd: Crowd) -> None:
        self.app = app
        self.crowd = crowd

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, when there is a place."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in DOORS:
            await self.app(scope, receive, send)
            return
        async with self.crowd.place():
            await self.app(scope, receive, send)
