"""A body of POST /v1/chat/completions as a question and what goes with it."""

from __future__ import annotations

from typing import Any

from batuta.core import Question, Sampling
from batuta.gateway.refusal import unsupported, wrong_value
from batuta.gateway.wire.call import Call
from batuta.gateway.wire.fields import Fields
from batuta.gateway.wire.orchestration import FIELD, parse_wishes
from batuta.gateway.wire.tools import parse_response_format, parse_tools
from batuta.gateway.wire.turns import parse_messages

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_LARGEST = 2**63 - 1
_MOST_TOKENS = 100_000_000
_MOST_STOPS = 16
_MOST_NAMED = 20
"""Ignored fields that are told; what a client made up does not fill our headers."""
_ABSENT: tuple[Any, ...] = (None, False, 0, [], {})

_REFUSED = {
    "logprobs": "log probabilities are not given.",
    "top_logprobs": "log probabilities are not given.",
    "functions": "use 'tools'.",
    "function_call": "use 'tool_choice'.",
    "audio": "answers are text.",
    "logit_bias": "it cannot be honoured for every worker.",
    "frequency_penalty": "it cannot be honoured for every worker.",
    "presence_penalty": "it cannot be honoured for every worker.",
    "web_search_options": "there is no web search here.",
}
"""Fields we know and cannot honour, unless their value asks for nothing."""
_READ = {
    "model",
    "messages",
    "stream",
    "stream_options",
    "max_completion_tokens",
    "max_tokens",
    "temperature",
    "top_p",
    "stop",
    "n",
    "seed",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "store",
    "modalities",
    FIELD,
}
_ACCEPTED = {
    "verbosity",
    "metadata",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "service_tier",
}
"""Fields that are checked and bind nothing here."""
_KNOWN = _READ | _ACCEPTED | _REFUSED.keys()


def parse_model(body: Fields) -> str:
    """The served model's name.

    Raises:
        Refusal: there is none.
    """
    return body.need_text("model")


def parse_chat(body: Fields) -> Call:
    """The whole body.

    Raises:
        Refusal: the first thing that is wrong with it, by the field's path.
    """
    model = parse_model(body)
    messages = parse_messages(body)
    _refuse(body)
    _check_accepted(body)
    tools, choice = parse_tools(body)
    options = body.object("stream_options")
    question = Question(
        messages,
        tools,
        choice,
        body.flag("parallel_tool_calls"),
        parse_response_format(body),
        parse_sampling(body),
    )
    return Call(
        model,
        question,
        stream=bool(body.flag("stream")),
        include_usage=bool(options and options.flag("include_usage")),
        store=body.flag("store") is not False,
        wishes=parse_wishes(body),
        ignored=tuple(name for name in body.names if name not in _KNOWN)[:_MOST_NAMED],
    )


def parse_sampling(body: Fields) -> Sampling:
    """How the visible answer is to be sampled.

    Raises:
        Refusal: a value is out of bounds.
    """
    newer = body.whole("max_completion_tokens", 1, _MOST_TOKENS)
    older = body.whole("max_tokens", 1, _MOST_TOKENS)
    return Sampling(
        body.number("temperature", 0, 2),
        body.number("top_p", 0, 1),
        older if newer is None else newer,
        _stops(body),
        body.whole("seed", -_LARGEST - 1, _LARGEST),
        body.choice("reasoning_effort", EFFORTS),
    )


def _stops(body: Fields) -> tuple[str, ...]:
    stop = body.get("stop")
    if isinstance(stop, list):
        return body.texts("stop", _MOST_STOPS) or ()
    text = body.text("stop")
    return (text,) if text else ()


def _refuse(body: Fields) -> None:
    """Refuses what is known and cannot be honoured."""
    if not _REFUSED.keys().isdisjoint(body.names):
        for name, reason in _REFUSED.items():
            if body.get(name) not in _ABSENT:
                raise unsupported(name, reason)
    if body.whole("n", 1, 128) not in {None, 1}:
        raise unsupported("n", "one answer is given to each request.")
    if any(form != "text" for form in body.texts("modalities", 8) or ()):
        raise unsupported("modalities", "answers are text.")


def _check_accepted(body: Fields) -> None:
    body.choice("verbosity", ("low", "medium", "high"))
    for name in ("user", "safety_identifier", "prompt_cache_key", "service_tier"):
        body.text(name)
    check_metadata(body)


def check_metadata(body: Fields) -> None:
    """Nothing, if `metadata` holds strings only.

    Raises:
        Refusal: it does not.
    """
    metadata = body.object("metadata")
    for name in metadata.names if metadata else ():
        if not isinstance(metadata.get(name) if metadata else None, str):
            raise wrong_value(f"metadata.{name}", "it must be a string.")
