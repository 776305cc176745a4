"""Concurrency slots of requests, pacing of their start, and a limit on the memory that they hold.

A bounded number of requests that call models run concurrently. Further ones wait in a bounded
queue; if the queue is full, a request is refused. Requests that arrive together are started a few
per event-loop iteration.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import chain
from typing import final

import anyio
from starlette.types import Message, Receive, Scope

from batuta.gateway.access.caller import caller_of
from batuta.gateway.errors import APIError, server_closing
from batuta.gateway.http.body import read_body, unpack_body
from batuta.gateway.http.server_limits import ConcurrencyLimits

MAX_BODY = 20 * 1024 * 1024
"""Maximum number of bytes of a body."""
MAX_BODIES = 256 * 1024 * 1024
"""Maximum number of bytes that all requests together may hold: large bodies and loaded data."""
_SMALL_BODY = 256 * 1024
"""Bodies with a declared length up to this number of bytes, and loaded data up to it, are not
counted."""
_LENGTH_DIGITS = 12
_HELD_KEY = "batuta.held_memory"


def _too_large_error() -> APIError:
    return APIError(413, "request_too_large", f"The body exceeds {MAX_BODY} bytes.")


@final
class BodyMemory:
    """The memory of this process for large request bodies and for data loaded from the store.

    The last quarter is reserved for tenants that hold at most an eighth, so that one tenant's
    large requests leave room for other tenants.
    """

    def __init__(self, most: int = MAX_BODIES) -> None:
        self.most = most
        self.used = 0
        self._tenants: Counter[str] = Counter()

    def take(self, tenant: str, size: int) -> None:
        """Count bytes that a request of the tenant holds."""
        self.used += size
        self._tenants[tenant] += size

    def give_back(self, tenant: str, size: int) -> None:
        """Release bytes of the tenant."""
        self.used -= size
        self._tenants[tenant] -= size
        if not self._tenants[tenant]:
            del self._tenants[tenant]

    def check(self, tenant: str) -> None:
        """Check that the memory suffices for what the tenant holds.

        Raises:
            APIError: the memory does not suffice, or its last quarter is reserved for tenants that
                hold less.
        """
        is_large = self._tenants[tenant] > self.most // 8
        if self.used > (self.most * 3 // 4 if is_large else self.most):
            text = "The server is handling as many large requests as it can; try again later."
            raise APIError(503, "overloaded", text, headers={"retry-after": "2"})


@final
class HeldMemory:
    """The memory that one request holds: its body, if large, and data loaded from the store."""

    def __init__(self, scope: Scope, memory: BodyMemory) -> None:
        self._scope = scope
        self._memory = memory
        self._tenant = ""
        self._size = 0

    @staticmethod
    def of_request(scope: Scope, memory: BodyMemory) -> HeldMemory:
        """Return a new counter, which the request's scope holds until `release`."""
        held = scope[_HELD_KEY] = HeldMemory(scope, memory)
        return held

    def count(self, size: int) -> None:
        """Count bytes that the request holds.

        Raises:
            APIError: the memory does not suffice now; the bytes are counted until `release`.
        """
        if not self._size:
            self._tenant = caller_of(self._scope).tenant
        self._size += size
        self._memory.take(self._tenant, size)
        self._memory.check(self._tenant)

    def hold(self, size: int) -> None:
        """Count data that is about to be loaded, unless it is small.

        Raises:
            APIError: the memory does not suffice now.
        """
        if size > _SMALL_BODY:
            self.count(size)

    def release(self) -> None:
        """Release the memory of a finished request, and detach this counter from its scope.

        Counter and scope form a reference cycle, which only the garbage collector would free.
        """
        self._scope.pop(_HELD_KEY, None)
        if self._size:
            self._memory.give_back(self._tenant, self._size)
            self._size = 0

    def watch_large_body(self, receive: Receive, length: bytes | None) -> CountedBody | None:
        """Return a counter for the arriving body; None if its declared length is small.

        A body whose length is None or not a number is counted.

        Raises:
            APIError: the declared length exceeds `MAX_BODY`.
        """
        declared = _SMALL_BODY + 1
        if length is not None and length.isdigit():
            declared = MAX_BODY + 1 if len(length) > _LENGTH_DIGITS else int(length)
        if declared > MAX_BODY:
            raise _too_large_error()
        return None if declared <= _SMALL_BODY else CountedBody(receive, self)


@final
class CountedBody:
    """Counts a body while it arrives; refuses it if it is too large or the memory is used up."""

    def __init__(self, receive: Receive, held: HeldMemory) -> None:
        self._receive = receive
        self._held = held
        self._size = 0

    async def receive(self) -> Message:
        """Receive the next message and count its bytes.

        Raises:
            APIError: the body is too large, or the memory does not suffice now.
        """
        message = await self._receive()
        if more := len(message.get("body", b"")):
            self._size += more
            self._held.count(more)
        if self._size > MAX_BODY:
            raise _too_large_error()
        return message

    def unpacked(self, encoding: str) -> Receive:
        """Return a `receive` of the decompressed body as one message, which is counted too."""
        is_delivered = False

        async def receive() -> Message:
            nonlocal is_delivered
            if is_delivered:
                return await self._receive()
            packed = await read_body(self.receive)
            plain = await unpack_body(packed, encoding, MAX_BODY) if packed else b""
            is_delivered = True
            self._held.count(len(plain))
            return {"type": "http.request", "body": plain, "more_body": False}

        return receive


