"""Parses `tools`, `tool_choice` and `response_format` of a chat body."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from batuta.core import ResponseFormat, Tool
from batuta.core.server_tools import CODE_INTERPRETER, FILE_SEARCH, RequestedTool
from batuta.gateway.errors import invalid_type, invalid_value, unsupported_parameter
from batuta.gateway.http.body import MAX_ENTRIES, Fields
from batuta.gateway.serving.server_tools import parse_requested_tools, server_tool_name
from batuta.schemas import measure_json, validator_for

MAX_TOOL_VALUES = 20_000
MAX_TOOL_DEPTH = 64
_NAME_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_SERVED = frozenset({FILE_SEARCH, CODE_INTERPRETER})
"""The server's tools that a chat body may request in `tools`."""
_MODES = ("none", "auto", "required")

ToolSelection = tuple[tuple[Tool, ...], str | None]
"""The tools that may be called, and `auto`, `none`, `required`, a tool's name or None."""
NO_TOOLS: ToolSelection = ((), None)


def parse_tools(body: Fields) -> ToolSelection:
    """Return the client's tools and its tool choice.

    The server's tools are left out; see `parse_chat_server_tools`.

    Raises:
        APIError: a tool or the choice is malformed or of an unknown type, two tools have the same
            name, or the choice names no tool of `tools`.
    """
    served = offered_by_server(body)
    entries = body.objects("tools", MAX_ENTRIES) or ()
    tools = tuple(_parse_tool(entry) for entry in entries if entry.text("type") not in served)
    names = [tool.name for tool in tools]
    if len(set(names)) != len(names):
        raise invalid_value("tools", "two tools have the same name.")
    choice = body.get("tool_choice")
    if choice is None:
        return tools, None
    if isinstance(choice, str):
        if choice == "required" and served and not tools:
            return tools, None
        return tools, tool_choice_mode(body, tools)
    if not isinstance(choice, dict):
        raise invalid_type("tool_choice", "a string or an object", choice)
    picked = body.need_object("tool_choice")
    if picked.text("type") in served:
        return tools, "auto" if tools else None
    return _parse_named_choice(picked, tools, served)


def offered_by_server(body: Fields) -> dict[str, Fields]:
    """Return the entries of a chat body that request one of `_SERVED`; of each type the last."""
    return {
        kind: entry
        for entry in body.objects("tools", MAX_ENTRIES) or ()
        if (kind := entry.text("type")) and server_tool_name(kind) in _SERVED
    }


def parse_chat_server_tools(body: Fields) -> tuple[RequestedTool, ...]:
    """Return the server's tools that a chat body requests; none if `tool_choice` is "none".

    Raises:
        APIError: a tool or the choice is malformed; see `parse_tools`.
    """
    served = offered_by_server(body)
    choice = body.get("tool_choice")
    if not served or choice == "none":
        return ()
    tools, _ = parse_tools(body)
    requested_tools = tuple(
        replace(requested, is_refused=True) for requested in parse_requested_tools(served.values())
    )
    picked = body.need_object("tool_choice") if isinstance(choice, dict) else None
    named = picked.text("type") if picked else None
    if picked and named == "allowed_tools":
        return allowed_server_tools(picked.need_object("allowed_tools"), requested_tools)
    is_only_tool = choice == "required" and not tools and len(served) == 1
    return tuple(
        replace(requested, is_forced=is_only_tool or requested.tool == server_tool_name(named))
        for requested in requested_tools
    )


def _parse_tool(entry: Fields) -> Tool:
    _check_is_function(entry)
    function = entry.need_object("function")
    parameters = function.object("parameters")
    return Tool(
        name=tool_name(function),
        description=function.text("description") or "",
        parameters=forwarded_schema(parameters) if parameters else {},
        strict=function.flag("strict"),
        cache=entry.cache_mark() or function.cache_mark(),
    )


def _check_is_function(entry: Fields) -> None:
    entry.need("type")
    kind = entry.text("type")
    if kind == "custom":
        raise unsupported_parameter(
            entry.path("type"), "only tools of type 'function' are supported."
        )
    if kind != "function":
        raise invalid_value(entry.path("type"), "it must be 'function'.")


def tool_name(function: Fields) -> str:
    """Return the field `name` of a function or a response format.

    Raises:
        APIError: the name is missing, or some providers do not accept it.
    """
    name = function.need_text("name")
    if not _NAME_PATTERN.fullmatch(name):
        reason = "it must be 1 to 128 letters, digits, underscores, dashes, dots or colons."
        raise invalid_value(function.path("name"), reason)
    return name


