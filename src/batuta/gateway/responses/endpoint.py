"""POST /v1/responses."""

from __future__ import annotations

from functools import partial
from time import time
from typing import Any, final

from starlette.types import Receive, Scope, Send

from batuta.core import Reply, Run
from batuta.gateway.access.caller import Caller, caller_of
from batuta.gateway.http.body import ClientGone, read_fields, send_json
from batuta.gateway.http.fields import Fields
from batuta.gateway.responses.background import BackgroundResponses
from batuta.gateway.responses.events import ResponseEventWriter
from batuta.gateway.responses.request import (
    ResponseCall,
    ResponseHistory,
    parse_history_references,
    parse_response,
)
from batuta.gateway.responses.response import finished_response, new_response
from batuta.gateway.responses.resumed_stream import send_events
from batuta.gateway.responses.store import ResponseStore
from batuta.gateway.responses.stream import ResponsesStreamRenderer, SSEEventSink
from batuta.gateway.serving.deliver import send_answer, stream_answer
from batuta.gateway.serving.execute import PreparedCall, RunService
from batuta.gateway.serving.models import ServerState
from batuta.store.responses import response_id


@final
class ResponsesEndpoint:
    """Answers a Responses body: whole, streamed, or in the background."""

    def __init__(
        self,
        state: ServerState,
        service: RunService,
        responses: ResponseStore,
        background: BackgroundResponses,
    ) -> None:
        self._state = state
        self._service = service
        self._responses = responses
        self._background = background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: before anything was said.
        """
        try:
            body = await read_fields(scope, receive)
        except ClientGone:
            return
        caller = caller_of(scope)
        past = await self._responses.load_history(parse_history_references(body), caller)
        asked = parse_response(body, past)
        if asked.background:
            await self._submit_background(
                asked, body, history=past, caller=caller, receive=receive, send=send
            )
            return
        async with self._service.prepare_call(asked.call, caller) as booking:
            base = new_response(asked.echo, response_id(booking.run_id), int(time()))
            keep = partial(self._responses.save, asked, caller)
            script = ResponseEventWriter(base)
            if asked.call.stream:
                ear = SSEEventSink(
                    send,
                    self._state.stream_timeouts,
                    script.in_progress,
                    keep_events=asked.call.store,
                )
                teller = ResponsesStreamRenderer(ear, script, booking, keep)
                flights = self._state.request_scopes
                await stream_answer(
                    self._service,
                    flights,
                    prepared=booking,
                    renderer=teller,
                    writer=ear.writer,
                    receive=receive,
                )
                return
            await self._send_answer(
                asked, booking, event_writer=script, caller=caller, receive=receive, send=send
            )

    async def _send_answer(
        self,
        response_call: ResponseCall,
        prepared: PreparedCall,
        event_writer: ResponseEventWriter,
        caller: Caller,
        *,
        receive: Receive,
        send: Send,
    ) -> None:
        async def render(run: Run, reply: Reply) -> dict[str, Any]:
            event_writer.remaining(reply, reasoning=prepared.served_model.direct)
            trace = response_call.call.options.trace
            response = finished_response(
                event_writer.base, event_writer.output, run, reply, trace=trace
            )
            await self._responses.save(response_call, caller, response)
            return response

        await send_answer(
            self._service,
            self._state.request_scopes,
            prepared=prepared,
            render=render,
            receive=receive,
            send=send,
        )

    async def _submit_background(
        self,
        response_call: ResponseCall,
        body: Fields,
        history: ResponseHistory,
        caller: Caller,
        *,
        receive: Receive,
        send: Send,
    ) -> None:
        queued = await self._background.submit(response_call, body, history, caller)
        if not response_call.call.stream:
            await send_json(send, queued)
            return
        events = self._background.events(queued["id"], caller, -1)
        await send_events(self._state, events, response=queued, receive=receive, send=send)
