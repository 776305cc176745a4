"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any, final

from starlette.types import Receive, Scope, Send

from batuta.core import Reply, Run
from batuta.gateway.caller import caller_of
from batuta.gateway.deliver import streamed, whole
from batuta.gateway.line import Line
from batuta.gateway.models import Orchestra
from batuta.gateway.play import Player
from batuta.gateway.reply import ReaderGone, read_fields
from batuta.gateway.stream import ChatStream
from batuta.gateway.wire.chat import parse_chat
from batuta.gateway.wire.completion import chat_completion


@final
class ChatEndpoint:
    """Answers a chat body, whole or streamed."""

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
        call = parse_chat(body)
        player, flights = self._player, self._orchestra.flights
        async with player.book(call, caller_of(scope)) as booking:
            if call.stream:
                line = Line(send, self._orchestra.timing)
                teller = ChatStream(line, booking)
                await streamed(player, flights, booking, teller, line, receive)
                return

            async def render(run: Run, reply: Reply) -> dict[str, Any]:
                return chat_completion(run, reply, call.model, trace=call.wishes.trace)

            await whole(player, flights, booking, render, receive, send)
