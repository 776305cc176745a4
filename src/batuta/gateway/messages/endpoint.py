"""POST /v1/messages and /v1/messages/count_tokens: the endpoints of Anthropic's Messages API."""

from __future__ import annotations

from functools import partial
from typing import Any, final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from batuta.core import Event, Question, Reply, Run, StepDelta
from batuta.gateway.access.caller import caller_of
from batuta.gateway.errors import APIError, messages_error_body
from batuta.gateway.http.body import BodyReader, json_response, parse_fields
from batuta.gateway.http.middleware import request_id
from batuta.gateway.messages.request import MessageCall, parse_message, parse_question
from batuta.gateway.messages.response import MessageEventWriter, message_object
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.attachments import read_office_files
from batuta.gateway.serving.cost_bound import estimate_prompt_tokens
from batuta.gateway.serving.deliver import AnswerDelivery, SSEWriter, event_frame
from batuta.gateway.serving.execute import RunService
from batuta.gateway.serving.progress import RunProgress
from batuta.offload.threads import read_off_loop

PING_FRAME = event_frame({"type": "ping"})


@final
class MessagesEndpoint:
    """Answers a Messages request, whole or streamed."""

    def __init__(self, delivery: AnswerDelivery, read: BodyReader) -> None:
        self._delivery = delivery
        self._read = read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: the request fails before the response has started.
            StoreError: the database fails before the response has started.
            ClientGone: the client disconnects before the body is read.
        """
        body = await self._read(scope, receive)
        message_call, delivery = await parse_fields(parse_message, body), self._delivery
        async with delivery.service.prepare_call(message_call.call, caller_of(scope)) as prepared:
            if message_call.call.stream:
                writer = SSEWriter(send, delivery.timeouts, lambda: PING_FRAME)
                renderer = MessagesStreamRenderer(
                    writer,
                    prepared,
                    message_call,
                    request_id(scope),
                    tokens=await _count_tokens(message_call.call.question),
                )
                await delivery.stream_answer(prepared, renderer, writer, receive)
                return

            async def render(run: Run, reply: Reply) -> dict[str, Any]:
                return message_object(
                    run,
                    reply,
                    message_call.call.model,
                    reasoning=message_call.show_thinking and prepared.served_model.direct,
                    trace=message_call.call.options.trace,
                )

            await delivery.send_answer(prepared, render, receive, send)


@final
class TokenCounter:
    """Estimates the number of tokens of a request."""

    def __init__(self, service: RunService, read: BodyReader) -> None:
        self._service = service
        self._read = read

    async def count(self, request: Request) -> Response:
        """Serve one request; the count is an estimate, because the workers' tokenizers differ.

        Raises:
            APIError: the body is malformed or refused, one of its files cannot be read, or the
                model is not served.
            StoreError: the database fails, and the body names an uploaded file.
            ClientGone: the client disconnects before the body is read.
        """
        body = await self._read(request.scope, request.receive)
        self._service.find_model(body.need_text("model"))
        question = await read_office_files(await parse_fields(parse_question, body))
        return json_response({"input_tokens": await _count_tokens(question)})


async def _count_tokens(question: Question) -> int:
    return await read_off_loop(question.messages, partial(estimate_prompt_tokens, question))


@final
class MessagesStreamRenderer:
    """Streams a run as the events of a message."""

    def __init__(
        self,
        writer: SSEWriter,
        prepared: PreparedCall,
        message_call: MessageCall,
        request_id: str | None,
        *,
        tokens: int,
    ) -> None:
        """Prepare the first event.

        Args:
            writer: receives the events.
            prepared: the call that is run.
            message_call: the parsed request.
            request_id: the request's id, which is shown in errors; None: it has none.
            tokens: estimated number of tokens of the question.
        """
        self._writer = writer
        self._progress = RunProgress(prepared)
        self._call = message_call
        self._request_id = request_id
        call = message_call.call
        self._events = MessageEventWriter(prepared.run_id, call.model, tokens)

    async def open(self, headers: dict[str, str]) -> None:
        """Send the headers and the first events, before anything is planned."""
        await self._writer.open(headers)
        await self._write_events(self._events.begin())

    async def on_event(self, event: Event) -> None:
        """Send the message's events for an event of the run, if there are any."""
        if isinstance(event, StepDelta):
            delta = self._progress.visible_delta(event)
            if delta is not None:
                thinks = self._progress.direct and self._call.show_thinking
                await self._write_events(self._events.fragment(delta, thinks=thinks))
                return
        pieces = self._progress.pieces(event)
        if self._call.show_thinking or self._progress.shows_steps:
            await self._write_events([e for p in pieces for e in self._events.progress(p)])

    def matches(self, reply: Reply) -> bool:
        """Return True if the text sent so far is a prefix of the reply."""
        return reply.text.startswith(self._events.text_so_far)

    async def finish(self, run: Run, reply: Reply) -> None:
        """Send the rest of the reply and the last events."""
        shown = self._call.show_thinking and self._progress.direct
        unsent = shown and not self._progress.has_streamed
        await self._write_events(self._events.remaining(reply, reasoning=unsent, thoughts=shown))
        last = self._events.end(run, reply, trace=self._call.call.options.trace)
        await self._writer.close(b"".join(map(event_frame, last)))

    async def fail(self, error: APIError) -> None:
        """Send an error after status 200, without a stop reason and without `message_stop`."""
        await self._writer.close(event_frame(messages_error_body(error, self._request_id)))

    async def _write_events(self, events: list[dict[str, Any]]) -> None:
        if events:
            await self._writer.write(b"".join(map(event_frame, events)))
