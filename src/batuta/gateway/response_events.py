"""Events of a response that was or is told elsewhere, sent to a reader who came later."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.types import Receive, Send

from batuta.gateway.flight import Cut
from batuta.gateway.line import Line
from batuta.gateway.middleware import log_fault
from batuta.gateway.models import Orchestra
from batuta.gateway.response_stream import frame

Json = dict[str, Any]


async def send_events(
    orchestra: Orchestra,
    events: AsyncIterator[Json],
    response: Json,
    receive: Receive,
    send: Send,
    *,
    after: int = -1,
) -> None:
    """Sends the events as they come, until they end or the reader goes.

    A sign of life repeats the last number: it is not one of the events, and whoever resumes after
    it misses nothing.

    Args:
        orchestra: whose flights these are.
        events: of the response, each with its number.
        response: as it is now; what signs of life show.
        receive: of the request.
        send: of the request.
        after: the number of the last event that the reader has.
    """
    number = max(after, 0)

    def sign() -> bytes:
        alive = {"type": "response.in_progress", "sequence_number": number}
        return frame({**alive, "response": response})

    line = Line(send, orchestra.timing, sign)

    async def work() -> None:
        nonlocal number
        await line.open({})
        async for event in events:
            number = event["sequence_number"]
            await line.write(frame(event))
        await line.close(b"")

    try:
        cut = await orchestra.flights.fly(receive, work, line)
    except Exception as error:  # noqa: BLE001 - the 200 is out: the reader sees the stream break
        log_fault(error)
        cut = Cut.CLOSING
    if cut is Cut.CLOSING:
        await line.close(b"")
