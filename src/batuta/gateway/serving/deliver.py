"""A booked call played to its reader: whole, or as a stream. The same for every dialect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.types import Receive, Send

from batuta.core import Event, EventHandler, Reply, Run
from batuta.gateway.errors import APIError, internal_error, server_closing
from batuta.gateway.http.body import send_json
from batuta.gateway.http.disconnect import DisconnectReason, RequestScopes
from batuta.gateway.http.middleware import log_exception
from batuta.gateway.http.sse import SSEWriter
from batuta.gateway.serving.error_mapping import response_headers
from batuta.gateway.serving.execute import PreparedCall, RunService

RenderBody = Callable[[Run, Reply], Awaitable[Any]]
"""The body of a run that has an answer, as the dialect writes it."""


class StreamRenderer(Protocol):
    """Tells a reader of a run while it is played, in the dialect's own events."""

    async def open(self, headers: dict[str, str]) -> None:
        """The headers and what is said before anything is planned."""
        ...

    async def on_event(self, event: Event) -> None:
        """Shows what is to be shown of an event of the run."""
        ...

    def matches(self, reply: Reply) -> bool:
        """Whether what was shown is the beginning of that reply."""
        ...

    async def finish(self, run: Run, reply: Reply) -> None:
        """What was not shown yet, and the end."""
        ...

    async def fail(self, error: APIError) -> None:
        """The end of an answer that there is not."""
        ...


async def send_answer(
    service: RunService,
    scopes: RequestScopes,
    prepared: PreparedCall,
    render: RenderBody,
    *,
    receive: Receive,
    send: Send,
) -> None:
    """Plays and sends the body; nothing if the reader went away.

    Raises:
        APIError: the run has no answer, or the server stops.
    """
    runs: list[Run] = []

    async def work() -> None:
        runs.append(await service.execute(prepared))

    cut = await scopes.run(receive, work)
    if not runs:
        if cut is DisconnectReason.SERVER_CLOSING:
            raise server_closing()
        return
    run = runs[0]
    headers = {**prepared.headers, **response_headers(run)}
    refusal = prepared.error_for(run)
    if refusal is not None or run.reply is None:
        raise (refusal or internal_error()).with_headers(headers)
    await send_json(send, await render(run, run.reply), 200, headers)


async def stream_answer(
    service: RunService,
    scopes: RequestScopes,
    prepared: PreparedCall,
    renderer: StreamRenderer,
    *,
    writer: SSEWriter,
    receive: Receive,
) -> None:
    """Plays while the teller tells; every end but a reader's going away is told."""
    refusals: list[APIError] = []

    async def work() -> None:
        await renderer.open(prepared.headers)
        refusal = await execute_and_render(service, prepared, renderer)
        if refusal is not None:
            refusals.append(refusal)

    try:
        cut = await scopes.run(receive, work, writer)
    except Exception as error:  # noqa: BLE001 - the 200 is out: say it in the stream
        log_exception(error)
        cut = None
        refusals.append(internal_error())
    if cut is DisconnectReason.SERVER_CLOSING:
        refusals.append(server_closing())
    for refusal in refusals:
        await renderer.fail(refusal)


async def execute_and_render(
    service: RunService,
    prepared: PreparedCall,
    renderer: StreamRenderer,
    on_event: EventHandler | None = None,
) -> APIError | None:
    """Plays while the teller tells, to its end if there is an answer; else why there is none.

    Args:
        service: plays.
        prepared: what is played.
        renderer: tells.
        on_event: who hears the run's events in the teller's place, and passes them on.
    """
    run = await service.execute(prepared, on_event or renderer.on_event)
    refusal = prepared.error_for(run)
    if refusal is None and (run.reply is None or not renderer.matches(run.reply)):
        refusal = APIError(502, "upstream_error", "The answer broke off.")
    if refusal is not None or run.reply is None:
        return refusal or internal_error()
    await renderer.finish(run, run.reply)
    return None
