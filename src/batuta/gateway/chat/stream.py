"""A run as the server-sent events of a streamed chat completion."""

from __future__ import annotations

from time import time
from typing import Any, final

from batuta.core import (
    Delta,
    Event,
    Reply,
    Run,
    StepDelta,
    ToolCall,
)
from batuta.gateway.chat.response import (
    completion_id,
    finish_reason,
    orchestration_of,
    tool_call_object,
    usage_of,
)
from batuta.gateway.errors import APIError
from batuta.gateway.http.json_codec import encode_json
from batuta.gateway.http.sse import SSEWriter
from batuta.gateway.serving.execute import PreparedCall
from batuta.gateway.serving.progress import RunProgress
from batuta.gateway.serving.progress_piece import ProgressPiece

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
        self._head = b"data: " + encode_json(self._base)[:-1] + b',"choices":[{"index":0,"delta":'
        self._tail = b',"logprobs":null,"finish_reason":null}]}\n\n'
        self._texts: list[str] = []
        self._tools: set[int] = set()
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
        """What was not shown yet, the reason for the end, the usage, and the end."""
        await self._write_rest(reply)
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {},
            "logprobs": None,
            "finish_reason": finish_reason(reply),
        }
        last: dict[str, Any] = {**self._base, "choices": [choice]}
        told = orchestration_of(run, trace=self._call.options.trace)
        if told is not None:
            last["orchestration"] = told
        frames = b"data: " + encode_json(last) + b"\n\n"
        if self._call.include_usage:
            usage: dict[str, Any] = {**self._base, "choices": [], "usage": usage_of(run)}
            frames += b"data: " + encode_json(usage) + b"\n\n"
        await self._writer.close(frames + DONE_FRAME)

    async def fail(self, error: APIError) -> None:
        """An error after the 200: no reason for an end, no `[DONE]`."""
        await self._writer.close(b"data: " + encode_json(error.body) + b"\n\n")

    def matches(self, reply: Reply) -> bool:
        """Whether what was shown is the beginning of that reply."""
        return reply.text.startswith("".join(self._texts))

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
            self._texts.append(delta.text)
            fields["refusal" if delta.is_refusal else "content"] = delta.text
        if delta.reasoning and self._progress.direct:
            fields["reasoning_content"] = delta.reasoning
        if delta.tool_index is not None:
            fields["tool_calls"] = [self._tool_delta(delta, delta.tool_index)]
        if fields:
            await self._write_chunk(fields)

    def _tool_delta(self, delta: Delta, index: int) -> dict[str, Any]:
        if index in self._tools:
            return {"index": index, "function": {"arguments": delta.tool_arguments}}
        self._tools.add(index)
        call = ToolCall(id=delta.tool_id, name=delta.tool_name, arguments=delta.tool_arguments)
        return {"index": index, **tool_call_object(call)}

    async def _write_rest(self, reply: Reply) -> None:
        """What of the reply was not shown as it came."""
        if reply.reasoning and self._progress.direct and not self._progress.has_streamed:
            await self._write_chunk({"reasoning_content": reply.reasoning})
        text = reply.text[sum(map(len, self._texts)) :]
        if text:
            await self._write_chunk({"refusal" if reply.is_refusal else "content": text})
        for index, call in enumerate(reply.tool_calls):
            if index not in self._tools:
                await self._write_chunk(
                    {"tool_calls": [{"index": index, **tool_call_object(call)}]}
                )

    async def _write_chunk(self, delta: dict[str, Any]) -> None:
        await self._writer.write(self._head + encode_json(delta) + self._tail)
