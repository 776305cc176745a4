"""Chat completions read back: a whole reply, or a stream folded into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
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
from batuta.core import Delta, Finish, Reply, TokenLogprob, Usage

_FINISH = {
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
}


_MOST_USD = 10_000
"""Dollars of one call at most; more is not believed."""
_USD_PLACES = 15


@final
class _ChoiceAccumulator:
    """One of the replies of a stream."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = ToolCallAccumulator()
        self._indices: dict[int, int] = {}
        self._logprobs: list[TokenLogprob] = []
        self.finish: Finish | None = None
        self._refused = False
        self._matched: str | None = None

    def reply(self, model: str) -> Reply:
        """All that came so far."""
        calls = self._calls.tool_calls()
        return Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish=resolve_finish(self.finish or Finish.STOP, calls),
            model=model,
            stop_sequence=self._matched,
            is_refusal=self._refused,
            logprobs=tuple(self._logprobs),
        )

    def add_fragment(self, choice: dict[str, Any]) -> Sequence[Delta]:
        """The fragments of the choice of one chunk."""
        if reason := choice.get("finish_reason"):
            self.finish = _parse_finish(choice, reason)
            self._matched = _matched_stop_text(choice)
        message = as_object(choice.get("delta"))
        text = _message_text(message)
        reasoning = _message_reasoning(message)
        logprobs = parse_logprobs(choice)
        self._logprobs += logprobs
        deltas: list[Delta] = []
        if text or reasoning or logprobs:
            self._text.append(text)
            self._reasoning.append(reasoning)
            refused = bool(message.get("refusal")) and not message.get("content")
            self._refused = self._refused or refused
            deltas.append(
                Delta(
                    text=text,
                    reasoning=reasoning,
                    is_refusal=refused,
                    choice=self._number,
                    logprobs=logprobs,
                )
            )
        if calls := message.get("tool_calls"):
            deltas += [self._add_call_fragment(call) for call in calls]
        return deltas

    def _add_call_fragment(self, call: dict[str, Any]) -> Delta:
        """A fragment of a call, known by its index, by its new id where servers repeat an index."""
        function = as_object(call.get("function"))
        call_id, arguments = as_string(call.get("id")), _function_arguments(function)
        index = call.get("index")
        if index is None:
            index = len(self._calls) if call_id else len(self._calls) - 1
        known = self._indices.get(index)
        if known is None or (call_id and call_id != self._calls.call_id(known)):
            self._indices[index] = len(self._calls)
            name = as_string(function.get("name"))
            delta = self._calls.start_call(call_id, name, arguments)
        else:
            delta = self._calls.add_arguments(known, arguments)
        return replace(delta, choice=self._number) if self._number else delta


@final
class OpenAIStreamAccumulator:
    """A stream of `chat.completion.chunk`s."""

    def __init__(self) -> None:
        self._choices: dict[int, _ChoiceAccumulator] = {}
        self._model = ""
        self._usage: Any = None
        self.is_closed = False

    @property
    def is_finished(self) -> bool:
        """`[DONE]` came, or finish reasons: some servers send only one of them."""
        ended = (choice.finish is not None for choice in self._choices.values())
        return self.is_closed or (bool(self._choices) and all(ended))

    def add_event(self, event: str, data: bytes) -> Sequence[Delta]:
        """The fragments of one chunk."""
        if data == b"[DONE]":
            self.is_closed = True
            return ()
        chunk = orjson.loads(data)
        if chunk.get("error"):
            raise ErrorReply(chunk)
        if usage := chunk.get("usage"):
            self._usage = usage
        if not self._model:
            self._model = as_string(chunk.get("model"))
        choices = chunk.get("choices")
        if not choices:
            return ()
        if len(choices) == 1:
            return self._choice(choices[0]).add_fragment(choices[0])
        return [delta for choice in choices for delta in self._choice(choice).add_fragment(choice)]

    def result(self) -> ProviderReply:
        """All that came so far."""
        replies = [self._choices[number].reply(self._model) for number in sorted(self._choices)]
        return _joined_reply(replies or [Reply(text="", model=self._model)], self._usage)

    def _choice(self, choice: dict[str, Any]) -> _ChoiceAccumulator:
        number = as_count(choice.get("index"))
        known = self._choices.get(number)
        if known is None:
            known = self._choices[number] = _ChoiceAccumulator(number)
        return known


def _joined_reply(replies: Sequence[Reply], usage: Any) -> ProviderReply:
    """The first of the replies, with the others as its alternatives."""
    reply = replies[0]
    if len(replies) > 1:
        reply = replace(reply, alternatives=tuple(replies[1:]))
    return ProviderReply(
        reply=reply,
        usage=parse_usage(usage),
        usd=reported_usd(usage),
        audio_input=_audio_tokens(usage),
    )


def _audio_tokens(usage: Any) -> int:
    """Tokens of recordings in the prompt; what a cache gave is taken to be text first."""
    told = as_object(usage)
    read = as_object(told.get("prompt_tokens_details"))
    fresh = as_count(told.get("prompt_tokens")) - as_count(read.get("cached_tokens"))
    return max(min(as_count(read.get("audio_tokens")), fresh), 0)


