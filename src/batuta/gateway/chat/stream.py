"""A run as the server-sent events of a streamed chat completion."""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any, final

from batuta.core import (
    Delta,
    Event,
    Reply,
    Run,
    StepDelta,
    TokenLogprob,
    ToolCall,
)
from batuta.gateway.chat.response import (
    completion_id,
    finish_reason,
    logprobs_object,
    tool_call_object,
)
from batuta.gateway.errors import APIError
from batuta.gateway.http.json_codec import encode_json
from batuta.gateway.http.sse import SSEWriter
from batuta.gateway.serving.prepared_call import PreparedCall
from batuta.gateway.serving.progress import RunProgress
from batuta.gateway.serving.progress_piece import ProgressPiece
from batuta.gateway.serving.trace import orchestration_of, usage_of

DONE_FRAME = b"data: [DONE]\n\n"


@final
class ChatStreamRenderer:
    """Writes the chunks of one run: progress, then the last step's words, then the end."""

    def __init__(self, writer: SSEWriter, prepared: PreparedCall) -> None:
        """Prepares what every chunk begins and ends with."""
        self._writer = writer
        self._progress = RunProgress(prepared)
        self._call = prepared.call
        self._base: dict[str, Any] = {
            "id": completion_id(prepared.run_id),
            "object": "chat.completion.chunk",
            "created": int(time()),
            "model": prepared.call.model,
        }
        self._heads: dict[int, bytes] = {}
        self._head = self._head_of(0)
        self._tail = b',"logprobs":null,"finish_reason":null}]}\n\n'
        self._texts: dict[int, list[str]] = {}
        """What was shown of each choice."""
        self._tools: set[tuple[int, int]] = set()
        """The tool calls that were begun: their choice and their index."""
        self._mid_line = False
        """Whether the last progress told ended within a line."""

    async def open(self, headers: dict[str, str]) -> None:
        """The headers and the first chunk, before anything is planned."""
        await self._writer.open(headers)
        await self._write_chunk({"role": "assistant", "content": ""})

    async def on_event(self, event: Event) -> None:
        """Shows what is to be shown of an event of the run."""
        if isinstance(event, StepDelta):
            delta = self._progress.visible_delta(event)
            if delta is not None:
                await self._write_delta(delta)
                return
        pieces = self._progress.pieces(event)
        if pieces:
            await self._writer.write(b"".join(map(self._piece_frame, pieces)))

    async def finish(self, run: Run, reply: Reply) -> None:
        """What was not shown yet, the reasons for the end, the usage, and the end."""
        for number, said in enumerate(reply.choices):
            await self._write_rest(said, number)
        ends: list[dict[str, Any]] = [
            {"index": number, "delta": {}, "logprobs": None, "finish_reason": finish_reason(said)}
            for number, said in enumerate(reply.choices)
        ]
        chunks: list[dict[str, Any]] = [{**self._base, "choices": [end]} for end in ends]
        told = orchestration_of(run, trace=self._call.options.trace)
        if told is not None:
            chunks[-1]["orchestration"] = told
        if self._call.include_usage:
            chunks.append({**self._base, "choices": [], "usage": usage_of(run)})
        frames = [b"data: " + encode_json(chunk) + b"\n\n" for chunk in chunks]
        await self._writer.close(b"".join((*frames, DONE_FRAME)))

    async def fail(self, error: APIError) -> None:
        """An error after the 200: no reason for an end, no `[DONE]`."""
        await self._writer.close(b"data: " + encode_json(error.body) + b"\n\n")

    def matches(self, reply: Reply) -> bool:
        """Whether what was shown is the beginning of that reply, and of its alternatives."""
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
        if delta.reasoning and self._progress.direct:
            fields["reasoning_content"] = delta.reasoning
        if delta.tool_index is not None:
            fields["tool_calls"] = [self._tool_delta(delta, delta.tool_index)]
        if fields or delta.logprobs:
            await self._write_chunk(fields, delta.choice, delta.logprobs)

    def _tool_delta(self, delta: Delta, index: int) -> dict[str, Any]:
        if (delta.choice, index) in self._tools:
            return {"index": index, "function": {"arguments": delta.tool_arguments}}
        self._tools.add((delta.choice, index))
        call = ToolCall(id=delta.tool_id, name=delta.tool_name, arguments=delta.tool_arguments)
        return {"index": index, **tool_call_object(call)}

    async def _write_rest(self, reply: Reply, number: int) -> None:
        """What of the reply was not shown as it came."""
        if reply.reasoning and self._progress.direct and not self._progress.has_streamed:
            await self._write_chunk({"reasoning_content": reply.reasoning}, number)
        shown = sum(map(len, self._texts.get(number, ())))
        text = reply.text[shown:]
        if text:
            field = "refusal" if reply.is_refusal else "content"
            await self._write_chunk({field: text}, number, () if shown else reply.logprobs)
        for index, call in enumerate(reply.tool_calls):
            if (number, index) not in self._tools:
                told = {"index": index, **tool_call_object(call)}
                await self._write_chunk({"tool_calls": [told]}, number)

    async def _write_chunk(
        self, delta: dict[str, Any], number: int = 0, logprobs: Sequence[TokenLogprob] = ()
    ) -> None:
        head, tail = self._head, self._tail
        if number:
            if number not in self._heads:
                delta = {"role": "assistant", **delta}
            head = self._head_of(number)
        if logprobs:
            told = encode_json(logprobs_object(logprobs))
            tail = b',"logprobs":' + told + b',"finish_reason":null}]}\n\n'
        await self._writer.write(head + encode_json(delta) + tail)

    def _head_of(self, number: int) -> bytes:
        """What a chunk of that choice begins with."""
        if number not in self._heads:
            place = b',"choices":[{"index":%d,"delta":' % number
            self._heads[number] = b"data: " + encode_json(self._base)[:-1] + place
        return self._heads[number]
