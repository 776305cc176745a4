"""Events of a response that was or is told elsewhere, sent to a reader who came later."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.types import Receive, Send

from batuta.gateway.http.disconnect import DisconnectReason
from batuta.gateway.http.middleware import log_exception
from batuta.gateway.http.sse import SSEWriter, event_frame
from batuta.gateway.serving.models import ServerState

Json = dict[str, Any]


async def send_events(
    state: ServerState,
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
        state: whose flights these are.
        events: of the response, each with its number.
        response: as it is now; what signs of life show.
        receive: of the request.
        send: of the request.
        after: the number of the last event that the reader has.
    """
    number = max(after, 0)

    def sign() -> bytes:
        alive = {"type": "response.in_progress", "sequence_number": number}
        return event_frame({**alive, "response": response})

    line = SSEWriter(send, state.stream_timeouts, sign)

    async def work() -> None:
        nonlocal number
        await line.open({})
        async for event in events:
            number = event["sequence_number"]
            await line.write(event_frame(event))
        await line.close(b"")

    try:
        cut = await state.request_scopes.run(receive, work, line)
    except Exception as error:  # noqa: BLE001 - the 200 is out: the reader sees the stream break
        log_exception(error)
        cut = DisconnectReason.SERVER_CLOSING
    if cut is DisconnectReason.SERVER_CLOSING:
        await line.close(b"")
