"""A booked call played to its reader: whole, or as a stream. The same for every dialect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.types import Receive, Send

from batuta.core import Emit, Event, Reply, Run
from batuta.gateway.flight import Cut, Flights
from batuta.gateway.line import Line
from batuta.gateway.middleware import log_fault
from batuta.gateway.play import Booking, Player
from batuta.gateway.refusal import Refusal, closing, server_fault
from batuta.gateway.reply import send_json
from batuta.gateway.verdict import response_headers

Render = Callable[[Run, Reply], Awaitable[Any]]
"""The body of a run that has an answer, as the dialect writes it."""


class Teller(Protocol):
    """Tells a reader of a run while it is played, in the dialect's own events."""

    async def open(self, headers: dict[str, str]) -> None:
        """The headers and what is said before anything is planned."""
        ...

    async def hear(self, event: Event) -> None:
        """Shows what is to be shown of an event of the run."""
        ...

    def agrees(self, reply: Reply) -> bool:
        """Whether what was shown is the beginning of that reply."""
        ...

    async def finish(self, run: Run, reply: Reply) -> None:
        """What was not shown yet, and the end."""
        ...

    async def fail(self, refusal: Refusal) -> None:
        """The end of an answer that there is not."""
        ...


async def whole(
    player: Player,
    flights: Flights,
    booking: Booking,
    render: Render,
    receive: Receive,
    send: Send,
) -> None:
    """Plays and sends the body; nothing if the reader went away.

    Raises:
        Refusal: the run has no answer, or the server stops.
    """
    runs: list[Run] = []

    async def work() -> None:
        runs.append(await player.play(booking))

    cut = await flights.fly(receive, work)
    if not runs:
        if cut is Cut.CLOSING:
            raise closing()
        return
    run = runs[0]
    headers = {**booking.headers, **response_headers(run)}
    refusal = booking.verdict(run)
    if refusal is not None or run.reply is None:
        raise (refusal or server_fault()).adding(headers)
    await send_json(send, await render(run, run.reply), 200, headers)


async def streamed(
    player: Player,
    flights: Flights,
    booking: Booking,
    teller: Teller,
    line: Line,
    receive: Receive,
) -> None:
    """Plays while the teller tells; every end but a reader's going away is told."""
    refusals: list[Refusal] = []

    async def work() -> None:
        await teller.open(booking.headers)
        refusal = await told(player, booking, teller)
        if refusal is not None:
            refusals.append(refusal)

    try:
        cut = await flights.fly(receive, work, line)
    except Exception as error:  # noqa: BLE001 - the 200 is out: say it in the stream
        log_fault(error)
        cut = None
        refusals.append(server_fault())
    if cut is Cut.CLOSING:
        refusals.append(closing())
    for refusal in refusals:
        await teller.fail(refusal)


async def told(
    player: Player, booking: Booking, teller: Teller, hear: Emit | None = None
) -> Refusal | None:
    """Plays while the teller tells, to its end if there is an answer; else why there is none.

    Args:
        player: plays.
        booking: what is played.
        teller: tells.
        hear: who hears the run's events in the teller's place, and passes them on.
    """
    run = await player.play(booking, hear or teller.hear)
    refusal = booking.verdict(run)
    if refusal is None and (run.reply is None or not teller.agrees(run.reply)):
        refusal = Refusal(502, "upstream_error", "The answer broke off.")
    if refusal is not None or run.reply is None:
        return refusal or server_fault()
    await teller.finish(run, run.reply)
    return None
