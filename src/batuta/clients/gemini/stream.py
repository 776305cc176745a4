"""Gemini's content read back: a whole reply, or a stream folded into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import orjson

from batuta.clients.call import ErrorReply, ProviderReply, ToolCallAccumulator, resolve_finish
from batuta.clients.json_values import as_array, as_count, as_object, as_string, is_wrong_count
from batuta.core import Delta, Finish, Reply, Usage

_COUNTS = (
    "promptTokenCount",
    "toolUsePromptTokenCount",
    "thoughtsTokenCount",
    "candidatesTokenCount",
)
_FILTER_REASONS = {
    "SAFETY",
    "RECITATION",
    "LANGUAGE",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "IMAGE_SAFETY",
}
_BROKEN_CALL_REASONS = {"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"}


@final
class GeminiStreamAccumulator:
    """A stream of `GenerateContentResponse`s; also reads a whole one."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = ToolCallAccumulator()
        self._finish: Finish | None = None
        self._usage: Any = None
        self._model = ""
        self.is_closed = False
        """Never set: the stream has no end mark, usage may follow the finish reason."""

    @property
    def is_finished(self) -> bool:
        """A finish reason came, or the prompt was blocked."""
        return self._finish is not None

    def add_event(self, event: str, data: bytes) -> Sequence[Delta]:
        """The fragments of one event."""
        return self.add_chunk(orjson.loads(data))

    def add_chunk(self, chunk: Any) -> Sequence[Delta]:
        """The fragments of one response.

        Raises:
            Refused: it is an error object.
        """
        if chunk.get("error"):
            raise ErrorReply(chunk)
        self._usage = chunk.get("usageMetadata") or self._usage
        self._model = as_string(chunk.get("modelVersion")) or self._model
        if as_object(chunk.get("promptFeedback")).get("blockReason"):
            self._finish = Finish.CONTENT_FILTER
        candidates = chunk.get("candidates")
        if not candidates:
            return ()
        candidate = candidates[0]
        if reason := candidate.get("finishReason"):
            self._finish = _parse_finish(reason)
        parts = as_array(as_object(candidate.get("content")).get("parts"))
        return [delta for part in parts if (delta := self._add_part(part)) is not None]

    def result(self) -> ProviderReply:
        """All that came so far."""
        calls = self._calls.tool_calls()
        reply = Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish=resolve_finish(self._finish or Finish.STOP, calls),
            model=self._model,
        )
        return ProviderReply(reply=reply, usage=parse_usage(self._usage))

    def _add_part(self, part: dict[str, Any]) -> Delta | None:
        if call := part.get("functionCall"):
            arguments = orjson.dumps(call.get("args") or {}).decode()
            return self._calls.start_call(as_string(call.get("id")), call["name"], arguments)
        text = as_string(part.get("text"))
        if not text:
            return None
        if part.get("thought"):
            self._reasoning.append(text)
            return Delta(reasoning=text)
        self._text.append(text)
        return Delta(text=text)


def parse_response(data: Any) -> ProviderReply:
    """A whole response read.

    Raises:
        Refused: it is an error object.
    """
    fold = GeminiStreamAccumulator()
    fold.add_chunk(data)
    if not fold.is_finished and not data["candidates"]:
        raise ValueError("no candidates")
    return fold.result()


def parse_usage(usage: Any) -> Usage | None:
    """The usage of one call; thoughts, told beside the candidates, belong to the output."""
    told = as_object(usage)
    if any(is_wrong_count(told.get(name)) for name in _COUNTS):
        return None
    prompt = as_count(told.get("promptTokenCount")) + as_count(told.get("toolUsePromptTokenCount"))
    thoughts = as_count(told.get("thoughtsTokenCount"))
    output = as_count(told.get("candidatesTokenCount")) + thoughts
    if not prompt and not output:
        return None
    cached = min(as_count(told.get("cachedContentTokenCount")), prompt)
    return Usage(calls=1, input=prompt, cached=cached, output=output, reasoning=thoughts)


def _parse_finish(reason: str) -> Finish:
    if reason in _BROKEN_CALL_REASONS:
        raise ValueError(f"a function call that is none: {reason}")
    if reason in _FILTER_REASONS:
        return Finish.CONTENT_FILTER
    return Finish.LENGTH if reason == "MAX_TOKENS" else Finish.STOP
