"""A run as the server-sent events of a streamed chat completion."""

from __future__ import annotations

from time import time
from typing import Any, final

from batuta.core import (
    Delta,
    Event,
    Reply,
    Run,
    Spoke,
    ToolCall,
)
from batuta.gateway.line import Line
from batuta.gateway.play import Booking
from batuta.gateway.progress import Progress
from batuta.gateway.refusal import Refusal
from batuta.gateway.wire.completion import (
    completion_id,
    finish_reason,
    orchestration_of,
    tool_call,
    usage_of,
)
from batuta.gateway.wire.encoding import encode

DONE = b"data: [DONE]\n\n"


@final
class ChatStream:
    """Writes the chunks of one run: progress, then the last step's words, then the end."""

    def __init__(self, line: Line, booking: Booking) -> None:
        """Prepares what every chunk begins and ends with."""
        self._line = line
        self._progress = Progress(booking)
        self._call = booking.call
        self._base: dict[str, Any] = {
            "id": completion_id(booking.run_id),
            "object": "chat.completion.chunk",
            "created": int(time()),
            "model": booking.call.model,
        }
        self._head = b"data: " + encode(self._base)[:-1] + b',"choices":[{"index":0,"delta":'
        self._tail = b',"logprobs":null,"finish_reason":null}]}\n\n'
        self._texts: list[str] = []
        self._tools: set[int] = set()

    async def open(self, headers: dict[str, str]) -> None:
        """The headers and the first chunk, before anything is planned."""
        await self._line.open(headers)
        await self._chunk({"role": "assistant", "content": ""})

    async def hear(self, event: Event) -> None:
        """Shows what is to be shown of an event of the run."""
        if isinstance(event, Spoke):
            delta = self._progress.fragment(event)
            if delta is not None:
                await self._say(delta)
        elif line := self._progress.line(event):
            await self._chunk({"reasoning_content": f"{line}\n"})

    async def finish(self, run: Run, reply: Reply) -> None:
        """What was not shown yet, the reason for the end, the usage, and the end."""
        await self._rest(reply)
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {},
            "logprobs": None,
            "finish_reason": finish_reason(reply),
        }
        last: dict[str, Any] = {**self._base, "choices": [choice]}
        told = orchestration_of(run, trace=self._call.wishes.trace)
        if told is not None:
            last["orchestration"] = told
        frames = b"data: " + encode(last) + b"\n\n"
        if self._call.include_usage:
            usage: dict[str, Any] = {**self._base, "choices": [], "usage": usage_of(run)}
            frames += b"data: " + encode(usage) + b"\n\n"
        await self._line.close(frames + DONE)

    async def fail(self, refusal: Refusal) -> None:
        """An error after the 200: no reason for an end, no `[DONE]`."""
        await self._line.close(b"data: " + encode(refusal.body) + b"\n\n")

    def agrees(self, reply: Reply) -> bool:
        """Whether what was shown is the beginning of that reply."""
        return reply.text.startswith("".join(self._texts))

    async def _say(self, delta: Delta) -> None:
        fields: dict[str, Any] = {}
        if delta.text:
            self._texts.append(delta.text)
            fields["content"] = delta.text
        if delta.reasoning and self._progress.direct:
            fields["reasoning_content"] = delta.reasoning
        if delta.tool_index is not None:
            fields["tool_calls"] = [self._tool_delta(delta, delta.tool_index)]
        if fields:
            await self._chunk(fields)

    def _tool_delta(self, delta: Delta, index: int) -> dict[str, Any]:
        if index in self._tools:
            return {"index": index, "function": {"arguments": delta.tool_arguments}}
        self._tools.add(index)
        call = ToolCall(delta.tool_id, delta.tool_name, delta.tool_arguments)
        return {"index": index, **tool_call(call)}

    async def _rest(self, reply: Reply) -> None:
        """What of the reply was not shown as it came."""
        if reply.reasoning and self._progress.direct and not self._progress.live:
            await self._chunk({"reasoning_content": reply.reasoning})
        text = reply.text[sum(map(len, self._texts)) :]
        if text:
            await self._chunk({"content": text})
        for index, call in enumerate(reply.tool_calls):
            if index not in self._tools:
                await self._chunk({"tool_calls": [{"index": index, **tool_call(call)}]})

    async def _chunk(self, delta: dict[str, Any]) -> None:
        await self._line.write(self._head + encode(delta) + self._tail)
