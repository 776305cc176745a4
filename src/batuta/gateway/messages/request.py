"""Parser of the body of POST /v1/messages, Anthropic's Messages API."""

from __future__ import annotations

from dataclasses import dataclass, replace

from batuta.config.effort import effort_of_thinking
from batuta.core import PromptCache, Question, ResponseFormat, Sampling, Tool
from batuta.core.server_tools import CODE_INTERPRETER, RequestedTool
from batuta.gateway.errors import invalid_value
from batuta.gateway.http.body import MAX_ENTRIES, Fields
from batuta.gateway.messages.conversation import parse_turns
from batuta.gateway.serving.earlier_files import find_earlier_files
from batuta.gateway.serving.parsed_call import (
    ORCHESTRATION_FIELD,
    ParsedCall,
    check_unsupported,
    client_session,
    parse_run_options,
    request_labels,
)
from batuta.gateway.serving.server_tools import parse_requested_tools
from batuta.gateway.serving.tools import ToolSelection, checked_schema, forwarded_schema, tool_name

_MAX_TOKENS = 100_000_000
_MOST_TOP_K = 1_000_000
_MAX_STOPS = 16
_EFFORT_NAMES = ("low", "medium", "high", "xhigh", "max")
_CLIENT_TOOL_TYPES = (None, "custom")
"""Types of the tools that the client runs itself."""
REFUSED_FIELDS = {
    "container": "containers are not supported.",
    "mcp_servers": "MCP servers are not called here; offer their tools in 'tools'.",
    "thread": "conversations are not kept here; send the whole conversation without it.",
    "compaction": "ask for a summary in a message instead.",
}
"""Known fields that are refused unless they are empty, each with the reason."""
_USED_FIELDS = {
    "top_k", "model", "messages", "system", "max_tokens", "stream", "stop_sequences",
    "temperature", "top_p", "tools", "tool_choice", "thinking", "output_config", "output_format",
    "cache_control", ORCHESTRATION_FIELD,
}  # fmt: skip
_ACCEPTED_FIELDS = {"metadata", "service_tier"}
"""Fields that are validated and do not change the answer; `metadata` may name user and session."""
_KNOWN_FIELDS = _USED_FIELDS | _ACCEPTED_FIELDS | REFUSED_FIELDS.keys()


@dataclass(frozen=True, slots=True)
class MessageCall:
    """A parsed Messages request."""

    call: ParsedCall
    show_thinking: bool = False
    """Whether to send thinking blocks: a worker's own reasoning, or the progress of the run."""


def parse_message(body: Fields) -> MessageCall:
    """Return the body as a call.

    Raises:
        APIError: the body is invalid; the error names the path of an invalid field.
    """
    model = body.need_text("model")
    question = parse_question(body)
    body.need("max_tokens")
    _check_accepted(body)
    thinking, requested_tools = _parse_thinking(body), _parse_server_tools(body)
    call = ParsedCall(
        model=model,
        question=question,
        stream=bool(body.flag("stream")),
        options=parse_run_options(body),
        session=client_session(body),
        files=body.files,
        earlier_files=find_earlier_files([body.get("messages")]) if requested_tools else (),
        labels=request_labels(body),
        ignored=_ignored_fields(body),
        server_tools=requested_tools,
    )
    return MessageCall(call, thinking in {"enabled", "adaptive"})


def parse_question(body: Fields) -> Question:
    """Return the conversation with its tools, response format and sampling parameters.

    Raises:
        APIError: a field is malformed or not supported.
    """
    check_unsupported(body, REFUSED_FIELDS)
    messages = parse_turns(body)
    tools, choice = _parse_tool_choice(body, _parse_tools(body))
    selection = body.object("tool_choice")
    is_single = selection.flag("disable_parallel_tool_use") if selection else None
    sampling = Sampling(
        temperature=body.number("temperature", 0, 1),
        top_p=body.number("top_p", 0, 1),
        max_tokens=body.whole("max_tokens", 1, _MAX_TOKENS),
        stop=body.texts("stop_sequences", _MAX_STOPS) or (),
        effort=_parse_effort(body),
        top_k=body.whole("top_k", 1, _MOST_TOP_K),
    )
    parallel = None if is_single is None else not is_single
    mark = body.cache_mark()
    cache = PromptCache(mark=mark) if mark else None
    return Question(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_format=_parse_response_format(body),
        sampling=sampling,
        cache=cache,
    )


