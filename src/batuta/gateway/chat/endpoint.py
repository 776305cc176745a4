"""POST /v1/chat/completions and POST /v1/completions: two forms of one answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, final

from starlette.types import Receive, Scope, Send

from batuta.core import Reply, Run
from batuta.gateway.access.caller import caller_of
from batuta.gateway.chat.request import parse_chat
from batuta.gateway.chat.response import ChatStreamRenderer, chat_completion
from batuta.gateway.chat.text_completion import (
    TextCompletionStreamRenderer,
    parse_completion,
    render_text_completion,
)
from batuta.gateway.http.body import BodyReader, Fields
from batuta.gateway.http.reader import SSEWriter
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.deliver import AnswerDelivery, StreamRenderer
from batuta.gateway.serving.parsed_call import ParsedCall


class RenderCompletion(Protocol):
    """Writes a whole answer."""

    def __call__(self, run: Run, reply: Reply, model: str, *, trace: bool) -> dict[str, Any]:
        """Return the body of a run that has an answer."""
        ...


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """How a body is read and its answer written."""

    parse: Callable[[Fields], ParsedCall]
    render: RenderCompletion
    stream: Callable[[SSEWriter, PreparedCall], StreamRenderer]


CHAT_FORM = CompletionForm(parse_chat, chat_completion, ChatStreamRenderer)
TEXT_FORM = CompletionForm(parse_completion, render_text_completion, TextCompletionStreamRenderer)


@final
class CompletionEndpoint:
    """Answers bodies of one form, whole or streamed."""

    def __init__(self, delivery: AnswerDelivery, form: CompletionForm, read: BodyReader) -> None:
        self._delivery = delivery
        self._read = read
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: before anything was said.
        """
        body = await self._read(scope, receive)
        form, delivery = self._form, self._delivery
        call = form.parse(body)
        async with delivery.service.prepare_call(call, caller_of(scope)) as prepared:
            if call.stream:
                writer = SSEWriter(send, delivery.timeouts)
                await delivery.stream_answer(
                    prepared, form.stream(writer, prepared), writer, receive
                )
                return

            async def render(run: Run, reply: Reply) -> dict[str, Any]:
                return form.render(run, reply, call.model, trace=call.options.trace)

            await delivery.send_answer(prepared, render, receive, send)
