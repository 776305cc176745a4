"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect."""

from __future__ import annotations

from typing import Any, final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from batuta.core import Delta, Event, Reply, Run, Spoke, ToolCall
from batuta.gateway.caller import caller_of
from batuta.gateway.deliver import streamed, whole
from batuta.gateway.line import Line
from batuta.gateway.middleware import request_id
from batuta.gateway.models import Orchestra
from batuta.gateway.play import Booking, Player
from batuta.gateway.progress import Progress
from batuta.gateway.refusal import Refusal
from batuta.gateway.reply import ReaderGone, read_fields
from batuta.gateway.response_stream import frame
from batuta.gateway.runs import json_response
from batuta.gateway.wire.fields import Fields
from batuta.gateway.wire.message import MessageScript, error_body, message
from batuta.gateway.wire.message_turns import REASONING
from batuta.gateway.wire.messages import MessageCall, estimate_of, parse_message, parse_question

PING = frame({"type": "ping"})


@final
class MessagesEndpoint:
    """Answers a Messages body, whole or streamed."""

    def __init__(self, orchestra: Orchestra, player: Player) -> None:
        self._orchestra = orchestra
        self._player = player

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Refusal: before anything was said.
        """
        try:
            body = await read_fields(scope, receive)
        except ReaderGone:
            return
        asked = parse_message(body)
        player, flights = self._player, self._orchestra.flights
        async with player.book(asked.call, caller_of(scope)) as booking:
            if asked.call.stream:
                line = Line(send, self._orchestra.timing, lambda: PING)
                teller = MessageTeller(line, booking, asked, request_id(scope))
                await streamed(player, flights, booking, teller, line, receive)
                return

            async def render(run: Run, reply: Reply) -> dict[str, Any]:
                shown = asked.thoughts and booking.served.direct
                return message(
                    run,
                    reply,
                    asked.call.model,
                    thoughts=reply.reasoning if shown else "",
                    trace=asked.call.wishes.trace,
                )

            await whole(player, flights, booking, render, receive, send)


@final
class TokenCounter:
    """Says about how many tokens a body has."""

    def __init__(self, player: Player) -> None:
        self._player = player

    async def count(self, request: Request) -> Response:
        """Serve one request; an estimate, as the workers' tokenizers differ.

        Raises:
            Refusal: the body is malformed, or no such model is served.
        """
        try:
            body: Fields = await read_fields(request.scope, request.receive)
        except ReaderGone:
            return Response(status_code=499)
        self._player.served(body.need_text("model"))
        return json_response({"input_tokens": estimate_of(parse_question(body))})


@final
class MessageTeller:
    """Tells a run as the events of a message."""

    def __init__(
        self, line: Line, booking: Booking, asked: MessageCall, request: str | None
    ) -> None:
        """Prepares the first event.

        Args:
            line: where the events go.
            booking: what is played.
            asked: how it was asked for.
            request: the request's id, which errors tell.
        """
        self._line = line
        self._progress = Progress(booking)
        self._asked = asked
        self._request = request
        self._script = MessageScript(booking.run_id, asked.call.model, asked.estimate)

    async def open(self, headers: dict[str, str]) -> None:
        """The headers and the first events, before anything is planned."""
        await self._line.open(headers)
        await self._tell(self._script.begin())

    async def hear(self, event: Event) -> None:
        """Shows what is to be shown of an event of the run."""
        if isinstance(event, Spoke):
            delta = self._progress.fragment(event)
            if delta is not None:
                await self._say(delta)
        elif self._asked.thoughts and (line := self._progress.line(event)):
            await self._tell(self._script.progress(line))
        else:
            self._progress.line(event)  # it follows the run all the same

    def agrees(self, reply: Reply) -> bool:
        """Whether what was told is the beginning of that reply."""
        return reply.text.startswith(self._script.said)

    async def finish(self, run: Run, reply: Reply) -> None:
        """What was not told yet, and the end."""
        hidden = self._asked.thoughts and self._progress.direct and not self._progress.live
        await self._tell(self._script.rest(reply, reasoning=hidden))
        last = self._script.end(run, reply, trace=self._asked.call.wishes.trace)
        await self._line.close(b"".join(map(frame, last)))

    async def fail(self, refusal: Refusal) -> None:
        """An error after the 200: no reason for an end, no `message_stop`."""
        await self._line.close(frame(error_body(refusal, self._request)))

    async def _say(self, delta: Delta) -> None:
        script = self._script
        if delta.reasoning and self._progress.direct and self._asked.thoughts:
            await self._tell(script.thought(delta.reasoning, REASONING))
        if delta.text:
            await self._tell(script.text(delta.text))
        if delta.tool_index is not None:
            call = ToolCall(delta.tool_id, delta.tool_name, delta.tool_arguments)
            await self._tell(script.call(delta.tool_index, call))

    async def _tell(self, events: list[dict[str, Any]]) -> None:
        if events:
            await self._line.write(b"".join(map(frame, events)))
