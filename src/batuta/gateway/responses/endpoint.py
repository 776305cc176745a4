"""POST /v1/responses."""

from __future__ import annotations

from functools import partial
from time import time
from typing import Any, final

from starlette.types import Receive, Scope, Send

from batuta.core import Reply, Run
from batuta.gateway.access.caller import Caller, caller_of
from batuta.gateway.http.body import Fields, send_json
from batuta.gateway.responses.background import BackgroundResponses
from batuta.gateway.responses.events import ResponseEventWriter
from batuta.gateway.responses.request import (
    ResponseCall,
    ResponseHistory,
    parse_history_references,
    parse_with_history,
)
from batuta.gateway.responses.response import finished_response, new_response
from batuta.gateway.responses.store import ResponseStore
from batuta.gateway.responses.stream import ResponsesStreamRenderer, SSEEventSink, send_events
from batuta.gateway.serving.deliver import AnswerDelivery
from batuta.gateway.serving.uploaded_files import UploadedFiles
from batuta.store.responses import response_id


@final
class ResponsesEndpoint:
    """Answers a Responses body: whole, streamed, or in the background."""

    def __init__(
        self,
        delivery: AnswerDelivery,
        responses: ResponseStore,
        background: BackgroundResponses,
        files: UploadedFiles,
    ) -> None:
        self._files = files
        self._delivery = delivery
        self._responses = responses
        self._background = background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: before anything was said.
        """
        body = await self._files.read_fields(scope, receive)
        caller = caller_of(scope)
        past = await self._responses.load_history(parse_history_references(body), scope)
        asked = await parse_with_history(body, past)
        if asked.background:
            await self._submit_background(
                asked, body, history=past, caller=caller, receive=receive, send=send
            )
            return
        delivery = self._delivery
        async with delivery.service.prepare_call(asked.call, caller) as prepared:
            base = new_response(asked.echo, response_id(prepared.run_id), int(time()))
            events = ResponseEventWriter(base, compacts=asked.compacts)
            if asked.call.stream:
                keep = partial(self._responses.save, asked, caller)
                sink = SSEEventSink(
                    send, delivery.timeouts, events.in_progress, keep_events=asked.call.store
                )
                renderer = ResponsesStreamRenderer(sink, events, prepared, keep)
                await delivery.stream_answer(prepared, renderer, sink.writer, receive)
                return

            async def render(run: Run, reply: Reply) -> dict[str, Any]:
                events.remaining(reply, reasoning=prepared.served_model.direct)
                trace = asked.call.options.trace
                response = finished_response(events.base, events.output, run, reply, trace=trace)
                await self._responses.save(asked, caller, response)
                return response

            await delivery.send_answer(prepared, render, receive, send)

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
        await send_events(self._delivery, events, response=queued, receive=receive, send=send)
