"""A body of POST /v1/chat/completions as a question and what goes with it."""

from __future__ import annotations

from batuta.core import Question, Sampling
from batuta.gateway.chat.conversation import parse_messages
from batuta.gateway.errors import invalid_value, unsupported_parameter
from batuta.gateway.http.fields import Fields
from batuta.gateway.serving.effort import EFFORTS
from batuta.gateway.serving.options import ORCHESTRATION_FIELD, parse_run_options
from batuta.gateway.serving.parsed_call import (
    ParsedCall,
    check_metadata,
    check_unsupported,
    parse_cache,
)
from batuta.gateway.serving.tools import parse_response_format, parse_tools

_MAX_SEED = 2**63 - 1
_MAX_TOKENS = 100_000_000
_MAX_STOPS = 16
_MOST_TOP_K = 1_000_000
_MAX_CHOICES = 128
_MAX_LOGPROBS = 20

_UNSUPPORTED_FIELDS = {
    "functions": "use 'tools'.",
    "function_call": "use 'tool_choice'.",
    "audio": "answers are text.",
    "logit_bias": "it cannot be honoured for every worker.",
    "web_search_options": "there is no web search here.",
}
"""Fields we know and cannot honour, unless their value asks for nothing."""
_USED_FIELDS = {
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
    "logprobs",
    "top_logprobs",
    "seed",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "store",
    "modalities",
    "frequency_penalty",
    "presence_penalty",
    "top_k",
    "prompt_cache_key",
    "prompt_cache_retention",
    ORCHESTRATION_FIELD,
}
_ACCEPTED_FIELDS = {
    "verbosity",
    "metadata",
    "user",
    "safety_identifier",
    "service_tier",
}
"""Fields that are checked and bind nothing here; the answer's header names them."""
_KNOWN_FIELDS = _USED_FIELDS | _ACCEPTED_FIELDS | _UNSUPPORTED_FIELDS.keys()


def parse_model(body: Fields) -> str:
    """The served model's name.

    Raises:
        APIError: there is none.
    """
    return body.need_text("model")


def parse_chat(body: Fields) -> ParsedCall:
    """The whole body.

    Raises:
        APIError: the first thing that is wrong with it, by the field's path.
    """
    model = parse_model(body)
    messages = parse_messages(body)
    _check_unsupported(body)
    _check_accepted(body)
    tools, choice = parse_tools(body)
    options = body.object("stream_options")
    question = Question(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.flag("parallel_tool_calls"),
        response_format=parse_response_format(body),
        sampling=parse_sampling(body),
        cache=parse_cache(body),
    )
    return ParsedCall(
        model=model,
        question=question,
        stream=bool(body.flag("stream")),
        include_usage=bool(options and options.flag("include_usage")),
        store=body.flag("store") is not False,
        options=parse_run_options(body),
        ignored=tuple(body.unused(_KNOWN_FIELDS, _ACCEPTED_FIELDS)),
    )


def parse_sampling(body: Fields) -> Sampling:
    """How the visible answer is to be sampled.

    Raises:
        APIError: a value is out of bounds.
    """
    newer = body.whole("max_completion_tokens", 1, _MAX_TOKENS)
    choices = body.whole("n", 1, _MAX_CHOICES)
    older = body.whole("max_tokens", 1, _MAX_TOKENS)
    return Sampling(
        temperature=body.number("temperature", 0, 2),
        top_p=body.number("top_p", 0, 1),
        max_tokens=older if newer is None else newer,
        stop=_parse_stops(body),
        seed=body.whole("seed", -_MAX_SEED - 1, _MAX_SEED),
        effort=body.choice("reasoning_effort", EFFORTS),
        frequency_penalty=body.number("frequency_penalty", -2, 2) or None,
        presence_penalty=body.number("presence_penalty", -2, 2) or None,
        top_k=body.whole("top_k", 1, _MOST_TOP_K),
        choices=None if choices == 1 else choices,
        logprobs=_parse_logprobs(body),
    )


def _parse_logprobs(body: Fields) -> int | None:
    wanted, others = body.flag("logprobs"), body.whole("top_logprobs", 0, _MAX_LOGPROBS)
    if others and not wanted:
        raise invalid_value("top_logprobs", "it needs 'logprobs' to be true.")
    return (others or 0) if wanted else None


def _parse_stops(body: Fields) -> tuple[str, ...]:
    stop = body.get("stop")
    if isinstance(stop, list):
        return body.texts("stop", _MAX_STOPS) or ()
    text = body.text("stop")
    return (text,) if text else ()


def _check_unsupported(body: Fields) -> None:
    """Refuses what is known and cannot be honoured."""
    check_unsupported(body, _UNSUPPORTED_FIELDS)
    if any(form != "text" for form in body.texts("modalities", 8) or ()):
        raise unsupported_parameter("modalities", "answers are text.")


def _check_accepted(body: Fields) -> None:
    body.choice("verbosity", ("low", "medium", "high"))
    for name in ("user", "safety_identifier", "service_tier"):
        body.text(name)
    check_metadata(body)
