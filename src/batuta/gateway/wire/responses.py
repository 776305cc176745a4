"""A body of POST /v1/responses as a question and what goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batuta.core import Message, Question, Role, Sampling, Text
from batuta.gateway.refusal import missing, unsupported, wrong_value
from batuta.gateway.wire.call import Call
from batuta.gateway.wire.chat import EFFORTS, check_metadata
from batuta.gateway.wire.fields import Fields
from batuta.gateway.wire.items import FOREIGN, MAX_ITEMS, kind_of, messages_of
from batuta.gateway.wire.orchestration import FIELD, parse_wishes
from batuta.gateway.wire.response_tools import (
    dropped_tools,
    parse_choice,
    parse_format,
    parse_functions,
)

Json = dict[str, Any]
_MOST_TOKENS = 100_000_000
_MOST_INCLUDED = 64
_MOST_NAMED = 20
"""Ignored fields that are told; what a client made up does not fill our headers."""
_ABSENT: tuple[Any, ...] = (None, False, 0, [], {})
_SUMMARIES = ("auto", "concise", "detailed", "none")

_REFUSED = {
    "conversation": "there are no stored conversations; use 'previous_response_id'.",
    "prompt": "there are no stored prompts.",
    "top_logprobs": "log probabilities are not given.",
    "moderation": "there is no moderation here.",
    "context_management": "conversations are not compacted.",
}
"""Fields we know and cannot honour, unless their value asks for nothing."""
_READ = {
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "text",
    "store",
    "previous_response_id",
    "background",
    "stream",
    "max_output_tokens",
    "metadata",
    "temperature",
    "top_p",
    FIELD,
}
_TEXTS = (
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
)
_OBJECTS = ("client_metadata", "prompt_cache_options", "background_options")
_ACCEPTED = {"include", "stream_options", "max_tool_calls", "truncation", *_TEXTS, *_OBJECTS}
"""Fields that are checked and bind nothing here."""
_KNOWN = _READ | _ACCEPTED | _REFUSED.keys()


@dataclass(frozen=True, slots=True)
class Sought:
    """What of the past a body needs."""

    previous: str | None
    """The id of the response that it goes on from."""
    references: tuple[str, ...]
    """The ids of items that it names and does not hold."""


@dataclass(frozen=True, slots=True)
class Past:
    """What was found of it."""

    items: tuple[Json, ...] = ()
    """Of the previous responses, oldest first: what was put in and what came out."""
    named: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """The items that were referred to, by their ids."""


@dataclass(frozen=True, slots=True)
class ResponseCall:
    """What a caller wants."""

    call: Call
    echo: Json
    """The fields of the request that the response repeats."""
    items: tuple[Json, ...]
    """What was put in, references resolved."""
    previous: str | None = None
    background: bool = False


def sought(body: Fields) -> Sought:
    """What must be looked up before `parse_response`.

    Raises:
        Refusal: the fields that say so are malformed.
    """
    references = [
        item.need_text("id") for item in _input(body) if kind_of(item) == "item_reference"
    ]
    return Sought(body.text("previous_response_id") or None, tuple(references))


def parse_response(body: Fields, past: Past) -> ResponseCall:
    """The whole body.

    Raises:
        Refusal: the first thing that is wrong with it, by the field's path.
    """
    model = body.need_text("model")
    items = _resolved(body, past)
    messages = _messages(body, items, past)
    _refuse(body)
    _check_accepted(body)
    offered = parse_functions(body)
    tools, choice = parse_choice(body, offered)
    question = Question(
        messages,
        tools,
        choice,
        body.flag("parallel_tool_calls"),
        parse_format(body),
        _sampling(body),
    )
    store = body.flag("store") is not False
    background = bool(body.flag("background"))
    if background and not store:
        raise unsupported("background", "what runs in the background must be stored.")
    call = Call(
        model,
        question,
        stream=bool(body.flag("stream")),
        store=store,
        wishes=parse_wishes(body),
        ignored=_ignored(body, items),
    )
    given = tuple(dict(item.raw) for item in items)
    previous = body.text("previous_response_id") or None
    return ResponseCall(call, _echo(body), given, previous, background)


def _input(body: Fields) -> list[Fields]:
    """The items of `input`; a string is one message."""
    given = body.get("input")
    if isinstance(given, str):
        return [Fields({"type": "message", "role": "user", "content": given}, "input")]
    return body.objects("input", MAX_ITEMS) or []


def _resolved(body: Fields, past: Past) -> list[Fields]:
    """The items, those that were referred to put in place."""
    items = _input(body)
    if not items and body.text("previous_response_id") is None:
        body.need("input")
        raise wrong_value("input", "it must have at least one item.")
    return [_there(item, past) for item in items]


def _there(item: Fields, past: Past) -> Fields:
    if kind_of(item) != "item_reference":
        return item
    found = past.named.get(item.text("id") or "")
    return item if found is None else Fields(found, item.where)


def _messages(body: Fields, items: list[Fields], past: Past) -> tuple[Message, ...]:
    """The instructions, what was said before, and what is said now."""
    before = [Fields(item, "previous_response_id") for item in past.items]
    spoken = messages_of([*before, *items])
    instructions = body.text("instructions")
    if instructions:
        spoken = (Message(Role.DEVELOPER, (Text(instructions),)), *spoken)
    if not spoken:
        raise missing("input")
    return spoken


def _sampling(body: Fields) -> Sampling:
    reasoning = body.object("reasoning")
    if reasoning is not None:
        for name in ("summary", "generate_summary"):
            reasoning.choice(name, _SUMMARIES)
    return Sampling(
        body.number("temperature", 0, 2),
        body.number("top_p", 0, 1),
        body.whole("max_output_tokens", 1, _MOST_TOKENS),
        effort=reasoning.choice("effort", EFFORTS) if reasoning else None,
    )


def _refuse(body: Fields) -> None:
    """Refuses what is known and cannot be honoured."""
    for name, reason in _REFUSED.items():
        if body.get(name) not in _ABSENT:
            raise unsupported(name, reason)
    if body.choice("truncation", ("auto", "disabled")) == "auto":
        raise unsupported("truncation", "a conversation that is too long is an error here.")
    for index, wanted in enumerate(body.texts("include", _MOST_INCLUDED) or ()):
        if "logprobs" in wanted:
            raise unsupported(f"include[{index}]", "log probabilities are not given.")


def _check_accepted(body: Fields) -> None:
    """The types of what binds nothing here."""
    for name in _TEXTS:
        body.text(name)
    for name in _OBJECTS:
        body.object(name)
    body.whole("max_tool_calls", 1, _MOST_TOKENS)
    options = body.object("stream_options")
    if options is not None:
        options.flag("include_obfuscation")
    check_metadata(body)


def _ignored(body: Fields, items: list[Fields]) -> tuple[str, ...]:
    """What is left out: unknown fields, tools and items that we do not have."""
    fields = [name for name in body.names if name not in _KNOWN]
    foreign = {kind_of(item): None for item in items if kind_of(item) in FOREIGN}
    names = (*fields, *dropped_tools(body), *(f"input.{kind}" for kind in foreign))
    return names[:_MOST_NAMED]


def _echo(body: Fields) -> Json:
    """The request as the response repeats it: what was honoured, with its defaults."""
    raw = body.raw
    tools: list[Json] = raw.get("tools") or []
    text: Json = raw.get("text") or {}
    reasoning: Json = raw.get("reasoning") or {}
    return {
        "background": bool(raw.get("background")),
        "frequency_penalty": 0.0,
        "instructions": raw.get("instructions"),
        "max_output_tokens": raw.get("max_output_tokens"),
        "max_tool_calls": raw.get("max_tool_calls"),
        "metadata": raw.get("metadata") or {},
        "model": raw["model"],
        "parallel_tool_calls": raw.get("parallel_tool_calls") is not False,
        "presence_penalty": 0.0,
        "previous_response_id": raw.get("previous_response_id"),
        "prompt_cache_key": raw.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": raw.get("safety_identifier"),
        "service_tier": "default",
        "store": raw.get("store") is not False,
        "temperature": _number(raw.get("temperature")),
        "text": {"format": text.get("format") or {"type": "text"}, **_verbosity(text)},
        "tool_choice": raw.get("tool_choice") or "auto",
        "tools": [_shown(tool) for tool in tools if tool["type"] == "function"],
        "top_logprobs": 0,
        "top_p": _number(raw.get("top_p")),
        "truncation": "disabled",
        "user": raw.get("user"),
    }


def _number(given: float | None) -> float:
    """What was asked for, or the API's default; strict readers want a number."""
    return 1.0 if given is None else float(given)


def _verbosity(text: Json) -> Json:
    return {"verbosity": text["verbosity"]} if text.get("verbosity") else {}


def _shown(tool: Json) -> Json:
    """A function with the fields that readers of the API require."""
    return {"description": None, "parameters": None, "strict": None, **tool}