def hold_memory(scope: Scope, size: int) -> None:
    """Count data that the request is about to load, unless it is small.

    Without a counter in the scope, as in a job, nothing is counted.

    Raises:
        APIError: the memory does not suffice now.
    """
    held = scope.get(_HELD_KEY)
    if isinstance(held, HeldMemory):
        held.hold(size)


LIMITED_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/responses/compact",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/moderations",
        "/ui/ask",
    }
)
"""Paths whose POST requests call models and need a slot; other requests are not limited."""


@final
@dataclass(eq=False, slots=True)
class _Waiter:
    """A request that waits for a slot."""

    woken: anyio.Event = field(default_factory=anyio.Event)
    has_slot: bool = False
    is_refused: bool = False
    """True if the request was removed from the queue without a slot."""


@final
class ConcurrencyLimiter:
    """The concurrency slots of one server, with a queue that serves tenants round-robin.

    If the queue is full, a tenant with at least two fewer queued requests displaces the newest
    request of the tenant with the most.
    """

    def __init__(self, limits: ConcurrencyLimits | None = None) -> None:
        self._limits = limits or ConcurrencyLimits()
        self._queues: dict[str, deque[_Waiter]] = {}
        """Queued requests by tenant; the first tenant is served next."""
        self.waiting = 0
        """The number of queued requests."""
        self.running = 0
        """The number of slots in use."""
        self.rejected = 0
        """Number of requests that a full queue refused or displaced, or that waited too long."""
        self.is_closing = False
        """Whether new and queued requests are refused, because the server is stopping."""
        self._empty = anyio.Event()

    def close(self) -> None:
        """Refuse the queued requests now, and new ones from now on."""
        self.is_closing = True
        for waiter in chain.from_iterable(self._queues.values()):
            waiter.is_refused = True
            waiter.woken.set()
        self._queues.clear()
        self.waiting = 0
        if not self.running:
            self._empty.set()

    async def wait_until_empty(self) -> None:
        """After `close`, wait until the running requests have ended."""
        await self._empty.wait()

    def slot(self, tenant: str = "") -> Slot:
        """Return a context manager that holds a slot for the tenant.

        Raises:
            APIError: when the block is entered, for the reasons of `acquire`.
        """
        return Slot(self, tenant)

    async def acquire(self, tenant: str = "") -> None:
        """Take a slot, waiting in the queue if needed; `release` must follow.

        Raises:
            APIError: no slot is free in time, the queue is full, another tenant's request displaced
                this one, or the server is stopping.
        """
        if self.is_closing:
            raise server_closing()
        if self.waiting or self.running >= self._limits.max_running:
            await self._wait_for_slot(tenant)
        else:
            self.running += 1

    def release(self) -> None:
        """Pass the slot to the next waiting tenant, or free it."""
        if self.waiting:
            tenant = next(iter(self._queues))
            waiter = self._queues[tenant].popleft()
            if queue := self._queues.pop(tenant):
                self._queues[tenant] = queue  # the tenant moves to the end
            self.waiting -= 1
            waiter.has_slot = True
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
        if self.is_closing:
            self._leave(tenant, waiter)
            raise server_closing()
        if waiter.is_refused:
            raise self._overloaded_error()

    def _refuse_newest(self, tenant: str) -> None:
        """Displace a queued request for a new one of the tenant.

        Raises:
            APIError: no other tenant has at least two more queued requests than this tenant.
        """
        most = max(self._queues, key=lambda name: len(self._queues[name]), default=tenant)
        if len(self._queues.get(most, ())) <= len(self._queues.get(tenant, ())) + 1:
            raise self._overloaded_error()
        waiter = self._queues[most].pop()
        self.waiting -= 1
        waiter.is_refused = True
        waiter.woken.set()

    def _leave(self, tenant: str, waiter: _Waiter) -> None:
        """Remove a request from the queue, or release the slot that it has just received."""
        if waiter.has_slot:
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
    """Holds a slot of the limiter within a block."""

    __slots__ = ("_limiter", "_tenant")

    def __init__(self, limiter: ConcurrencyLimiter, tenant: str) -> None:
        self._limiter = limiter
        self._tenant = tenant

    async def __aenter__(self) -> None:
        await self._limiter.acquire(self._tenant)

    async def __aexit__(self, *_: object) -> None:
        self._limiter.release()


MOST_BEGUN = 8
"""Maximum number of requests started per event-loop iteration; each takes about 1 ms."""


@final
class LoopTurns:
    """Spreads the start of simultaneous requests over event-loop iterations.

    The loop runs everything that is ready before it polls its sockets again. Hundreds of requests
    that arrive together would be parsed and prepared in one iteration, during which no other
    request is served.
    """

    def __init__(self, most: int = MOST_BEGUN) -> None:
        self._most = most
        self._begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Return immediately, or in a later iteration if this one has started enough requests."""
        loop = asyncio.get_running_loop()
        if self._begun < self._most and not self._waiting:
            if not self._begun:
                loop.call_soon(self._start_next, loop)
            self._begun += 1
            return
        woken: asyncio.Future[None] = loop.create_future()
        self._waiting.append(woken)
        await woken

    def paced(self, receive: Receive) -> Receive:
        """Return a `receive` that waits in `take` before it returns the end of the body."""
        is_complete = False

        async def paced_receive() -> Message:
            nonlocal is_complete
            message = await receive()
            if not is_complete and not message.get("more_body", False):
                is_complete = True
                await self.take()
            return message

        return paced_receive

    def _start_next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begun = 0
        while self._waiting and self._begun < self._most:
            woken = self._waiting.popleft()
            if not woken.done():  # else its request has ended
                woken.set_result(None)
                self._begun += 1
        if self._begun:
            loop.call_soon(self._start_next, loop)
