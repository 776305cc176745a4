"""The events of a streamed response, and the output items that they add up to. Pure.

Every call of a `Script` says what happened and gives the events that tell it, numbered from 0
without a gap. What is told again in the same order has the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, final

from batuta.core import Reply, ToolCall
from batuta.gateway.chat.response import token_object
from batuta.gateway.responses.response import item_id
from batuta.gateway.serving.progress_piece import ProgressPiece

Json = dict[str, Any]
Events = list[Json]


@dataclass(slots=True)
class _OpenToolCall:
    """A function call that is being streamed."""

    index: int
    item: Json
    parts: list[str] = field(default_factory=list[str])


@final
class ResponseEventWriter:
    """Writes events; at most one text or reasoning item is open at a time."""

    def __init__(self, base: Json) -> None:
        """Begins with nothing said.

        Args:
            base: the response as it is before there is an answer.
        """
        self.base = base
        self.output: list[Json] = []
        """The items so far; what is closed stays as it is."""
        self._number = 0
        self._open: Json | None = None
        self._texts: list[str] = []
        self._message_texts: list[str] = []
        """Of `_texts`, those of the open message."""
        self._tools: dict[int, _OpenToolCall] = {}

    @property
    def text_so_far(self) -> str:
        """The text that was told so far."""
        return "".join(self._texts)

    def begin(self) -> Events:
        """The first events."""
        return [self._event("response.created", response=self.base), self.in_progress()]

    def in_progress(self) -> Json:
        """That it is still going on."""
        return self._event("response.in_progress", response=self.base)

    def reasoning(self, text: str, *, new: bool) -> Events:
        """More of the reasoning summary; a `new` part of it, or the last one's next words."""
        events: Events = []
        if self._open is None or self._open["type"] != "reasoning":
            events += self._close_item()
            events.append(self._add_item("rs", {"type": "reasoning", "summary": []}))
        if new or not self._summary:
            events += self._close_part()
            self._summary.append({"type": "summary_text", "text": ""})
            part = {"type": "summary_text", "text": ""}
            events.append(self._part_event("response.reasoning_summary_part.added", part=part))
        self._summary[-1]["text"] += text
        events.append(self._part_event("response.reasoning_summary_text.delta", delta=text))
        return events

    def progress(self, piece: ProgressPiece) -> Events:
        """A line of how the run goes on, or what a step says."""
        events = self.reasoning(piece.text, new=piece.is_line)
        if piece.step is not None:
            events[-1]["orchestration"] = piece.step
        return events

    def text(self, text: str, logprobs: Sequence[Json] = ()) -> Events:
        """More of the answer."""
        events: Events = []
        if self._open is None or self._open["type"] != "message":
            events += self._close_item()
            events.append(
                self._add_item("msg", {"type": "message", "role": "assistant", "content": []})
            )
            self._open_item["content"].append(_text_part())
            events.append(self._content_event("response.content_part.added", part=_text_part()))
            self._message_texts = []
        self._texts.append(text)
        self._message_texts.append(text)
        told = list(logprobs)
        self._open_item["content"][0]["logprobs"] += told
        delta = self._content_event("response.output_text.delta", delta=text, logprobs=told)
        return [*events, delta]

    def call(self, index: int, call: ToolCall) -> Events:
        """More of the function call of that number; `call` holds what is new of its arguments."""
        events: Events = []
        tool = self._tools.get(index)
        if tool is None:
            events += self._close_item()
            fields = {"type": "function_call", "call_id": call.id, "name": call.name}
            events.append(self._add_item("fc", {**fields, "arguments": ""}))
            tool = self._tools[index] = _OpenToolCall(len(self.output) - 1, self._open_item)
            self._open = None
        if call.arguments:
            tool.parts.append(call.arguments)
            kind = "response.function_call_arguments.delta"
            events.append(self._tool_event(tool, kind, delta=call.arguments))
        return events

    def remaining(self, reply: Reply, *, reasoning: bool) -> Events:
        """What of the reply was not told as it came; then every item is closed."""
        events: Events = []
        if reasoning and reply.reasoning:
            events += self.reasoning(reply.reasoning, new=True)
        text = reply.text[len(self.text_so_far) :]
        if text or not (self.text_so_far or reply.tool_calls):
            told = () if self.text_so_far else reply.logprobs
            events += self.text(text, [token_object(token) for token in told])
        for index, call in enumerate(reply.tool_calls):
            if index not in self._tools:
                events += self.call(index, call)
        return [*events, *self.close()]

    def close(self) -> Events:
        """Every item is done."""
        return [*self._close_item(), *self._close_tools()]

    def end(self, response: Json) -> Json:
        """The last event, with the response as it ended."""
        return self._event(f"response.{response['status']}", response=response)

    def unfinished_items(self) -> list[Json]:
        """The items as they are when nothing more will come."""
        for tool in self._tools.values():
            tool.item["arguments"] = "".join(tool.parts)
        if self._open is not None and self._open["type"] == "message":
            self._open["content"][0]["text"] = "".join(self._message_texts)
        return [
            {**item, "status": "incomplete"} if item["status"] == "in_progress" else item
            for item in self.output
        ]

    @property
    def _open_item(self) -> Json:
        assert self._open is not None  # noqa: S101 - the caller has just added it
        return self._open

    @property
    def _summary(self) -> list[Json]:
        return self._open_item["summary"]

    def _add_item(self, kind: str, fields: Json) -> Json:
        index = len(self.output)
        name = item_id(kind, self.base["id"], index)
        self._open = {"id": name, "status": "in_progress", **fields}
        self.output.append(self._open)
        # Copied: its list is filled while readers may still be waiting to be told of it.
        shown = deepcopy(self._open)
        return self._event("response.output_item.added", output_index=index, item=shown)

    def _close_item(self) -> Events:
        """The open text or reasoning item is done."""
        if self._open is None:
            return []
        events = self._close_part() if self._open["type"] == "reasoning" else self._close_text()
        self._open["status"] = "completed"
        events.append(self._item_done(len(self.output) - 1, self._open))
        self._open = None
        return events

    def _close_part(self) -> Events:
        if not self._summary:
            return []
        part = self._summary[-1]
        return [
            self._part_event("response.reasoning_summary_text.done", text=part["text"]),
            self._part_event("response.reasoning_summary_part.done", part=dict(part)),
        ]

    def _close_text(self) -> Events:
        part = self._open_item["content"][0]
        part["text"] = "".join(self._message_texts)
        text = self._content_event(
            "response.output_text.done", text=part["text"], logprobs=part["logprobs"]
        )
        return [text, self._content_event("response.content_part.done", part=part)]

    def _close_tools(self) -> Events:
        events: Events = []
        for tool in self._tools.values():
            arguments = "".join(tool.parts)
            tool.item["arguments"] = arguments
            tool.item["status"] = "completed"
            name = tool.item["name"]
            kind = "response.function_call_arguments.done"
            events.append(self._tool_event(tool, kind, arguments=arguments, name=name))
            events.append(self._item_done(tool.index, tool.item))
        return events

    def _item_done(self, index: int, item: Json) -> Json:
        return self._event("response.output_item.done", output_index=index, item=item)

    def _part_event(self, kind: str, **fields: Any) -> Json:
        """An event of the last part of the open reasoning item."""
        place = {"output_index": len(self.output) - 1, "summary_index": len(self._summary) - 1}
        return self._event(kind, item_id=self._open_item["id"], **place, **fields)

    def _content_event(self, kind: str, **fields: Any) -> Json:
        """An event of the text of the open message."""
        place = {"output_index": len(self.output) - 1, "content_index": 0}
        return self._event(kind, item_id=self._open_item["id"], **place, **fields)

    def _tool_event(self, tool: _OpenToolCall, kind: str, **fields: Any) -> Json:
        return self._event(kind, item_id=tool.item["id"], output_index=tool.index, **fields)

    def _event(self, kind: str, **fields: Any) -> Json:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event


def _text_part() -> Json:
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def replay_events(response: Json) -> Events:
    """The events in which a response that has ended could have been streamed."""
    script = ResponseEventWriter({**response, "status": "in_progress", "output": [], "usage": None})
    events = script.begin()
    tools = 0
    for item in response["output"]:
        if item["type"] == "reasoning":
            for part in item["summary"]:
                events += script.reasoning(part["text"], new=True)
        elif item["type"] == "message":
            part = item["content"][0]
            events += script.text(part["text"], part.get("logprobs") or ())
        else:
            events += script.call(
                tools, ToolCall(id=item["call_id"], name=item["name"], arguments=item["arguments"])
            )
            tools += 1
    return [*events, *script.close(), script.end(response)]
