"""A request in flight: it ends when its reader goes away, reads too slowly, or the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol, final

import anyio
from starlette.types import Receive


class Cut(Enum):
    """Why a flight was ended before its work was done."""

    GONE = "the reader closed the connection"
    SLOW = "the reader did not read"
    CLOSING = "the server is shutting down"


class Pulse(Protocol):
    """What must happen from time to time while a flight lasts."""

    def due(self) -> float:
        """Seconds until `beat` is wanted."""
        ...

    async def beat(self) -> Cut | None:
        """Do it; a reason if the flight must end."""
        ...


@final
class Flight:
    """One request's work, and what can end it."""

    __slots__ = ("cut", "scope")

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.scope = scope
        """Around the work."""
        self.cut: Cut | None = None
        """Why it was ended early; None if it was not."""

    def end(self, cut: Cut) -> None:
        """Cancels the work; the first reason counts."""
        self.cut = self.cut or cut
        self.scope.cancel()


@final
class Flights:
    """Every flight of one server."""

    def __init__(self) -> None:
        self._flights: set[Flight] = set()
        self._closing = False

    def __len__(self) -> int:
        return len(self._flights)

    def close(self) -> None:
        """Ends every flight, and each that begins later at once."""
        self._closing = True
        for flight in tuple(self._flights):
            flight.end(Cut.CLOSING)

    async def fly(
        self, receive: Receive, work: Callable[[], Awaitable[None]], pulse: Pulse | None = None
    ) -> Cut | None:
        """Does `work` while somebody waits for it.

        Args:
            receive: of the request whose body has been read.
            work: what is to be done.
            pulse: what is to be done beside it.

        Returns:
            None if the work was done; else why it was cancelled.
        """
        flight = Flight(anyio.CancelScope())
        self._flights.add(flight)
        done = False
        try:
            with flight.scope:
                if self._closing:
                    flight.end(Cut.CLOSING)
                # The standard library's group keeps the same promise for less, as in the engine.
                async with asyncio.TaskGroup() as tasks:
                    watch = tasks.create_task(_watch(receive, flight, pulse))
                    await work()
                    done = True
                    watch.cancel()
        finally:
            self._flights.discard(flight)
        return None if done else flight.cut


async def _watch(receive: Receive, flight: Flight, pulse: Pulse | None) -> None:
    """Ends the flight when its connection does, or when its pulse says so."""
    if pulse is None:
        await _gone(receive)
        flight.end(Cut.GONE)
        return
    while True:
        with anyio.move_on_after(pulse.due()) as patience:
            await _gone(receive)
        cut = await pulse.beat() if patience.cancelled_caught else Cut.GONE
        if cut is not None:
            flight.end(cut)
            return


async def _gone(receive: Receive) -> None:
    """Until the connection is closed; the body has been read, so nothing else comes."""
    while (await receive())["type"] != "http.disconnect":
        pass
