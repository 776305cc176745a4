"""Gemini's content read back: a whole reply, or a stream folded into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import orjson

from batuta.clients.decode import count, obj, seq, string
from batuta.clients.exchange import Calls, Refused, Told, finish_of
from batuta.core import Delta, Finish, Reply, Usage

_FILTERED = {
    "SAFETY",
    "RECITATION",
    "LANGUAGE",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "IMAGE_SAFETY",
}
_BROKEN = {"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"}


@final
class GeminiFold:
    """A stream of `GenerateContentResponse`s; also reads a whole one."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = Calls()
        self._finish: Finish | None = None
        self._usage: Any = None
        self._model = ""
        self.closed = False
        """Never set: the stream has no end mark, usage may follow the finish reason."""

    @property
    def ended(self) -> bool:
        """A finish reason came, or the prompt was blocked."""
        return self._finish is not None

    def take(self, event: str, data: bytes) -> Sequence[Delta]:
        """The fragments of one event."""
        return self.read(orjson.loads(data))

    def read(self, chunk: Any) -> Sequence[Delta]:
        """The fragments of one response.

        Raises:
            Refused: it is an error object.
        """
        if chunk.get("error"):
            raise Refused(chunk)
        self._usage = chunk.get("usageMetadata") or self._usage
        self._model = string(chunk.get("modelVersion")) or self._model
        if obj(chunk.get("promptFeedback")).get("blockReason"):
            self._finish = Finish.CONTENT_FILTER
        candidates = chunk.get("candidates")
        if not candidates:
            return ()
        candidate = candidates[0]
        if reason := candidate.get("finishReason"):
            self._finish = _finish(reason)
        parts = seq(obj(candidate.get("content")).get("parts"))
        return [delta for part in parts if (delta := self._part(part)) is not None]

    def told(self) -> Told:
        """All that came so far."""
        calls = self._calls.all()
        reply = Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish=finish_of(self._finish or Finish.STOP, calls),
            model=self._model,
        )
        return Told(reply, usage_of(self._usage))

    def _part(self, part: dict[str, Any]) -> Delta | None:
        if call := part.get("functionCall"):
            arguments = orjson.dumps(call.get("args") or {}).decode()
            return self._calls.open(string(call.get("id")), call["name"], arguments)
        text = string(part.get("text"))
        if not text:
            return None
        if part.get("thought"):
            self._reasoning.append(text)
            return Delta(reasoning=text)
        self._text.append(text)
        return Delta(text=text)


def told_of(data: Any) -> Told:
    """A whole response read.

    Raises:
        Refused: it is an error object.
    """
    fold = GeminiFold()
    fold.read(data)
    if not fold.ended and not data["candidates"]:
        raise ValueError("no candidates")
    return fold.told()


def usage_of(usage: Any) -> Usage | None:
    """The usage of one call; thoughts, told beside the candidates, belong to the output."""
    told = obj(usage)
    prompt = count(told.get("promptTokenCount")) + count(told.get("toolUsePromptTokenCount"))
    thoughts = count(told.get("thoughtsTokenCount"))
    output = count(told.get("candidatesTokenCount")) + thoughts
    if not prompt and not output:
        return None
    cached = min(count(told.get("cachedContentTokenCount")), prompt)
    return Usage(calls=1, input=prompt, cached=cached, output=output, reasoning=thoughts)


def _finish(reason: str) -> Finish:
    if reason in _BROKEN:
        raise ValueError(f"a function call that is none: {reason}")
    if reason in _FILTERED:
        return Finish.CONTENT_FILTER
    return Finish.LENGTH if reason == "MAX_TOKENS" else Finish.STOP
