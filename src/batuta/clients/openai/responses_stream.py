"""What OpenAI's Responses API answers, whole or as a stream of events, read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import orjson

from batuta.clients.call import ErrorReply, ProviderReply, ToolCallAccumulator, resolve_finish
from batuta.clients.decoding import (
    as_array,
    as_count,
    as_object,
    as_string,
    is_wrong_count,
    need_string,
)
from batuta.clients.openai.stream import bound_usage
from batuta.core import Delta, Finish, Reply, Thought, ToolCall, Usage

_FINISH = {"max_output_tokens": Finish.LENGTH, "content_filter": Finish.CONTENT_FILTER}


@final
class ResponsesStreamAccumulator:
    """A stream of events from `response.created` to `response.completed`."""

    def __init__(self, model: str) -> None:
        """Nothing came yet.

        Args:
            model: the model that was asked; its reasoning is its own.
        """
        self.is_closed = False
        self._asked = model
        self._model = ""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = ToolCallAccumulator()
        self._places: dict[int, int] = {}
        self._asides: set[int] = set()
        self._thoughts: list[Thought] = []
        self._refused = False
        self._ended: dict[str, Any] = {}

    @property
    def is_finished(self) -> bool:
        """The end of the reply was announced."""
        return bool(self._ended)

    def add_event(self, event: str, data: bytes) -> Sequence[Delta]:
        """The fragments of one event.

        Raises:
            ErrorReply: the event is an error.
        """
        told = orjson.loads(data)
        kind = as_string(told.get("type")) or event
        if kind in {"error", "response.failed"} or told.get("error"):
            raise ErrorReply(_error_of(told))
        if kind == "response.output_item.added":
            return self._start_item(as_count(told["output_index"]), told["item"])
        if kind == "response.output_item.done":
            return self._end_item(told["item"])
        if kind.endswith(".delta"):
            return self._add_delta(kind, told)
        if kind in {"response.completed", "response.incomplete"}:
            self._ended = told["response"]
            self.is_closed = True
        if not self._model:
            self._model = as_string(as_object(told.get("response")).get("model"))
        return ()

    def result(self) -> ProviderReply:
        """All that came so far."""
        calls = self._calls.tool_calls()
        reply = Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish=_finish_of(self._ended, calls, is_refusal=self._refused),
            model=self._model,
            thoughts=tuple(self._thoughts),
            is_refusal=self._refused,
        )
        return ProviderReply(reply=reply, usage=parse_usage(self._ended.get("usage")))

    def _start_item(self, place: int, item: dict[str, Any]) -> Sequence[Delta]:
        if item.get("phase") == "commentary":
            self._asides.add(place)
        if item.get("type") != "function_call":
            return ()
        self._places[place] = len(self._calls)
        return (self._calls.start_call(as_string(item.get("call_id")), item["name"]),)

    def _end_item(self, item: dict[str, Any]) -> Sequence[Delta]:
        thought = _thought_of(item, self._asked)
        if thought is None:
            return ()
        self._thoughts.append(thought)
        return (Delta(thought=thought),)

    def _add_delta(self, kind: str, told: dict[str, Any]) -> Sequence[Delta]:
        said, place = need_string(told["delta"]), as_count(told.get("output_index"))
        if kind == "response.function_call_arguments.delta":
            return (self._calls.add_arguments(self._places[place], said),)
        if "reasoning" in kind or place in self._asides:
            self._reasoning.append(said)
            return (Delta(reasoning=said),)
        if kind not in {"response.output_text.delta", "response.refusal.delta"}:
            return ()
        self._text.append(said)
        refused = kind == "response.refusal.delta"
        self._refused = self._refused or refused
        return (Delta(text=said, is_refusal=refused),)


def parse_response(data: Any, model: str) -> ProviderReply:
    """A response read.

    Args:
        data: the response.
        model: the model that was asked.

    Raises:
        ErrorReply: it is an error object, or says that it failed.
    """
    if data.get("error") or data.get("status") == "failed":
        raise ErrorReply(_error_of(data))
    text: list[str] = []
    reasoning: list[str] = []
    thoughts: list[Thought] = []
    calls = ToolCallAccumulator()
    refused = False
    for item in data["output"]:
        if item["type"] == "message":
            parts = [as_object(part) for part in as_array(item["content"])]
            refused = refused or any(part.get("type") == "refusal" for part in parts)
            heard = reasoning if item.get("phase") == "commentary" else text
            heard += (_part_text(part) for part in parts)
        elif item["type"] == "function_call":
            calls.start_call(as_string(item.get("call_id")), item["name"], item["arguments"])
        elif item["type"] == "reasoning":
            shown = (*as_array(item.get("summary")), *as_array(item.get("content")))
            reasoning += (as_string(as_object(part).get("text")) for part in shown)
            thoughts += filter(None, (_thought_of(item, model),))
    reply = Reply(
        text="".join(text),
        reasoning="".join(reasoning),
        tool_calls=calls.tool_calls(),
        finish=_finish_of(data, calls.tool_calls(), is_refusal=refused),
        model=as_string(data.get("model")),
        thoughts=tuple(thoughts),
        is_refusal=refused,
    )
    return ProviderReply(reply=reply, usage=parse_usage(data.get("usage")))


def _part_text(part: dict[str, Any]) -> str:
    return as_string(part.get("text")) or as_string(part.get("refusal"))


def parse_usage(usage: Any) -> Usage | None:
    """The usage of one call; None if the provider told none."""
    told = as_object(usage)
    if any(is_wrong_count(told.get(name)) for name in ("input_tokens", "output_tokens")):
        return None
    prompt, output = as_count(told.get("input_tokens")), as_count(told.get("output_tokens"))
    if not prompt and not output:
        return None
    read = as_object(told.get("input_tokens_details"))
    return bound_usage(
        prompt,
        output,
        cached=as_count(read.get("cached_tokens")),
        written=as_count(read.get("cache_write_tokens")),
        reasoning=as_count(as_object(told.get("output_tokens_details")).get("reasoning_tokens")),
    )


def _thought_of(item: dict[str, Any], model: str) -> Thought | None:
    """Reasoning that only OpenAI can read; None: the item holds none."""
    item_id, encrypted = as_string(item.get("id")), as_string(item.get("encrypted_content"))
    if item.get("type") != "reasoning" or not encrypted:
        return None
    return Thought(model=model, redacted=f"{item_id}:{encrypted}")


def _finish_of(ended: dict[str, Any], calls: Sequence[ToolCall], *, is_refusal: bool) -> Finish:
    if is_refusal:
        return Finish.CONTENT_FILTER
    reason = as_string(as_object(ended.get("incomplete_details")).get("reason"))
    return resolve_finish(_FINISH.get(reason, Finish.STOP), calls)


def _error_of(told: dict[str, Any]) -> dict[str, Any]:
    """An error in the form of the API's other errors."""
    nested = as_object(told.get("response")).get("error") or told.get("error")
    return {"error": nested or {key: told.get(key) for key in ("code", "message")}}
