"""Places and turns of requests, and the memory for their bodies.

Requests for answers run so many at once; others wait in a bounded queue, or are refused. Those that
come at once begin a few at a time, so that others are served between them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import final

import anyio
from starlette.types import Message, Receive, Scope

from batuta.gateway.access.caller import caller_of
from batuta.gateway.errors import APIError, server_closing
from batuta.gateway.http.body import read_body, unpack_body
from batuta.gateway.http.server_limits import ConcurrencyLimits

MAX_BODY = 20 * 1024 * 1024
MAX_BODIES = 256 * 1024 * 1024
"""The most bytes of large bodies that all requests together may hold at the same time."""
_SMALL_BODY = 256 * 1024
"""Bodies of up to this many bytes do not count as large."""
_LENGTH_DIGITS = 12
_HELD_KEY = "batuta.held_memory"


def _too_large_error() -> APIError:
    return APIError(413, "request_too_large", f"The body exceeds {MAX_BODY} bytes.")


@final
class BodyMemory:
    """The memory that request bodies, and what is loaded for requests, use in this process.

    Its last quarter is for tenants that hold less than an eighth of it, so that one tenant's large
    requests leave room for others'.
    """

    def __init__(self, most: int = MAX_BODIES) -> None:
        self.most = most
        self.used = 0
        self._tenants: Counter[str] = Counter()

    def take(self, tenant: str, size: int) -> None:
        """Count what the tenant's request holds from now on."""
        self.used += size
        self._tenants[tenant] += size

    def give_back(self, tenant: str, size: int) -> None:
        """Count it no more."""
        self.used -= size
        self._tenants[tenant] -= size
        if not self._tenants[tenant]:
            del self._tenants[tenant]

    def check(self, tenant: str) -> None:
        """Return if there is room for what the tenant holds.

        Raises:
            APIError: there is none, or what is left is kept for tenants that hold less.
        """
        is_large = self._tenants[tenant] > self.most // 8
        if self.used > (self.most * 3 // 4 if is_large else self.most):
            text = "The server is handling as many large requests as it can; try again later."
            raise APIError(503, "overloaded", text, headers={"retry-after": "2"})


@final
class HeldMemory:
    """The memory that one request holds: its body, if it is large, and what it has loaded."""

    def __init__(self, scope: Scope, memory: BodyMemory) -> None:
        self._scope = scope
        self._memory = memory
        self._tenant = ""
        self._size = 0

    @staticmethod
    def of_request(scope: Scope, memory: BodyMemory) -> HeldMemory:
        """Give the request something to count with, until `release`."""
        held = scope[_HELD_KEY] = HeldMemory(scope, memory)
        return held

    def count(self, size: int) -> None:
        """Count bytes that the request holds from now on.

        Raises:
            APIError: there is no room for them now.
        """
        if not self._size:
            self._tenant = caller_of(self._scope).tenant
        self._size += size
        self._memory.take(self._tenant, size)
        self._memory.check(self._tenant)

    def hold(self, size: int) -> None:
        """Count what is about to be loaded, if it is no small matter.

        Raises:
            APIError: there is no room for it now.
        """
        if size > _SMALL_BODY:
            self.count(size)

    def release(self) -> None:
        """Count nothing of it any more: the request has ended, and its scope forgets it.

        Each knows the other, so both would wait for the garbage collector.
        """
        self._scope.pop(_HELD_KEY, None)
        if self._size:
            self._memory.give_back(self._tenant, self._size)
            self._size = 0

    def watch_large_body(self, receive: Receive, length: bytes | None) -> CountedBody | None:
        """Return the body, to be counted while it arrives; None if it says that it is small.

        Raises:
            APIError: longer than any may be.
        """
        declared = _SMALL_BODY + 1
        if length is not None and length.isdigit():
            declared = MAX_BODY + 1 if len(length) > _LENGTH_DIGITS else int(length)
        if declared > MAX_BODY:
            raise _too_large_error()
        return None if declared <= _SMALL_BODY else CountedBody(receive, self)


@final
class CountedBody:
    """A body while it arrives: refused once it, or all bodies together, are too large."""

    def __init__(self, receive: Receive, held: HeldMemory) -> None:
        self._receive = receive
        self._held = held
        self._size = 0

    async def receive(self) -> Message:
        """Receive the next message, and count what it brings.

        Raises:
            APIError: there is no room for what it brings.
        """
        message = await self._receive()
        if more := len(message.get("body", b"")):
            self._size += more
            self._held.count(more)
        if self._size > MAX_BODY:
            raise _too_large_error()
        return message

    def unpacked(self, encoding: str) -> Receive:
        """Give the body as it was before it was packed, as one message, and count that too."""
        is_told = False

        async def receive() -> Message:
            nonlocal is_told
            if is_told:
                return await self._receive()
            packed = await read_body(self.receive)
            plain = await unpack_body(packed, encoding, MAX_BODY) if packed else b""
            is_told = True
            self._held.count(len(plain))
            return {"type": "http.request", "body": plain, "more_body": False}

        return receive


def hold_memory(scope: Scope, size: int) -> None:
    """Count what the request is about to load.

    Raises:
        APIError: there is no room for it now.
    """
    held = scope.get(_HELD_KEY)
    if isinstance(held, HeldMemory):
        held.hold(size)


LIMITED_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/ui/ask"}
)
"""Paths at which answers are asked for; everything else is quick and always let in."""


