"""Parser of the body of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anyio.to_thread import run_sync

from batuta.config.effort import EFFORTS
from batuta.core import Message, Question, Role, Sampling, Text
from batuta.gateway.errors import invalid_value, missing_parameter, unsupported_parameter
from batuta.gateway.http.body import MAX_ENTRIES, Fields
from batuta.gateway.responses.compaction import (
    COMPACTION_ITEM,
    COMPACTION_TRIGGER,
    asks_compaction,
    compaction_request,
    read_summary,
)
from batuta.gateway.responses.items import SKIPPED_ITEMS, is_client_search, item_type, parse_items
from batuta.gateway.responses.tools import (
    CUSTOM,
    NAMESPACE,
    TOOL_SEARCH,
    dropped_tool_types,
    found_tools,
    parse_functions,
    parse_server_tools,
    parse_text_format,
    parse_tool_choice,
    searches_tools,
)
from batuta.gateway.serving.earlier_files import container_response, find_earlier_files
from batuta.gateway.serving.parsed_call import (
    ORCHESTRATION_FIELD,
    ParsedCall,
    check_metadata,
    check_unsupported,
    client_session,
    parse_cache,
    parse_run_options,
    request_labels,
)
from batuta.gateway.serving.server_tools import server_tool_name

Json = dict[str, Any]
_MAX_TOKENS = 100_000_000
_MAX_INCLUDED = 64
_FEW_ITEMS = 200
"""Maximum number of earlier items that are parsed in the event loop."""
_MAX_LOGPROBS = 20
_LOGPROBS = "message.output_text.logprobs"
_SUMMARIES = ("auto", "concise", "detailed", "none")

REFUSED_FIELDS = {
    "conversation": "stored conversations are not supported; use 'previous_response_id'.",
    "prompt": "stored prompts are not supported.",
    "moderation": "it cannot be set in a request.",
    "context_management": "conversations are not compacted automatically.",
}
"""Known fields that are refused, unless their value is empty, with the reasons."""
_USED_FIELDS = {
    "model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning",
    "text", "store", "previous_response_id", "background", "stream", "max_output_tokens",
    "metadata", "temperature", "top_p", "top_logprobs", "include", "prompt_cache_key",
    "prompt_cache_retention", ORCHESTRATION_FIELD,
}  # fmt: skip
_TEXT_FIELDS = ("user", "safety_identifier", "service_tier")
_OBJECT_FIELDS = ("client_metadata", "prompt_cache_options", "background_options")
_ACCEPTED_FIELDS = {
    "stream_options",
    "max_tool_calls",
    "truncation",
    *_TEXT_FIELDS,
    *_OBJECT_FIELDS,
}
"""Fields that are validated and do not change the answer; some label the stored run."""
_UNUSED = _ACCEPTED_FIELDS - {"truncation"}
"""The accepted fields that a response header lists as ignored."""
_KNOWN_FIELDS = _USED_FIELDS | _ACCEPTED_FIELDS | REFUSED_FIELDS.keys()


@dataclass(frozen=True, slots=True)
class HistoryReferences:
    """The earlier responses and items that a body refers to."""

    previous_id: str | None
    """The id of the response that the body continues; None for a new conversation."""
    item_ids: tuple[str, ...]
    """The ids of the items that the body references without their content."""
    container: str | None = None
    """The id of the response whose container the request's programs use again; None: none."""


