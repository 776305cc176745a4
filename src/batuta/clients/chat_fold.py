"""Chat completions read back: a whole reply, or a stream folded into one."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, final

import orjson

from batuta.clients.decode import count, obj, seq, string
from batuta.clients.exchange import Calls, Refused, Told, finish_of
from batuta.core import Delta, Finish, Reply, Usage

_FINISH = {
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
}


@final
class ChatFold:
    """A stream of `chat.completion.chunk`s."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = Calls()
        self._indices: dict[int, int] = {}
        self._finish: Finish | None = None
        self._model = ""
        self._usage: Any = None
        self.closed = False

    @property
    def ended(self) -> bool:
        """`[DONE]` came, or a finish reason: some servers send only one of them."""
        return self.closed or self._finish is not None

    def take(self, event: str, data: bytes) -> Sequence[Delta]:
        """The fragments of one chunk."""
        if data == b"[DONE]":
            self.closed = True
            return ()
        chunk = orjson.loads(data)
        if chunk.get("error"):
            raise Refused(chunk)
        if usage := chunk.get("usage"):
            self._usage = usage
        if not self._model:
            self._model = string(chunk.get("model"))
        choices = chunk.get("choices")
        return self._choice(choices[0]) if choices else ()

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
        return Told(reply, usage_of(self._usage), usd_of(self._usage))

    def _choice(self, choice: dict[str, Any]) -> Sequence[Delta]:
        if reason := choice.get("finish_reason"):
            self._finish = _finish(choice, reason)
        message = obj(choice.get("delta"))
        text = _text(message)
        reasoning = _reasoning(message)
        deltas: list[Delta] = []
        if text or reasoning:
            self._text.append(text)
            self._reasoning.append(reasoning)
            deltas.append(Delta(text=text, reasoning=reasoning))
        if calls := message.get("tool_calls"):
            deltas += [self._call(call) for call in calls]
        return deltas

    def _call(self, call: dict[str, Any]) -> Delta:
        """A fragment of a call, known by its index, by its new id where servers repeat an index."""
        function = obj(call.get("function"))
        call_id, arguments = string(call.get("id")), _arguments(function)
        index = call.get("index")
        if index is None:
            index = len(self._calls) if call_id else len(self._calls) - 1
        known = self._indices.get(index)
        if known is None or (call_id and call_id != self._calls.id(known)):
            self._indices[index] = len(self._calls)
            return self._calls.open(call_id, string(function.get("name")), arguments)
        return self._calls.more(known, arguments)


def told_of(data: Any) -> Told:
    """A `chat.completion` read.

    Raises:
        Refused: it is an error object.
    """
    if data.get("error"):
        raise Refused(data)
    choice = data["choices"][0]
    message = choice["message"]
    calls = Calls()
    for call in message.get("tool_calls") or ():
        function = call["function"]
        calls.open(string(call.get("id")), function["name"], _arguments(function))
    finish = _finish(choice, choice.get("finish_reason"))
    reply = Reply(
        text=_text(message),
        reasoning=_reasoning(message),
        tool_calls=calls.all(),
        finish=finish_of(finish, calls.all()),
        model=string(data.get("model")),
    )
    usage = data.get("usage")
    return Told(reply, usage_of(usage), usd_of(usage))


def usage_of(usage: Any) -> Usage | None:
    """The usage of one call; None if the provider told none."""
    told = obj(usage)
    prompt, output = count(told.get("prompt_tokens")), count(told.get("completion_tokens"))
    if not prompt and not output:
        return None
    read = obj(told.get("prompt_tokens_details"))
    cached = count(read.get("cached_tokens")) or count(told.get("prompt_cache_hit_tokens"))
    reasoning = count(obj(told.get("completion_tokens_details")).get("reasoning_tokens"))
    if reasoning and count(told.get("total_tokens")) == prompt + output + reasoning:
        output += reasoning  # some count reasoning beside the completion, not within it
    cached = min(cached, prompt)
    return Usage(
        calls=1,
        input=prompt,
        cached=cached,
        cache_write=min(count(read.get("cache_write_tokens")), prompt - cached),
        output=output,
        reasoning=min(reasoning, output),
    )


def usd_of(usage: Any) -> Decimal | None:
    """OpenRouter's own statement of the call's dollars, which beats any price table."""
    cost = obj(usage).get("cost")
    if isinstance(cost, bool) or not isinstance(cost, (int, float)) or not cost >= 0:
        return None
    return Decimal(str(cost))


def _finish(choice: dict[str, Any], reason: Any) -> Finish:
    if reason == "error":  # OpenRouter: the model behind it broke off
        raise Refused(choice)
    message = obj(choice.get("delta") or choice.get("message"))
    if message.get("refusal"):
        return Finish.CONTENT_FILTER
    return _FINISH.get(reason, Finish.STOP)


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content or string(message.get("refusal"))
    parts = [string(obj(part).get("text")) for part in seq(content)]
    return "".join(parts) or string(message.get("refusal"))


def _reasoning(message: dict[str, Any]) -> str:
    """The first of the three fields that has any: servers that send two send the same twice."""
    for name in ("reasoning_content", "reasoning"):
        value = message.get(name)
        if value and isinstance(value, str):
            return value
    details = message.get("reasoning_details")
    if not details:
        return ""
    rows = [obj(detail) for detail in seq(details)]
    return "".join(string(row.get("text")) or string(row.get("summary")) for row in rows)


def _arguments(function: dict[str, Any]) -> str:
    """JSON text; some servers send the object itself."""
    arguments = function.get("arguments")
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