def tool_choice_mode(body: Fields, tools: tuple[Tool, ...]) -> str | None:
    """Return a `tool_choice` that is a string; None if the client has no tools.

    Raises:
        APIError: the string is unknown, or requires a tool although there is no tool.
    """
    mode = body.choice("tool_choice", _MODES)
    if tools:
        return mode
    if mode == "required":
        raise invalid_value("tool_choice", "it requires a tool, but 'tools' has none.")
    return None


def _parse_named_choice(
    choice: Fields, tools: tuple[Tool, ...], served: Collection[str]
) -> ToolSelection:
    if choice.text("type") == "allowed_tools":
        return _parse_allowed_tools(choice.need_object("allowed_tools"), tools, served)
    _check_is_function(choice)
    function = choice.need_object("function")
    return tools, offered_tool_name(function, tools)


def _parse_allowed_tools(
    allowed: Fields, tools: tuple[Tool, ...], served: Collection[str]
) -> ToolSelection:
    entries = allowed.objects("tools", MAX_ENTRIES) or ()
    functions = [entry for entry in entries if entry.text("type") not in served]
    names: set[str] = set()
    for entry in functions:
        _check_is_function(entry)
        names.add(offered_tool_name(entry.need_object("function"), tools))
    return select_allowed_tools(allowed, names, tools, allows_served=len(functions) < len(entries))


def select_allowed_tools(
    allowed: Fields, names: set[str], tools: tuple[Tool, ...], *, allows_served: bool
) -> ToolSelection:
    """Return the client's tools that are allowed, and the mode; None if none of them is allowed.

    Args:
        allowed: the field `allowed_tools`, which has the mode.
        names: the names of the allowed tools.
        tools: the client's tools.
        allows_served: whether a tool of the server is allowed as well.

    Raises:
        APIError: no tool is named, or the mode is missing or unknown.
    """
    allowed.need("mode")
    mode = allowed.choice("mode", ("auto", "required"))
    if not names and not allows_served:
        raise invalid_value(allowed.path("tools"), "it must name at least one tool.")
    return tuple(tool for tool in tools if tool.name in names), mode if names else None


def allowed_server_tools(
    allowed: Fields, requested_tools: tuple[RequestedTool, ...]
) -> tuple[RequestedTool, ...]:
    """Return those of the requested tools of the server that `allowed_tools` names.

    A tool is forced if it is the only one that is allowed, and a call is required.
    """
    entries = allowed.objects("tools", MAX_ENTRIES) or ()
    names = {server_tool_name(entry.text("type")) for entry in entries}
    is_forced = allowed.text("mode") == "required" and len(entries) == 1
    return tuple(replace(r, is_forced=is_forced) for r in requested_tools if r.tool in names)


def offered_tool_name(function: Fields, tools: tuple[Tool, ...]) -> str:
    """Return the name in `function`, which must be one of the client's tools.

    Raises:
        APIError: there is no tool of this name.
    """
    name = function.need_text("name")
    if all(tool.name != name for tool in tools):
        raise invalid_value(function.path("name"), f"'tools' has no tool named '{name}'.")
    return name


def checked_schema(schema: Fields) -> Mapping[str, Any]:
    """Return a schema that answers are checked with, unchanged.

    Raises:
        APIError: the schema is too large; this is checked without compiling the schema.
    """
    try:
        validator_for(schema.raw)
    except ValueError as error:
        raise invalid_value(schema.where, f"{error}.") from None
    return schema.raw


def forwarded_schema(schema: Fields) -> Mapping[str, Any]:
    """Return a schema that is only passed to providers, unchanged.

    Raises:
        APIError: the schema is nested too deeply, or has too many values.
    """
    try:
        measure_json(schema.raw, values=MAX_TOOL_VALUES, depth=MAX_TOOL_DEPTH)
    except ValueError as error:
        raise invalid_value(schema.where, f"{error}.") from None
    return schema.raw


def parse_response_format(body: Fields) -> ResponseFormat | None:
    """Return the response format; None: any text.

    Raises:
        APIError: the response format is malformed.
    """
    form = body.object("response_format")
    if form is None:
        return None
    form.need("type")
    kind = form.choice("type", ("text", "json_object", "json_schema"))
    if kind == "text":
        return None
    if kind == "json_object" and form.get("schema") is None:
        return ResponseFormat(kind="json_object")
    if kind == "json_object":  # with a schema, as Together, Fireworks and llama.cpp accept it
        schema = checked_schema(form.need_object("schema"))
        return ResponseFormat(kind="json_schema", schema=schema)
    named = form.need_object("json_schema")
    return ResponseFormat(
        kind="json_schema",
        name=tool_name(named),
        schema=checked_schema(named.need_object("schema")),
        strict=named.flag("strict"),
    )
