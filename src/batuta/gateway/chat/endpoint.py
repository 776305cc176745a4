"""POST /v1/chat/completions: the endpoint, and its answer as an object or as stream chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time
from typing import Any, Protocol, final

from starlette.types import Receive, Scope, Send

from batuta.core import Delta, Event, Finish, Image, Reply, Run, StepDelta, TokenLogprob, ToolCall
from batuta.gateway.access.caller import caller_of
from batuta.gateway.chat.request import parse_chat
from batuta.gateway.errors import APIError
from batuta.gateway.http.body import BodyReader, Fields, encode_json, parse_fields
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.deliver import (
    AnswerDelivery,
    SSEWriter,
    StreamRenderer,
    orchestration_field,
    usage_of,
)
from batuta.gateway.serving.parsed_call import ParsedCall
from batuta.gateway.serving.progress import ProgressPiece, RunProgress
from batuta.gateway.serving.server_tools import CitedPlace, find_citations, found_pages


def chat_completion(run: Run, reply: Reply, model: str, *, trace: bool) -> dict[str, Any]:
    """Return the answer of a run as a `chat.completion` object.

    Args:
        run: the run that gave the answer.
        reply: the worker's reply that is the answer.
        model: the model name in the request.
        trace: whether to include the whole run.
    """
    choices = [
        {
            "index": index,
            "message": _message_object(choice),
            "logprobs": logprobs_object(choice.logprobs),
            "finish_reason": finish_reason(choice),
        }
        for index, choice in enumerate(reply.choices)
    ]
    return {
        "id": completion_id(run.id),
        "object": "chat.completion",
        "created": int(run.header.started),
        "model": model,
        "choices": choices,
        "usage": usage_of(run),
        **orchestration_field(run, trace=trace),
    }


def completion_id(run_id: str) -> str:
    """Return the completion's id, which contains the run's id."""
    return f"chatcmpl-{run_id}"


def logprobs_object(tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """Return the log probabilities of a choice; None if there are none."""
    if not tokens:
        return None
    return {"content": [token_object(token) for token in tokens], "refusal": None}


def token_object(token: TokenLogprob) -> dict[str, Any]:
    """Return a token with its log probability and its most probable alternatives."""
    return {**_bare_token(token), "top_logprobs": [_bare_token(other) for other in token.others]}


def _bare_token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": token.utf8}


def finish_reason(reply: Reply) -> str:
    """Return the API's `finish_reason` of the reply."""
    truncated = reply.finish in {Finish.LENGTH, Finish.CONTENT_FILTER}
    if reply.tool_calls and not truncated:
        return "tool_calls"
    ended = reply.finish in {Finish.DECLINED, Finish.NO_OUTPUT} or reply.is_refusal
    return "stop" if ended else reply.finish.value


def tool_call_object(call: ToolCall) -> dict[str, Any]:
    """Return a tool call in the API's form."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _message_object(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text or (None if reply.tool_calls else ""),
        "refusal": None,
    }
    if reply.is_refusal:
        message |= {"content": None, "refusal": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.images:
        message["images"] = [_image_object(*numbered) for numbered in enumerate(reply.images)]
    if annotations := _find_annotations(reply):
        message["annotations"] = annotations
    if reply.tool_calls:
        message["tool_calls"] = [tool_call_object(call) for call in reply.tool_calls]
    return message


def _image_object(index: int, image: Image) -> dict[str, Any]:
    """Return an image in the form that providers of this dialect use for generated images."""
    return {"type": "image_url", "index": index, "image_url": {"url": image.url}}


def _find_annotations(reply: Reply) -> list[dict[str, Any]]:
    """Return the annotations of the citations in the text."""
    if not reply.server_calls:
        return []
    places = find_citations(reply.text, found_pages(reply))
    return [_annotation_object(place, reply.text) for place in places]


def _annotation_object(place: CitedPlace, text: str) -> dict[str, Any]:
    """Return a citation as an annotation; files use the form of OpenAI's Assistants API."""
    page, where = place.page, {"start_index": place.start, "end_index": place.end}
    if page.file:
        named = {"file_id": page.file, "filename": page.title, "quote": page.excerpt}
        mark = text[place.start : place.end]
        return {"type": "file_citation", "text": mark, **where, "file_citation": named}
    named = {**where, "url": page.url, "title": page.title}
    return {"type": "url_citation", "url_citation": named}


