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
from batuta.gateway.serving.deliver import AnswerDelivery


@final
class ChatEndpoint:
    """Answers a chat body, whole or streamed."""

    def __init__(self, delivery: AnswerDelivery) -> None:
        self._delivery = delivery

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: before anything was said.
        """
        try:
            body = await read_fields(scope, receive)
        except ClientGone:
            return
        call, delivery = parse_chat(body), self._delivery
        async with delivery.service.prepare_call(call, caller_of(scope)) as prepared:
            if call.stream:
                writer = SSEWriter(send, delivery.timeouts)
                renderer = ChatStreamRenderer(writer, prepared)
                await delivery.stream_answer(prepared, renderer, writer, receive)
                return

            async def render(run: Run, reply: Reply) -> dict[str, Any]:
                return chat_completion(run, reply, call.model, trace=call.options.trace)

            await delivery.send_answer(prepared, render, receive, send)
