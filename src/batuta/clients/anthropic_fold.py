"""Anthropic's messages read back: a whole reply, or a stream folded into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import orjson

from batuta.clients.decode import count, obj, string
from batuta.clients.exchange import Calls, Refused, Told, finish_of
from batuta.core import Delta, Finish, Reply, Usage

_FINISH = {
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL_CALLS,
    "refusal": Finish.CONTENT_FILTER,
}


@final
class MessageFold:
    """A stream of events from `message_start` to `message_stop`."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = Calls()
        self._blocks: dict[int, int] = {}
        self._model = ""
        self._stop = ""
        self._usage: dict[str, Any] = {}
        self.closed = False

    @property
    def ended(self) -> bool:
        """`message_stop` came."""
        return self.closed

    def take(self, event: str, data: bytes) -> Sequence[Delta]:
        """The fragments of one event; `ping` and unknown events have none."""
        told = orjson.loads(data)
        kind = told["type"]
        if kind == "content_block_delta":
            return self._delta(told["index"], told["delta"])
        if kind == "content_block_start":
            return self._start(told["index"], told["content_block"])
        if kind == "error":
            raise Refused(told)
        if kind == "message_start":
            self._model = string(told["message"].get("model"))
            self._count(told["message"])
        elif kind == "message_delta":
            self._stop = string(obj(told.get("delta")).get("stop_reason")) or self._stop
            self._count(told)
        elif kind == "message_stop":
            self.closed = True
        return ()

    def told(self) -> Told:
        """All that came so far."""
        calls = self._calls.all()
        reply = Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish=finish_of(_FINISH.get(self._stop, Finish.STOP), calls),
            model=self._model,
        )
        # Until the first message_delta the count of output tokens is only a beginning.
        return Told(reply, usage_of(self._usage) if self._stop else None)

    def _count(self, told: dict[str, Any]) -> None:
        known = {name: value for name, value in obj(told.get("usage")).items() if value is not None}
        self._usage.update(known)

    def _start(self, index: int, block: dict[str, Any]) -> Sequence[Delta]:
        if block["type"] == "tool_use":
            self._blocks[index] = len(self._calls)
            whole = obj(block.get("input"))  # empty, but for servers that do not stream it
            arguments = orjson.dumps(whole).decode() if whole else ""
            return (self._calls.open(string(block.get("id")), block["name"], arguments),)
        return self._said(string(block.get("text")), string(block.get("thinking")))

    def _delta(self, index: int, delta: dict[str, Any]) -> Sequence[Delta]:
        kind = delta["type"]
        if kind == "text_delta":
            return self._said(delta["text"], "")
        if kind == "thinking_delta":
            return self._said("", delta["thinking"])
        if kind == "input_json_delta" and index in self._blocks:
            return (self._calls.more(self._blocks[index], delta["partial_json"]),)
        return ()

    def _said(self, text: str, reasoning: str) -> Sequence[Delta]:
        if not text and not reasoning:
            return ()
        self._text.append(text)
        self._reasoning.append(reasoning)
        return (Delta(text=text, reasoning=reasoning),)


def told_of(data: Any) -> Told:
    """A message read.

    Raises:
        Refused: it is an error object.
    """
    if data["type"] == "error":
        raise Refused(data)
    text: list[str] = []
    reasoning: list[str] = []
    calls = Calls()
    for block in data["content"]:
        if block["type"] == "text":
            text.append(block["text"])
        elif block["type"] == "thinking":
            reasoning.append(block["thinking"])
        elif block["type"] == "tool_use":
            calls.open(block["id"], block["name"], orjson.dumps(block["input"]).decode())
    reply = Reply(
        text="".join(text),
        reasoning="".join(reasoning),
        tool_calls=calls.all(),
        finish=finish_of(_FINISH.get(string(data.get("stop_reason")), Finish.STOP), calls.all()),
        model=string(data.get("model")),
    )
    return Told(reply, usage_of(data.get("usage")))


def usage_of(usage: Any) -> Usage | None:
    """The usage of one call, whose input is plain, read from cache and written to it together."""
    told = obj(usage)
    plain, output = count(told.get("input_tokens")), count(told.get("output_tokens"))
    cached = count(told.get("cache_read_input_tokens"))
    written = count(told.get("cache_creation_input_tokens"))
    total = plain + cached + written
    if not total and not output:
        return None
    return Usage(calls=1, input=total, cached=cached, cache_write=written, output=output)