DONE_FRAME = b"data: [DONE]\n\n"


@final
class ChatStreamRenderer:
    """Writes the chunks of one run: its progress, the answer, then the end."""

    def __init__(self, writer: SSEWriter, prepared: PreparedCall) -> None:
        self._writer = writer
        self._direct = prepared.served_model.direct
        """Whether a single worker answers directly.

        Then its reasoning is sent, and progress only with `stream_steps`."""
        steps = prepared.call.options.stream_steps
        self._progress = RunProgress(prepared) if steps or not self._direct else None
        """The progress sent beside the answer; None if no progress is sent."""
        self._has_streamed = False
        """Whether a part of the answer has been streamed."""
        self._call = prepared.call
        self._base: dict[str, Any] = {
            "id": completion_id(prepared.run_id),
            "object": "chat.completion.chunk",
            "created": int(time()),
            "model": prepared.call.model,
        }
        self._heads: dict[int, bytes] = {}
        """The encoded beginning of the chunks, by choice; added before a choice's first chunk."""
        self._head = self._head_of(0)
        self._tail = b',"logprobs":null,"finish_reason":null}]}\n\n'
        self._texts: dict[int, list[str]] = {}
        """Text sent so far, by choice."""
        self._tools: dict[tuple[int, int], int] = {}
        """Number of argument characters sent so far, by choice and index of the tool call."""
        self._images: dict[int, int] = {}
        """Number of images sent so far, by choice."""
        self._mid_line = False
        """Whether the last progress text did not end with a newline."""

    async def open(self, headers: dict[str, str]) -> None:
        """Send the headers and the first chunk, before anything is planned."""
        await self._writer.open(headers)
        await self._write_chunk({"role": "assistant", "content": ""})

    async def on_event(self, event: Event) -> None:
        """Send the chunks for an event of the run, if there are any."""
        if isinstance(event, StepDelta) and event.is_answer:
            self._has_streamed = True
            if self._progress is not None:
                self._progress.has_streamed = True
            await self._write_delta(event.delta)
        elif self._progress is not None and (pieces := self._progress.pieces(event)):
            await self._writer.write(b"".join(map(self._piece_frame, pieces)))

    async def finish(self, run: Run, reply: Reply) -> None:
        """Send what was not streamed, the finish reasons, the usage if requested, and `[DONE]`.

        The chunk of the last finish reason also has the `orchestration_field`.
        """
        for number, choice in enumerate(reply.choices):
            await self._write_rest(choice, number)
        ends: list[dict[str, Any]] = [
            {"index": number, "delta": {}, "logprobs": None, "finish_reason": finish_reason(choice)}
            for number, choice in enumerate(reply.choices)
        ]
        chunks: list[dict[str, Any]] = [{**self._base, "choices": [end]} for end in ends]
        chunks[-1] |= orchestration_field(run, trace=self._call.options.trace)
        if self._call.include_usage:
            chunks.append({**self._base, "choices": [], "usage": usage_of(run)})
        frames = [b"data: " + encode_json(chunk) + b"\n\n" for chunk in chunks]
        await self._writer.close(b"".join((*frames, DONE_FRAME)))

    async def fail(self, error: APIError) -> None:
        """Send an error after status 200, without a finish reason and without `[DONE]`."""
        await self._writer.close(b"data: " + encode_json(error.body) + b"\n\n")

    def matches(self, reply: Reply) -> bool:
        """Return True if the text sent so far is a prefix of the reply, for every choice."""
        choices = reply.choices
        return all(
            number < len(choices) and choices[number].text.startswith("".join(texts))
            for number, texts in self._texts.items()
        )

    def _piece_frame(self, piece: ProgressPiece) -> bytes:
        text = piece.text
        if piece.is_line:
            text = f"\n{text}\n" if self._mid_line else f"{text}\n"
        self._mid_line = not text.endswith("\n")
        tail = self._tail
        if piece.step is not None:
            tail = self._tail[:-3] + b',"orchestration":' + encode_json(piece.step) + b"}\n\n"
        return self._head + encode_json({"reasoning_content": text}) + tail

    async def _write_delta(self, delta: Delta) -> None:
        fields: dict[str, Any] = {}
        if delta.text:
            self._texts.setdefault(delta.choice, []).append(delta.text)
            fields["refusal" if delta.is_refusal else "content"] = delta.text
        if delta.reasoning and self._direct:
            fields["reasoning_content"] = delta.reasoning
        if delta.tool_index is not None:
            fields["tool_calls"] = [self._tool_delta(delta, delta.tool_index)]
        if delta.image is not None:
            fields["images"] = [self._next_image(delta.choice, delta.image)]
        if fields or delta.logprobs:
            await self._write_chunk(fields, delta.choice, delta.logprobs)

    def _next_image(self, number: int, image: Image) -> dict[str, Any]:
        index = self._images.get(number, 0)
        self._images[number] = index + 1
        return _image_object(index, image)

    def _tool_delta(self, delta: Delta, index: int) -> dict[str, Any]:
        key, length = (delta.choice, index), len(delta.tool_arguments)
        if key in self._tools:
            self._tools[key] += length
            return {"index": index, "function": {"arguments": delta.tool_arguments}}
        self._tools[key] = length
        call = ToolCall(id=delta.tool_id, name=delta.tool_name, arguments=delta.tool_arguments)
        return {"index": index, **tool_call_object(call)}

    async def _write_rest(self, reply: Reply, number: int) -> None:
        """Send the part of the reply that was not streamed."""
        if reply.reasoning and self._direct and not self._has_streamed:
            await self._write_chunk({"reasoning_content": reply.reasoning}, number)
        sent = sum(map(len, self._texts.get(number, ())))
        text = reply.text[sent:]
        if text:
            field = "refusal" if reply.is_refusal else "content"
            await self._write_chunk({field: text}, number, () if sent else reply.logprobs)
        for image in reply.images[self._images.get(number, 0) :]:
            await self._write_chunk({"images": [self._next_image(number, image)]}, number)
        if annotations := _find_annotations(reply):
            await self._write_chunk({"annotations": annotations}, number)
        for index, call in enumerate(reply.tool_calls):
            sent_characters = self._tools.get((number, index))
            rest = call.arguments[sent_characters or 0 :]
            if sent_characters is None:
                entry = {"index": index, **tool_call_object(call)}
                await self._write_chunk({"tool_calls": [entry]}, number)
            elif rest:  # such as the empty object of a call without arguments
                entry = {"index": index, "function": {"arguments": rest}}
                await self._write_chunk({"tool_calls": [entry]}, number)

    async def _write_chunk(
        self, delta: dict[str, Any], number: int = 0, logprobs: Sequence[TokenLogprob] = ()
    ) -> None:
        head, tail = self._head, self._tail
        if number:
            if number not in self._heads:
                delta = {"role": "assistant", **delta}
            head = self._head_of(number)
        if logprobs:
            encoded = encode_json(logprobs_object(logprobs))
            tail = b',"logprobs":' + encoded + b',"finish_reason":null}]}\n\n'
        await self._writer.write(head + encode_json(delta) + tail)

    def _head_of(self, number: int) -> bytes:
        """Return the encoded beginning of the chunks of choice `number`, up to the delta."""
        if number not in self._heads:
            choice = b',"choices":[{"index":%d,"delta":' % number
            self._heads[number] = b"data: " + encode_json(self._base)[:-1] + choice
        return self._heads[number]


class RenderCompletion(Protocol):
    """Builds the body of an answer that is not streamed."""

    def __call__(self, run: Run, reply: Reply, model: str, *, trace: bool) -> dict[str, Any]:
        """Return the body for the answer of a run."""
        ...


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """The parser and the renderers of one completion dialect."""

    parse: Callable[[Fields], ParsedCall]
    render: RenderCompletion
    stream: Callable[[SSEWriter, PreparedCall], StreamRenderer]


CHAT_FORM = CompletionForm(parse_chat, chat_completion, ChatStreamRenderer)


@final
class CompletionEndpoint:
    """Answers requests of one dialect, whole or streamed."""

    def __init__(self, delivery: AnswerDelivery, form: CompletionForm, read: BodyReader) -> None:
        self._delivery = delivery
        self._read = read
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: the request fails before the response has started.
            StoreError: the database fails before the response has started.
            ClientGone: the client disconnects before the body is read.
        """
        body = await self._read(scope, receive)
        form, delivery = self._form, self._delivery
        call = await parse_fields(form.parse, body)
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
