"""Parsers of `tools`, `tool_choice` and `text.format` of a Responses body."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import orjson

from batuta.core import ResponseFormat, Tool
from batuta.core.server_tools import RequestedTool
from batuta.gateway.errors import invalid_type, invalid_value, unsupported_parameter
from batuta.gateway.http.body import MAX_ENTRIES, Fields
from batuta.gateway.serving.server_tools import parse_requested_tools, server_tool_name
from batuta.gateway.serving.tools import (
    ToolSelection,
    allowed_server_tools,
    checked_schema,
    forwarded_schema,
    offered_tool_name,
    select_allowed_tools,
    tool_choice_mode,
    tool_name,
)

Json = dict[str, Any]
NAMESPACE = "namespace"
CUSTOM = "custom"
"""The type of a tool with free-form text input; workers get it as a function."""
CUSTOM_INPUT = "input"
"""The name of that function's only argument."""
TOOL_SEARCH = "tool_search"
"""The type and the name of the tool by which a client searches its own tools."""
_CALLED = frozenset({"function", CUSTOM})
MAX_NAME = 64
"""Maximum length of a function name that every provider accepts."""
_DIGEST = 8
_ODD = re.compile(r"[^A-Za-z0-9_-]")


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name under which workers get the function: its name, after any namespace.

    A name with a namespace that a provider could reject is replaced by a plain name of at most
    `MAX_NAME` characters that ends with a hash.
    """
    if not namespace:
        return name
    joined = namespace + name if namespace.endswith("__") else f"{namespace}__{name}"
    plain = _ODD.sub("_", joined)
    if plain == joined and len(plain) <= MAX_NAME:
        return plain
    digest = hashlib.sha256(f"{namespace}\0{name}".encode()).hexdigest()[:_DIGEST]
    return f"{plain[: MAX_NAME - _DIGEST - 1]}_{digest}"


def named_functions(tools: Iterable[Fields]) -> Iterator[tuple[str | None, Fields]]:
    """Yield each function in a namespace with the namespace's name, and each other tool with None.

    Raises:
        APIError: a namespace is malformed, or a tool has no type.
    """
    for entry in tools:
        entry.need("type")
        if entry.text("type") != NAMESPACE:
            yield None, entry
            continue
        namespace = entry.need_text("name")
        for function in entry.objects("tools", MAX_ENTRIES) or ():
            function.need("type")
            yield namespace, function


def own_names(tools: Iterable[Json]) -> dict[str, Json]:
    """Return the fields `name` and `namespace` of namespaced functions, by their `flat_name`."""
    return {
        flat_name(tool["name"], function["name"]): {
            "name": function["name"],
            "namespace": tool["name"],
        }
        for tool in tools
        if tool["type"] == NAMESPACE
        for function in tool.get("tools") or ()
        if function["type"] in _CALLED
    }


def custom_names(tools: Iterable[Json]) -> frozenset[str]:
    """Return the names under which workers get the custom tools."""
    names: set[str] = set()
    for tool in tools:
        inner = tool.get("tools") or () if tool["type"] == NAMESPACE else ()
        names |= {flat_name(tool["name"], each["name"]) for each in inner if each["type"] == CUSTOM}
        if tool["type"] == CUSTOM:
            names.add(tool["name"])
    return frozenset(names)


def custom_input(arguments: str) -> str:
    """Return the input of a custom tool from the arguments of the worker's function call."""
    try:
        given: Any = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments  # the worker wrote the text itself instead of JSON
    if isinstance(given, str):
        return given
    found = cast("Json", given).get(CUSTOM_INPUT) if isinstance(given, dict) else None
    return found if isinstance(found, str) else arguments


def parse_functions(body: Fields, found: Iterable[Fields] = ()) -> tuple[Tool, ...]:
    """Return the tools that the client offers and runs, as functions; others are left out.

    Args:
        body: the request.
        found: tools that searches found; a tool of the same name in `tools` is used instead.

    Raises:
        APIError: a tool is malformed, or two in `tools` have the same name.
    """
    tools = list(_parse_called(body.objects("tools", MAX_ENTRIES) or ()))
    if len({tool.name for tool in tools}) != len(tools):
        raise invalid_value("tools", "two tools have the same name.")
    return tuple({tool.name: tool for tool in (*_parse_called(found), *tools)}.values())


def _parse_called(tools: Iterable[Fields]) -> Iterator[Tool]:
    for namespace, entry in named_functions(tools):
        kind = entry.text("type")
        if kind in _CALLED:
            parse = _parse_function if kind == "function" else _parse_custom
            yield parse(entry, namespace)
        elif _is_own_search(entry):
            yield _parse_search(entry)


def _is_own_search(entry: Fields) -> bool:
    """Return True for a tool search that the client runs; a provider's search is not supported."""
    return entry.text("type") == TOOL_SEARCH and entry.text("execution") == "client"


def found_tools(items: Iterable[Fields]) -> list[Fields]:
    """Return the tools that searches, of the client or of a provider, have found.

    Raises:
        APIError: a result is malformed.
    """
    searches = (item for item in items if item.text("type") == f"{TOOL_SEARCH}_output")
    return [tool for search in searches for tool in search.objects("tools", MAX_ENTRIES) or ()]


def searches_tools(tools: Iterable[Json]) -> bool:
    """Return True if the tools include a tool search that the client runs."""
    return any(t["type"] == TOOL_SEARCH and t.get("execution") == "client" for t in tools)


def search_arguments(arguments: str) -> Json:
    """Return the arguments of a tool search as the object that the client gets."""
    try:
        given: Any = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        given = arguments
    return cast("Json", given) if isinstance(given, dict) else {"query": str(given)}