@dataclass(frozen=True, slots=True)
class ResponseHistory:
    """The earlier responses and items that were loaded for a body."""

    items: tuple[Json, ...] = ()
    """Input and output items of the previous responses, oldest first."""
    by_id: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """The referenced items, by their ids."""
    files: tuple[str, ...] = ()
    """Ids of the files of the previous responses' tools, and of a container that is used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCall:
    """A parsed Responses request."""

    call: ParsedCall
    echo: Json
    """The fields of the request that the response repeats."""
    items: tuple[Json, ...]
    """The input items, with references resolved."""
    previous_id: str | None = None
    background: bool = False
    compacts: bool = False
    """Whether the request is for a summary of the conversation instead of an answer."""


def parse_history_references(body: Fields) -> HistoryReferences:
    """Return the references that must be loaded before `parse_response`.

    Raises:
        APIError: a field with references is malformed.
    """
    references = [
        item.need_text("id") for item in _parse_input(body) if item_type(item) == "item_reference"
    ]
    if len(set(references)) < len(references):  # a small body would become a very large prompt
        raise invalid_value("input", "it references the same item more than once.")
    container = container_response(body.get("tools")) if "tools" in body.names else None
    previous = body.text("previous_response_id") or None
    return HistoryReferences(previous, tuple(references), container)


async def parse_with_history(body: Fields, history: ResponseHistory) -> ResponseCall:
    """Parse the body as `parse_response` does, in a thread if the body or the history is large.

    Raises:
        APIError: the body is invalid; the error names the path of an invalid field.
    """
    if not body.is_large and len(history.items) + len(history.by_id) <= _FEW_ITEMS:
        return parse_response(body, history)
    return await run_sync(parse_response, body, history)


def parse_response(body: Fields, history: ResponseHistory) -> ResponseCall:
    """Return the body as a call.

    Raises:
        APIError: the body is invalid; the error names the path of an invalid field.
    """
    model = body.need_text("model")
    items = _resolve_items(body, history)
    before = [Fields(item, "previous_response_id") for item in history.items]
    messages = _parse_conversation(body, [*before, *items])
    found = found_tools([*before, *items])
    _check_unsupported(body)
    _check_accepted(body)
    tools, choice = parse_tool_choice(body, parse_functions(body, found))
    form, requested_tools = parse_text_format(body), parse_server_tools(body)
    compacts = asks_compaction(items)
    if compacts:
        messages, tools, choice = (*messages, compaction_request()), (), None
        form, requested_tools = None, ()
    question = Question(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.flag("parallel_tool_calls"),
        response_format=form,
        sampling=_parse_sampling(body),
        cache=parse_cache(body),
    )
    store = body.flag("store") is not False
    background = bool(body.flag("background"))
    if background and not store:
        raise unsupported_parameter("background", "a background response must be stored.")
    previous = body.text("previous_response_id") or None
    call = ParsedCall(
        model=model,
        question=question,
        stream=bool(body.flag("stream")),
        store=store,
        options=parse_run_options(body),
        session=client_session(body),
        files=body.files,
        earlier_files=_find_earlier(history, items) if requested_tools else (),
        labels=request_labels(body),
        previous=previous or "",
        ignored=_ignored_names(body, items),
        server_tools=requested_tools,
    )
    given = tuple(dict(item.raw) for item in items)
    return ResponseCall(
        call=call,
        echo=_request_echo(body, found),
        items=given,
        previous_id=previous,
        background=background,
        compacts=compacts,
    )


def _find_earlier(history: ResponseHistory, items: list[Fields]) -> tuple[str, ...]:
    named = find_earlier_files([*history.items, *(dict(item.raw) for item in items)])
    return tuple(dict.fromkeys((*named, *history.files)))


def _parse_input(body: Fields) -> list[Fields]:
    """Return the items of `input`; a string is one message."""
    given = body.get("input")
    if isinstance(given, str):
        return [Fields({"type": "message", "role": "user", "content": given}, "input")]
    return body.objects("input", MAX_ENTRIES) or []


def _resolve_items(body: Fields, history: ResponseHistory) -> list[Fields]:
    """Return the input items, with references replaced by the referenced items."""
    items = _parse_input(body)
    if not items and body.text("previous_response_id") is None:
        body.need("input")
        raise invalid_value("input", "it must have at least one item.")
    return [_resolve_item(item, history) for item in items]


def _resolve_item(item: Fields, history: ResponseHistory) -> Fields:
    if item_type(item) != "item_reference":
        return item
    found = history.by_id.get(item.text("id") or "")
    return item if found is None else Fields(found, item.where)


def _parse_conversation(body: Fields, items: list[Fields]) -> tuple[Message, ...]:
    """Return the instructions and the messages of the earlier and the new items.

    Raises:
        APIError: an item is malformed, or there is no message.
    """
    messages = parse_items(items)
    instructions = body.text("instructions")
    if instructions:
        messages = (Message(role=Role.DEVELOPER, parts=(Text(instructions),)), *messages)
    if not messages:
        raise missing_parameter("input")
    return messages


def _parse_sampling(body: Fields) -> Sampling:
    reasoning = body.object("reasoning")
    if reasoning is not None:
        for name in ("summary", "generate_summary"):
            reasoning.choice(name, _SUMMARIES)
    return Sampling(
        temperature=body.number("temperature", 0, 2),
        top_p=body.number("top_p", 0, 1),
        max_tokens=body.whole("max_output_tokens", 1, _MAX_TOKENS),
        effort=reasoning.choice("effort", EFFORTS) if reasoning else None,
        logprobs=_parse_logprobs(body),
    )


def _parse_logprobs(body: Fields) -> int | None:
    alternatives = body.whole("top_logprobs", 0, _MAX_LOGPROBS)
    is_included = _LOGPROBS in (body.texts("include", _MAX_INCLUDED) or ())
    return (alternatives or 0) if is_included or alternatives else None


def _check_unsupported(body: Fields) -> None:
    """Check that the body has no refused field, and does not ask for truncation.

    Raises:
        APIError: the body has such a field.
    """
    check_unsupported(body, REFUSED_FIELDS)
    if body.choice("truncation", ("auto", "disabled")) == "auto":
        raise unsupported_parameter(
            "truncation", "conversations that are too long are not truncated here."
        )


def _check_accepted(body: Fields) -> None:
    """Check the types of `metadata` and of the fields that do not change the answer."""
    for name in _TEXT_FIELDS:
        body.text(name)
    for name in _OBJECT_FIELDS:
        body.object(name)
    body.whole("max_tool_calls", 1, _MAX_TOKENS)
    options = body.object("stream_options")
    if options is not None:
        options.flag("include_obfuscation")
    check_metadata(body)


def _ignored_names(body: Fields, items: list[Fields]) -> tuple[str, ...]:
    """Return the names of the ignored fields, tools and items."""
    fields = body.unused(_KNOWN_FIELDS, _UNUSED)
    kinds = ((item_type(item), item) for item in items)
    foreign = {kind: None for kind, item in kinds if _is_skipped(item, kind)}
    if asks_compaction(items):
        foreign.pop(COMPACTION_TRIGGER, None)
    return (*fields, *dropped_tool_types(body), *(f"input.{kind}" for kind in foreign))


def _is_skipped(item: Fields, kind: str) -> bool:
    if kind == COMPACTION_ITEM:
        return read_summary(item) is None
    return kind in SKIPPED_ITEMS and not (kind.startswith(TOOL_SEARCH) and is_client_search(item))


def _request_echo(body: Fields, found: list[Fields]) -> Json:
    """Return the request fields that the response repeats, with defaults for missing fields.

    The tools that searches have found are listed together with the offered tools.
    """
    raw = body.raw
    tools: list[Json] = [*(raw.get("tools") or ()), *(dict(tool.raw) for tool in found)]
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
        "temperature": _number_or_default(raw.get("temperature")),
        "text": {"format": text.get("format") or {"type": "text"}, **_verbosity_field(text)},
        "tool_choice": raw.get("tool_choice") or "auto",
        "tools": [_function_object(tool) for tool in tools if _is_supported(tool)],
        "top_logprobs": raw.get("top_logprobs") or 0,
        "top_p": _number_or_default(raw.get("top_p")),
        "truncation": "disabled",
        "user": raw.get("user"),
    }


def _is_supported(tool: Json) -> bool:
    return (
        tool["type"] in {"function", CUSTOM, NAMESPACE}
        or searches_tools([tool])
        or server_tool_name(tool["type"]) is not None
    )


def _number_or_default(given: float | None) -> float:
    """Return the number, or the API's default, because strict clients do not accept null."""
    return 1.0 if given is None else float(given)


def _verbosity_field(text: Json) -> Json:
    return {"verbosity": text["verbosity"]} if text.get("verbosity") else {}


def _function_object(tool: Json) -> Json:
    """Return a function with every field that clients require; other tools are not changed."""
    if tool["type"] != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}
