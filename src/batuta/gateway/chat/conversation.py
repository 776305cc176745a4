"""The `messages` of a chat body as our messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from batuta.core import Image, Message, Part, Role, Text, ToolCall, ToolResult
from batuta.gateway.errors import (
    invalid_type,
    invalid_value,
    missing_parameter,
    unsupported_parameter,
)
from batuta.gateway.http.fields import Fields
from batuta.gateway.serving.attachments import parse_audio, parse_file

MAX_MESSAGES = 500
_MAX_PARTS = 500
_MAX_CALLS = 128
_ROLES = tuple(role.value for role in Role)
_UNSUPPORTED_PARTS = {"video_url", "audio"}
"""Kinds of content that the API knows and no worker here is given."""


def parse_messages(body: Fields) -> tuple[Message, ...]:
    """The conversation.

    Raises:
        APIError: it is missing, empty or malformed.
    """
    body.need("messages")
    turns = body.objects("messages", MAX_MESSAGES) or []
    if not turns:
        raise invalid_value("messages", "it must have at least one message.")
    return tuple(_parse_message(turn) for turn in turns)


def _parse_message(turn: Fields) -> Message:
    turn.need("role")
    role = Role(turn.choice("role", _ROLES) or "")
    name = turn.text("name")
    if role is Role.ASSISTANT:
        return _parse_assistant(turn, name)
    if role is Role.TOOL:
        result = ToolResult(call_id=turn.need_text("tool_call_id"), content=_tool_text(turn))
        return Message(role=role, parts=(result,), name=name)
    turn.need("content")
    return Message(role=role, parts=_parse_parts(turn, images=role is Role.USER), name=name)


def _parse_assistant(turn: Fields, name: str | None) -> Message:
    if turn.get("function_call") is not None:
        raise unsupported_parameter(turn.path("function_call"), "use 'tool_calls'.")
    parts = [*_parse_parts(turn, images=False)] if turn.get("content") is not None else []
    refusal = turn.text("refusal")
    if refusal:
        parts.append(Text(refusal))
    calls = [_parse_tool_call(call) for call in turn.objects("tool_calls", _MAX_CALLS) or ()]
    reasoning = turn.text("reasoning_content") or turn.text("reasoning") or ""
    if not parts and not calls and not reasoning:
        raise missing_parameter(turn.path("content"))
    return Message(role=Role.ASSISTANT, parts=(*parts, *calls), name=name, reasoning=reasoning)


def _parse_tool_call(call: Fields) -> ToolCall:
    kind = call.text("type")
    if kind == "custom":
        raise unsupported_parameter(
            call.path("type"), "only calls of type 'function' are understood."
        )
    if kind not in {None, "function"}:
        raise invalid_value(call.path("type"), "it must be 'function'.")
    function = call.need_object("function")
    arguments = function.text("arguments")
    if arguments is None:
        raise missing_parameter(function.path("arguments"))
    return ToolCall(id=call.need_text("id"), name=function.need_text("name"), arguments=arguments)


def _tool_text(turn: Fields) -> str:
    """The content of a tool's turn: text only."""
    turn.need("content")
    parts = _parse_parts(turn, images=False)
    return "".join(part.text for part in parts if isinstance(part, Text))


def _parse_parts(turn: Fields, *, images: bool) -> tuple[Part, ...]:
    """The content, given as a string or as an array of parts."""
    content = turn.get("content")
    if isinstance(content, str):
        return (Text(content, cache=turn.cache_mark()),)
    if not isinstance(content, list):
        raise invalid_type(turn.path("content"), "a string or an array", content)
    parts = turn.objects("content", _MAX_PARTS) or []
    if not parts:
        raise invalid_value(turn.path("content"), "it must have at least one part.")
    return tuple(_parse_part(part, images=images) for part in parts)


def _parse_part(part: Fields, *, images: bool) -> Part:
    part.need("type")
    match part.text("type"):
        case "text":
            return Text(_required_text(part, "text"), cache=part.cache_mark())
        case "refusal":
            return Text(_required_text(part, "refusal"))
        case kind if kind in _ATTACHMENT_PARSERS and images:
            return _ATTACHMENT_PARSERS[kind](part)
        case "image_url":
            raise invalid_value(part.path("type"), "only a user's message may hold a picture.")
        case kind if kind in _ATTACHMENT_PARSERS:
            raise invalid_value(part.path("type"), "only a user's message may hold files.")
        case kind if kind in _UNSUPPORTED_PARTS:
            raise unsupported_parameter(
                part.path("type"), f"content of type '{kind}' is not passed on."
            )
        case _:
            wanted = "'text', 'image_url', 'file' or 'input_audio'"
            raise invalid_value(part.path("type"), f"it must be {wanted}.")


def _parse_file(part: Fields) -> Part:
    file = part.need_object("file")
    if file.get("file_id") is not None:
        reason = "no files are kept here; send the file's data."
        raise unsupported_parameter(file.path("file_id"), reason)
    read = parse_file(file, "file_data", file.text("filename") or "")
    return replace(read, cache=part.cache_mark())


def _required_text(part: Fields, name: str) -> str:
    """A string that must be there and may be empty."""
    part.need(name)
    return part.text(name) or ""


def _parse_image(part: Fields) -> Image:
    part.need("image_url")
    image = part.need_object("image_url")
    url = image.need_text("url")
    if not url.startswith(("https://", "data:image/")):
        raise invalid_value(image.path("url"), "it must begin with 'https://' or 'data:image/'.")
    detail = image.choice("detail", ("auto", "low", "high", "original"))
    return Image(url=url, detail=detail, cache=part.cache_mark())


_ATTACHMENT_PARSERS: Mapping[str | None, Callable[[Fields], Part]] = {
    "image_url": _parse_image,
    "file": _parse_file,
    "input_audio": parse_audio,
}
"""Parts that only a user's message may hold, by their types."""