def _parse_tools(body: Fields) -> tuple[Tool, ...]:
    entries = body.objects("tools", MAX_ENTRIES) or ()
    tools = tuple(
        _parse_tool(entry) for entry in entries if entry.text("type") in _CLIENT_TOOL_TYPES
    )
    if len({tool.name for tool in tools}) != len(tools):
        raise invalid_value("tools", "two tools have the same name.")
    return tools


def _parse_server_tools(body: Fields) -> tuple[RequestedTool, ...]:
    """Return the server tools that the client requests; none if `tool_choice` is `none`."""
    requested_tools = _offered_server_tools(body)
    choice = body.object("tool_choice")
    if not requested_tools or choice is None:
        return requested_tools
    kind = choice.text("type")
    if kind == "none":
        return ()
    is_only_tool = kind == "any" and not _parse_tools(body) and len(requested_tools) == 1
    named = choice.text("name")
    return tuple(
        replace(requested, is_forced=is_only_tool or named == own_tool_name(requested.tool))
        for requested in requested_tools
    )


def own_tool_name(name: str) -> str:
    """Return the name of a server tool in Anthropic's API."""
    return "code_execution" if name == CODE_INTERPRETER else name


def _parse_tool(entry: Fields) -> Tool:
    schema = forwarded_schema(entry.need_object("input_schema"))
    description, strict = entry.text("description") or "", entry.flag("strict")
    return Tool(
        name=tool_name(entry),
        description=description,
        parameters=schema,
        strict=strict,
        cache=entry.cache_mark(),
    )


def _parse_tool_choice(body: Fields, tools: tuple[Tool, ...]) -> ToolSelection:
    choice = body.object("tool_choice")
    if choice is None:
        return tools, None
    choice.need("type")
    kind = choice.choice("type", ("auto", "any", "tool", "none"))
    if kind == "tool":
        name = choice.need_text("name")
        if name in {own_tool_name(requested.tool) for requested in _offered_server_tools(body)}:
            return tools, "auto" if tools else None
        if all(tool.name != name for tool in tools):
            raise invalid_value(choice.path("name"), f"'tools' has no tool named '{name}'.")
        return tools, name
    if kind == "any" and not tools:
        if _offered_server_tools(body):
            return tools, None
        raise invalid_value(
            "tool_choice", "it requires a tool, but 'tools' has none that can be called."
        )
    return tools, "required" if kind == "any" else kind if tools else None


def _offered_server_tools(body: Fields) -> tuple[RequestedTool, ...]:
    return parse_requested_tools(_foreign_tools(body))


def _foreign_tools(body: Fields) -> list[Fields]:
    """Return the entries of `tools` that the client does not run itself.

    `_parse_tools` has already checked that every entry is an object.
    """
    entries = enumerate(body.array("tools", MAX_ENTRIES) or ())
    return [
        Fields(entry, f"tools[{index}]")
        for index, entry in entries
        if entry.get("type") not in _CLIENT_TOOL_TYPES
    ]


def _parse_thinking(body: Fields) -> str | None:
    thinking = body.object("thinking")
    if thinking is None:
        return None
    thinking.need("type")
    return thinking.choice("type", ("enabled", "disabled", "adaptive"))


def _parse_effort(body: Fields) -> str | None:
    """Return the requested effort, else that of the thinking budget; None if neither is set."""
    output = body.object("output_config")
    word = output.choice("effort", _EFFORT_NAMES) if output else None
    if word is not None:
        return word
    match _parse_thinking(body):
        case "enabled":
            thinking = body.need_object("thinking")
            thinking.need("budget_tokens")
            return effort_of_thinking(thinking.whole("budget_tokens", 1, _MAX_TOKENS))
        case "disabled":
            return effort_of_thinking(None)
        case _:
            return None


def _parse_response_format(body: Fields) -> ResponseFormat | None:
    output = body.object("output_config")
    form = (output.object("format") if output else None) or body.object("output_format")
    if form is None:
        return None
    form.need("type")
    form.choice("type", ("json_schema",))
    return ResponseFormat(kind="json_schema", schema=checked_schema(form.need_object("schema")))


def _check_accepted(body: Fields) -> None:
    body.text("service_tier")
    metadata = body.object("metadata")
    if metadata is not None:
        metadata.text("user_id")


def _ignored_fields(body: Fields) -> tuple[str, ...]:
    """Return the names of fields without effect, and of tools that the client does not run.

    Tools that this server runs are removed from these names later.
    """
    fields = body.unused(_KNOWN_FIELDS, _ACCEPTED_FIELDS)
    foreign = dict.fromkeys(f"tools.{entry.text('type')}" for entry in _foreign_tools(body))
    return (*fields, *foreign)
