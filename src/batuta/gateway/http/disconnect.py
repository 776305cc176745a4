"""A request in flight: it ends when its reader goes away, reads too slowly, or the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol, final

import anyio
from starlette.types import Receive


class DisconnectReason(Enum):
    """Why a flight was ended before its work was done."""

    CLIENT_GONE = "the reader closed the connection"
    CLIENT_SLOW = "the reader did not read"
    SERVER_CLOSING = "the server is shutting down"


class KeepAlive(Protocol):
    """What must happen from time to time while a flight lasts."""

    def seconds_until_due(self) -> float:
        """Seconds until `tick` is wanted."""
        ...

    async def tick(self) -> DisconnectReason | None:
        """Do it; a reason if the flight must end."""
        ...


@final
class RequestScope:
    """One request's work, and what can end it."""

    __slots__ = ("reason", "scope")

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.scope = scope
        """Around the work."""
        self.reason: DisconnectReason | None = None
        """Why it was ended early; None if it was not."""

    def end(self, reason: DisconnectReason) -> None:
        """Cancels the work; the first reason counts."""
        self.reason = self.reason or reason
        self.scope.cancel()


@final
class RequestScopes:
    """Every flight of one server."""

    def __init__(self) -> None:
        self._scopes: set[RequestScope] = set()
        self._closing = False

    def __len__(self) -> int:
        return len(self._scopes)

    def close(self) -> None:
        """Ends every flight, and each that begins later at once."""
        self._closing = True
        for flight in tuple(self._scopes):
            flight.end(DisconnectReason.SERVER_CLOSING)

    async def run(
        self,
        receive: Receive,
        work: Callable[[], Awaitable[None]],
        keep_alive: KeepAlive | None = None,
    ) -> DisconnectReason | None:
        """Does `work` while somebody waits for it.

        Args:
            receive: of the request whose body has been read.
            work: what is to be done.
            keep_alive: what is to be done beside it.

        Returns:
            None if the work was done; else why it was cancelled.
        """
        flight = RequestScope(anyio.CancelScope())
        self._scopes.add(flight)
        done = False
        try:
            with flight.scope:
                if self._closing:
                    flight.end(DisconnectReason.SERVER_CLOSING)
                # The standard library's group keeps the same promise for less, as in the engine.
                async with asyncio.TaskGroup() as tasks:
                    watch = tasks.create_task(_watch_connection(receive, flight, keep_alive))
                    await work()
                    done = True
                    watch.cancel()
        finally:
            self._scopes.discard(flight)
        return None if done else flight.reason


async def _watch_connection(
    receive: Receive, scope: RequestScope, keep_alive: KeepAlive | None
) -> None:
    """Ends the flight when its connection does, or when its pulse says so."""
    if keep_alive is None:
        await _wait_for_disconnect(receive)
        scope.end(DisconnectReason.CLIENT_GONE)
        return
    while True:
        with anyio.move_on_after(keep_alive.seconds_until_due()) as patience:
            await _wait_for_disconnect(receive)
        cut = await keep_alive.tick() if patience.cancelled_caught else DisconnectReason.CLIENT_GONE
        if cut is not None:
            scope.end(cut)
            return


async def _wait_for_disconnect(receive: Receive) -> None:
    """Until the connection is closed; the body has been read, so nothing else comes."""
    while (await receive())["type"] != "http.disconnect":
        pass