def dropped_tool_types(body: Fields) -> tuple[str, ...]:
    """Return `tools.TYPE` for each type of the tools that `parse_functions` leaves out."""
    kinds = (
        f"{NAMESPACE}.{entry.text('type')}" if namespace else entry.text("type") or ""
        for namespace, entry in named_functions(body.objects("tools", MAX_ENTRIES) or ())
        if entry.text("type") not in _CALLED and not _is_own_search(entry)
    )
    return tuple(dict.fromkeys(f"tools.{kind}" for kind in kinds))


def _parse_function(entry: Fields, namespace: str | None) -> Tool:
    parameters = entry.object("parameters")
    return Tool(
        name=flat_name(namespace, tool_name(entry)),
        description=entry.text("description") or "",
        parameters=forwarded_schema(parameters) if parameters else {},
        strict=entry.flag("strict"),
    )


def _parse_search(entry: Fields) -> Tool:
    parameters = entry.object("parameters")
    return Tool(
        name=TOOL_SEARCH,
        description=entry.text("description") or "",
        parameters=forwarded_schema(parameters) if parameters else {},
    )


def _parse_custom(entry: Fields, namespace: str | None) -> Tool:
    """Return a custom tool as a function with one text argument."""
    description = [
        entry.text("description") or "",
        f"Give the whole text as the argument `{CUSTOM_INPUT}`.",
    ]
    form = entry.object("format")
    if form is not None and (grammar := form.text("definition")):
        description.append(f"The text follows this grammar ({form.text('syntax')}):\n{grammar}")
    return Tool(
        name=flat_name(namespace, tool_name(entry)),
        description="\n\n".join(part for part in description if part),
        parameters={
            "type": "object",
            "properties": {CUSTOM_INPUT: {"type": "string"}},
            "required": [CUSTOM_INPUT],
            "additionalProperties": False,
        },
    )


def parse_tool_choice(body: Fields, tools: tuple[Tool, ...]) -> ToolSelection:
    """Return the tools that may be called, and the requested choice among them.

    Raises:
        APIError: `tool_choice` is malformed, or names a tool that is not offered or supported.
    """
    choice = body.get("tool_choice")
    if choice is None:
        return tools, None
    if isinstance(choice, str):
        if choice == "required" and not tools and _offered_server_tools(body):
            return tools, None
        return tools, tool_choice_mode(body, tools)
    if not isinstance(choice, dict):
        raise invalid_type("tool_choice", "a string or an object", choice)
    picked = body.need_object("tool_choice")
    picked.need("type")
    match picked.text("type"):
        case "function" | "custom":
            return tools, _offered_name(picked, tools)
        case "allowed_tools":
            return _parse_allowed_tools(picked, tools, _offered_server_tools(body))
        case kind if any(w.tool == server_tool_name(kind) for w in _offered_server_tools(body)):
            return tools, "auto" if tools else None
        case kind:
            reason = f"tools of type '{kind}' are not supported."
            raise unsupported_parameter(picked.path("type"), reason)


def parse_server_tools(body: Fields) -> tuple[RequestedTool, ...]:
    """Return the server tools that the client requests and its `tool_choice` allows.

    Raises:
        APIError: a tool or `tool_choice` is malformed.
    """
    requested_tools = _offered_server_tools(body)
    choice = body.get("tool_choice")
    if not requested_tools or choice is None:
        return requested_tools
    if isinstance(choice, str):
        alone = choice == "required" and not parse_functions(body) and len(requested_tools) == 1
        return (
            () if choice == "none" else tuple(replace(w, is_forced=alone) for w in requested_tools)
        )
    picked = body.need_object("tool_choice")
    if picked.text("type") == "allowed_tools":
        return allowed_server_tools(picked, requested_tools)
    named = server_tool_name(picked.text("type"))
    return tuple(
        replace(requested, is_forced=requested.tool == named) for requested in requested_tools
    )


def _offered_server_tools(body: Fields) -> tuple[RequestedTool, ...]:
    return parse_requested_tools(body.objects("tools", MAX_ENTRIES) or (), opens_pages=True)


def _offered_name(picked: Fields, tools: tuple[Tool, ...]) -> str:
    namespace = picked.text(NAMESPACE)
    if not namespace:
        return offered_tool_name(picked, tools)
    name = flat_name(namespace, picked.need_text("name"))
    return offered_tool_name(Fields({"name": name}, picked.where), tools)


def _parse_allowed_tools(
    allowed: Fields, tools: tuple[Tool, ...], offered: tuple[RequestedTool, ...]
) -> ToolSelection:
    entries = allowed.objects("tools", MAX_ENTRIES) or ()
    names = {_offered_name(entry, tools) for entry in entries if entry.text("type") in _CALLED}
    allows_served = bool(allowed_server_tools(allowed, offered))
    return select_allowed_tools(allowed, names, tools, allows_served=allows_served)


def parse_text_format(body: Fields) -> ResponseFormat | None:
    """Return the format that `text.format` requests; None for free text.

    Raises:
        APIError: the format is malformed.
    """
    text = body.object("text")
    form = text.object("format") if text else None
    if text is not None:
        text.choice("verbosity", ("low", "medium", "high"))
    if form is None:
        return None
    form.need("type")
    match form.choice("type", ("text", "json_object", "json_schema")):
        case "json_object":
            return ResponseFormat(kind="json_object")
        case "json_schema":
            schema = checked_schema(form.need_object("schema"))
            return ResponseFormat(
                kind="json_schema", name=tool_name(form), schema=schema, strict=form.flag("strict")
            )
        case _:
            return None
