"""Runs a prepared call for its reader: whole, or as a stream. The same for every dialect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, final

from starlette.types import Receive, Send

from batuta.core import Event, EventHandler, Reply, Run
from batuta.gateway.errors import APIError, internal_error, log_exception, server_closing
from batuta.gateway.http.body import send_json
from batuta.gateway.http.reader import DisconnectReason, KeepAlive, RequestScopes, StreamTimeouts
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.execute import RunService
from batuta.gateway.serving.trace import response_headers

RenderBody = Callable[[Run, Reply], Awaitable[Any]]
"""The body of a run that has an answer, as the dialect writes it."""


class StreamRenderer(Protocol):
    """Streams a run to its reader while it is executed, in the dialect's own events."""

    async def open(self, headers: dict[str, str]) -> None:
        """The headers and what is said before anything is planned."""
        ...

    async def on_event(self, event: Event) -> None:
        """Shows what is to be shown of an event of the run."""
        ...

    def matches(self, reply: Reply) -> bool:
        """Return True if the shown text begins that reply."""
        ...

    async def finish(self, run: Run, reply: Reply) -> None:
        """Write the rest, and the end."""
        ...

    async def fail(self, error: APIError) -> None:
        """The end of an answer that there is not."""
        ...


@final
class AnswerDelivery:
    """Runs prepared calls for their readers: whole, or as a stream. The same for every dialect."""

    def __init__(
        self, service: RunService, scopes: RequestScopes, timeouts: StreamTimeouts
    ) -> None:
        self.service = service
        self.scopes = scopes
        """The requests that are being answered."""
        self.timeouts = timeouts

    async def send_answer(
        self, prepared: PreparedCall, render: RenderBody, receive: Receive, send: Send
    ) -> None:
        """Runs the call and sends the body; nothing if the reader went away.

        Raises:
            APIError: the run has no answer, or the server stops.
        """
        runs: list[Run] = []

        async def work() -> None:
            runs.append(await self.service.execute(prepared))

        ended = await self.scopes.run(receive, work)
        if not runs:
            if ended is DisconnectReason.SERVER_CLOSING:
                raise server_closing()
            return
        run = runs[0]
        headers = {**prepared.headers, **response_headers(run)}
        error = prepared.error_for(run)
        if error is not None or run.reply is None:
            raise (error or internal_error()).with_headers(headers)
        await send_json(send, await render(run, run.reply), 200, headers)

    async def stream_answer(
        self,
        prepared: PreparedCall,
        renderer: StreamRenderer,
        keep_alive: KeepAlive | None,
        receive: Receive,
    ) -> None:
        """Runs the call as the renderer shows it; tells every end but a reader's leaving."""
        errors: list[APIError] = []

        async def work() -> None:
            await renderer.open(prepared.headers)
            error = await execute_and_render(self.service, prepared, renderer)
            if error is not None:
                errors.append(error)

        try:
            ended = await self.scopes.run(receive, work, keep_alive)
        except Exception as error:  # noqa: BLE001 - the 200 is out: say it in the stream
            log_exception(error)
            ended = None
            errors.append(internal_error())
        if ended is DisconnectReason.SERVER_CLOSING:
            errors.append(server_closing())
        for error in errors:
            await renderer.fail(error)


async def execute_and_render(
    service: RunService,
    prepared: PreparedCall,
    renderer: StreamRenderer,
    on_event: EventHandler | None = None,
) -> APIError | None:
    """Runs the call to its end, as the renderer shows it; else says why there is no answer.

    Args:
        service: runs.
        prepared: what is run.
        renderer: shows the run.
        on_event: who hears the run's events in the renderer's place, and passes them on.
    """
    run = await service.execute(prepared, on_event or renderer.on_event)
    refusal = prepared.error_for(run)
    if refusal is None and (run.reply is None or not renderer.matches(run.reply)):
        refusal = APIError(502, "upstream_error", "The answer broke off.")
    if refusal is not None or run.reply is None:
        return refusal or internal_error()
    await renderer.finish(run, run.reply)
    return None
