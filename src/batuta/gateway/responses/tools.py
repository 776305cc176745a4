"""`tools`, `tool_choice` and `text.format` of a Responses body."""

from __future__ import annotations

from batuta.core import ResponseFormat, Tool
from batuta.gateway.errors import invalid_type, invalid_value, unsupported_parameter
from batuta.gateway.http.body import Fields
from batuta.gateway.serving.tools import (
    ToolSelection,
    checked_schema,
    forwarded_schema,
    offered_tool_name,
    select_allowed_tools,
    tool_choice_mode,
    tool_name,
)

MAX_TOOLS = 512
"""More than chat's: what is dropped counts too, and coding agents send much of that."""
MAX_FUNCTIONS = 128


def parse_functions(body: Fields) -> tuple[Tool, ...]:
    """The functions that the client offers; tools of other types are left out.

    Raises:
        APIError: they are malformed, or two have one name.
    """
    tools: list[Tool] = []
    for entry in body.objects("tools", MAX_TOOLS) or ():
        entry.need("type")
        if entry.text("type") == "function":
            tools.append(_parse_function(entry))
    if len(tools) > MAX_FUNCTIONS:
        reason = f"it has {len(tools)} functions and at most {MAX_FUNCTIONS} are allowed."
        raise invalid_value("tools", reason)
    if len({tool.name for tool in tools}) != len(tools):
        raise invalid_value("tools", "two tools have the same name.")
    return tuple(tools)


def dropped_tool_types(body: Fields) -> tuple[str, ...]:
    """The types of the tools that `parse_functions` left out, each once."""
    kinds = [entry.text("type") or "" for entry in body.objects("tools", MAX_TOOLS) or ()]
    return tuple(dict.fromkeys(f"tools.{kind}" for kind in kinds if kind != "function"))


def _parse_function(entry: Fields) -> Tool:
    parameters = entry.object("parameters")
    return Tool(
        name=tool_name(entry),
        description=entry.text("description") or "",
        parameters=forwarded_schema(parameters) if parameters else {},
        strict=entry.flag("strict"),
    )


def parse_tool_choice(body: Fields, tools: tuple[Tool, ...]) -> ToolSelection:
    """The tools that may be called, and which of them is wanted.

    Raises:
        APIError: it is malformed, or asks for a tool that is not offered.
    """
    choice = body.get("tool_choice")
    if choice is None:
        return tools, None
    if isinstance(choice, str):
        return tools, tool_choice_mode(body, tools)
    if not isinstance(choice, dict):
        raise invalid_type("tool_choice", "a string or an object", choice)
    picked = body.need_object("tool_choice")
    picked.need("type")
    match picked.text("type"):
        case "function":
            return tools, offered_tool_name(picked, tools)
        case "allowed_tools":
            return _parse_allowed_tools(picked, tools)
        case kind:
            reason = f"a tool of type '{kind}' is not supported here."
            raise unsupported_parameter(picked.path("type"), reason)


def _parse_allowed_tools(allowed: Fields, tools: tuple[Tool, ...]) -> ToolSelection:
    entries = allowed.objects("tools", MAX_TOOLS) or ()
    names = {
        offered_tool_name(entry, tools) for entry in entries if entry.text("type") == "function"
    }
    return select_allowed_tools(allowed, names, tools)


def parse_text_format(body: Fields) -> ResponseFormat | None:
    """The form that `text.format` asks for; None: any text.

    Raises:
        APIError: it is malformed.
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