def parse_logprobs(choice: dict[str, Any]) -> tuple[TokenLogprob, ...]:
    """The log probabilities of a choice's tokens; none if the provider sends none."""
    told = choice.get("logprobs")
    if not told:
        return ()
    return tuple(_parse_token(as_object(row)) for row in as_array(as_object(told).get("content")))


def _parse_token(row: dict[str, Any]) -> TokenLogprob:
    others = [_parse_alternative(as_object(other)) for other in as_array(row.get("top_logprobs"))]
    return replace(_parse_alternative(row), others=tuple(others))


def _parse_alternative(row: dict[str, Any]) -> TokenLogprob:
    utf8 = row.get("bytes")
    return TokenLogprob(
        token=need_string(row["token"]),
        logprob=float(row["logprob"]),
        utf8=None if utf8 is None else tuple(as_count(byte) for byte in as_array(utf8)),
    )


def parse_completion(data: Any) -> ProviderReply:
    """A `chat.completion` read.

    Raises:
        ClientError: it is an error object.
    """
    if data.get("error"):
        raise ErrorReply(data)
    choices = data["choices"]
    if len(choices) > 1:
        choices = sorted(choices, key=lambda choice: as_count(choice.get("index")))
    replies = [_parse_choice(choice, as_string(data.get("model"))) for choice in choices]
    return _joined_reply(replies, data.get("usage"))


def _parse_choice(choice: dict[str, Any], model: str) -> Reply:
    message = choice["message"]
    calls = ToolCallAccumulator()
    for call in message.get("tool_calls") or ():
        function = call["function"]
        calls.start_call(as_string(call.get("id")), function["name"], _function_arguments(function))
    finish = _parse_finish(choice, choice.get("finish_reason"))
    return Reply(
        text=_message_text(message),
        reasoning=_message_reasoning(message),
        tool_calls=calls.tool_calls(),
        finish=resolve_finish(finish, calls.tool_calls()),
        model=model,
        stop_sequence=_matched_stop_text(choice),
        is_refusal=bool(message.get("refusal")) and not message.get("content"),
        logprobs=parse_logprobs(choice),
    )


def parse_usage(usage: Any) -> Usage | None:
    """The usage of one call; None if the provider told none."""
    told = as_object(usage)
    if any(is_wrong_count(told.get(name)) for name in ("prompt_tokens", "completion_tokens")):
        return None  # one who lies about one of them is believed in neither
    prompt, output = as_count(told.get("prompt_tokens")), as_count(told.get("completion_tokens"))
    if not prompt and not output:
        return None
    read = as_object(told.get("prompt_tokens_details"))
    cached = as_count(read.get("cached_tokens")) or as_count(told.get("prompt_cache_hit_tokens"))
    reasoning = as_count(as_object(told.get("completion_tokens_details")).get("reasoning_tokens"))
    if reasoning and as_count(told.get("total_tokens")) == prompt + output + reasoning:
        output += reasoning  # some count reasoning beside the completion, not within it
    written = as_count(read.get("cache_write_tokens"))
    return bound_usage(prompt, output, cached=cached, written=written, reasoning=reasoning)


def bound_usage(prompt: int, output: int, *, cached: int, written: int, reasoning: int) -> Usage:
    """The usage of one call, no part of it larger than the whole."""
    cached = min(cached, prompt)
    return Usage(
        calls=1,
        input=prompt,
        cached=cached,
        cache_write=min(written, prompt - cached),
        output=output,
        reasoning=min(reasoning, output),
    )


def reported_usd(usage: Any) -> Decimal | None:
    """OpenRouter's own statement of the call's dollars, which beats any price table."""
    cost = as_object(usage).get("cost")
    if isinstance(cost, bool) or not isinstance(cost, (int, float)) or not 0 <= cost <= _MOST_USD:
        return None
    return round(Decimal(str(cost)), _USD_PLACES)


def _parse_finish(choice: dict[str, Any], reason: Any) -> Finish:
    if reason == "error":  # OpenRouter: the model behind it broke off
        raise ErrorReply(choice)
    message = as_object(choice.get("delta") or choice.get("message"))
    if message.get("refusal"):
        return Finish.CONTENT_FILTER
    return _FINISH.get(reason, Finish.STOP)


def _matched_stop_text(choice: dict[str, Any]) -> str | None:
    """The text at which vLLM and SGLang say that they stopped."""
    matched = choice.get("stop_reason", choice.get("matched_stop"))
    return matched if isinstance(matched, str) and matched else None


def _message_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content or as_string(message.get("refusal"))
    parts = [as_string(as_object(part).get("text")) for part in as_array(content)]
    return "".join(parts) or as_string(message.get("refusal"))


def _message_reasoning(message: dict[str, Any]) -> str:
    """The first of the three fields that has any: servers that send two send the same twice."""
    for name in ("reasoning_content", "reasoning"):
        value = message.get(name)
        if value and isinstance(value, str):
            return value
    details = message.get("reasoning_details")
    if not details:
        return ""
    rows = [as_object(detail) for detail in as_array(details)]
    return "".join(as_string(row.get("text")) or as_string(row.get("summary")) for row in rows)


def _function_arguments(function: dict[str, Any]) -> str:
    """JSON text; some servers send the object itself."""
    arguments = function.get("arguments")
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