@final
@dataclass(eq=False, slots=True)
class _Waiter:
    """A request that waits for a place."""

    woken: anyio.Event = field(default_factory=anyio.Event)
    has_place: bool = False
    is_refused: bool = False
    """True if it gave its place in the queue to another tenant's request."""


@final
class ConcurrencyLimiter:
    """The places of one server, and who waits for one; tenants are let in by turns.

    A full queue has room for a tenant that has fewer requests in it than another one: the newest
    request of the one with most of them is refused for it.
    """

    def __init__(self, limits: ConcurrencyLimits | None = None) -> None:
        self._limits = limits or ConcurrencyLimits()
        self._queues: dict[str, deque[_Waiter]] = {}
        """Waiting requests by tenant; the first tenant is the next one."""
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
        """Let nobody new in."""
        self.is_closing = True
        if not self.running:
            self._empty.set()

    async def wait_until_empty(self) -> None:
        """Wait, after `close`, until the last one is served."""
        await self._empty.wait()

    def slot(self, tenant: str = "") -> Slot:
        """Give the tenant a place for the length of a block.

        Raises:
            APIError: when the block is entered: there is none, and none came free in time; or the
                server stops.
        """
        return Slot(self, tenant)

    async def acquire(self, tenant: str = "") -> None:
        """Take a place; `release` must follow."""
        if self.is_closing:
            raise server_closing()
        if self.waiting or self.running >= self._limits.max_running:
            await self._wait_for_slot(tenant)
        else:
            self.running += 1

    def release(self) -> None:
        """Give the place to the next tenant that waits, or back."""
        if self.waiting:
            tenant = next(iter(self._queues))
            waiter = self._queues[tenant].popleft()
            if queue := self._queues.pop(tenant):
                self._queues[tenant] = queue  # its next turn comes after all others'
            self.waiting -= 1
            waiter.has_place = True
            waiter.woken.set()
            return
        self.running -= 1
        if self.is_closing and not self.running:
            self._empty.set()

    async def _wait_for_slot(self, tenant: str) -> None:
        if self.waiting >= self._limits.max_waiting:
            self._refuse_newest(tenant)
        waiter = _Waiter()
        self._queues.setdefault(tenant, deque()).append(waiter)
        self.waiting += 1
        try:
            with anyio.fail_after(self._limits.queue_timeout):
                await waiter.woken.wait()
        except TimeoutError:
            self._leave(tenant, waiter)
            raise self._overloaded_error() from None
        except BaseException:
            self._leave(tenant, waiter)
            raise
        if waiter.is_refused:
            raise self._overloaded_error()
        if self.is_closing:
            self.release()
            raise server_closing()

    def _refuse_newest(self, tenant: str) -> None:
        """Make room for a request of the tenant in a full queue.

        Raises:
            APIError: no other tenant has more requests there than this one will have.
        """
        most = max(self._queues, key=lambda name: len(self._queues[name]), default=tenant)
        if len(self._queues.get(most, ())) <= len(self._queues.get(tenant, ())) + 1:
            raise self._overloaded_error()
        waiter = self._queues[most].pop()
        self.waiting -= 1
        waiter.is_refused = True
        waiter.woken.set()

    def _leave(self, tenant: str, waiter: _Waiter) -> None:
        """Take a request out of the queue, or give on the place that it has just got."""
        if waiter.has_place:
            self.release()
        elif not waiter.is_refused:
            self._queues[tenant].remove(waiter)
            self.waiting -= 1
            if not self._queues[tenant]:
                del self._queues[tenant]

    def _overloaded_error(self) -> APIError:
        self.rejected += 1
        message = "The server is busy: too many requests are waiting; try again later."
        return APIError(503, "overloaded", message, headers={"retry-after": "2"})


@final
class Slot:
    """A place of a limiter, for the length of a block."""

    __slots__ = ("_limiter", "_tenant")

    def __init__(self, limiter: ConcurrencyLimiter, tenant: str) -> None:
        self._limiter = limiter
        self._tenant = tenant

    async def __aenter__(self) -> None:
        await self._limiter.acquire(self._tenant)

    async def __aexit__(self, *_: object) -> None:
        self._limiter.release()


MOST_BEGUN = 8
"""Requests that go on with their bodies in one turn of the loop; each takes it for about 1 ms."""


@final
class LoopTurns:
    """Hands out the turns of the event loop.

    What is ready runs to its next wait before the loop looks at its sockets again. Hundreds of
    requests that come at once would all be read and prepared in one such turn, in which nobody
    else is served.
    """

    def __init__(self, most: int = MOST_BEGUN) -> None:
        self._most = most
        self._begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Go on at once, or in a later turn if enough others do so in this one."""
        loop = asyncio.get_running_loop()
        if self._begun < self._most and not self._waiting:
            if not self._begun:
                loop.call_soon(self._begin_turn, loop)
            self._begun += 1
            return
        woken: asyncio.Future[None] = loop.create_future()
        self._waiting.append(woken)
        await woken

    def paced(self, receive: Receive) -> Receive:
        """Return `receive`, which hands out the end of a body in its turn."""
        has_come = False

        async def in_turn() -> Message:
            nonlocal has_come
            message = await receive()
            if not has_come and not message.get("more_body", False):
                has_come = True
                await self.take()
            return message

        return in_turn

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begun = 0
        while self._waiting and self._begun < self._most:
            woken = self._waiting.popleft()
            if not woken.done():  # else its request has ended
                woken.set_result(None)
                self._begun += 1
        if self._begun:
            loop.call_soon(self._begin_turn, loop)
