"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any, final

from starlette.types import Receive, Scope, Send

from batuta.core import Reply, Run
from batuta.gateway.access.caller import caller_of
from batuta.gateway.chat.request import parse_chat
from batuta.gateway.chat.response import chat_completion
from batuta.gateway.chat.stream import ChatStreamRenderer
from batuta.gateway.http.body import ClientGone, read_fields
from batuta.gateway.http.sse import SSEWriter
from batuta.gateway.serving.deliver import send_answer, stream_answer
from batuta.gateway.serving.execute import RunService
from batuta.gateway.serving.models import ServerState


@final
class ChatEndpoint:
    """Answers a chat body, whole or streamed."""

    def __init__(self, state: ServerState, service: RunService) -> None:
        self._state = state
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: before anything was said.
        """
        try:
            body = await read_fields(scope, receive)
        except ClientGone:
            return
        call = parse_chat(body)
        player, flights = self._service, self._state.request_scopes
        async with player.prepare_call(call, caller_of(scope)) as booking:
            if call.stream:
                line = SSEWriter(send, self._state.stream_timeouts)
                teller = ChatStreamRenderer(line, booking)
                await stream_answer(
                    player, flights, prepared=booking, renderer=teller, writer=line, receive=receive
                )
                return

            async def render(run: Run, reply: Reply) -> dict[str, Any]:
                return chat_completion(run, reply, call.model, trace=call.options.trace)

            await send_answer(
                player, flights, prepared=booking, render=render, receive=receive, send=send
            )
