"""The conversation of a Messages body as our messages."""

from __future__ import annotations

import orjson

from batuta.core import Image, Message, Part, Role, Text, ToolCall, ToolResult
from batuta.gateway.refusal import missing, unsupported, wrong_type, wrong_value
from batuta.gateway.wire.fields import Fields

MAX_TURNS = 2000
_MAX_BLOCKS = 500
_ROLES = ("user", "assistant", "system")
_FOREIGN = ("server_tool_use", "redacted_thinking", "container_upload", "compaction", "fallback")
"""Blocks of tools that are not offered here, and thoughts that nobody else can read."""
_MEDIA = {"image/png", "image/jpeg", "image/gif", "image/webp"}
REASONING = "batuta-reasoning"
"""The signature of a worker's own reasoning; other thoughts are not given back to a worker."""
PROGRESS = "batuta-progress"


def parse_turns(body: Fields) -> tuple[Message, ...]:
    """The system prompt and the turns.

    Raises:
        Refusal: they are missing, empty or malformed.
    """
    body.need("messages")
    turns = body.objects("messages", MAX_TURNS) or []
    if not turns:
        raise wrong_value("messages", "it must have at least one message.")
    calls: set[str] = set()
    spoken = [message for turn in turns for message in _messages(turn, calls)]
    return (*_system(body), *spoken)


def _system(body: Fields) -> tuple[Message, ...]:
    if body.get("system") is None:
        return ()
    parts = tuple(_text(block) for block in _blocks(body, "system"))
    return (Message(Role.SYSTEM, parts),) if any(part.text for part in parts) else ()


def _messages(turn: Fields, calls: set[str]) -> list[Message]:
    """A turn as ours: the results of tools are turns of their own."""
    turn.need("role")
    role = Role(turn.choice("role", _ROLES) or "")
    turn.need("content")
    blocks = _blocks(turn, "content")
    if role is Role.ASSISTANT:
        return [_assistant(blocks, calls)]
    results: list[Message] = []
    parts: list[Part] = []
    for block in blocks:
        if block.text("type") == "tool_result":
            result, pictures = _result(block, calls)
            results.append(Message(Role.TOOL, (result,)))
            parts += pictures
        elif not _is_foreign(block):
            parts.append(_part(block))
    return [*results, Message(role, tuple(parts))] if parts or not results else results


def _assistant(blocks: list[Fields], calls: set[str]) -> Message:
    parts: list[Part] = []
    reasoning: list[str] = []
    for block in blocks:
        kind = block.text("type")
        if kind == "tool_use":
            call = _call(block)
            calls.add(call.id)
            parts.append(call)
        elif kind == "thinking":
            reasoning += _thoughts(block)
        elif not _is_foreign(block):
            parts.append(_text(block))
    return Message(Role.ASSISTANT, tuple(parts), reasoning="".join(reasoning))


def _blocks(holder: Fields, name: str) -> list[Fields]:
    """The content, given as a string or as an array of blocks."""
    content = holder.get(name)
    if isinstance(content, str):
        return [Fields({"type": "text", "text": content}, holder.path(name))]
    if not isinstance(content, list):
        raise wrong_type(holder.path(name), "a string or an array", content)
    blocks = holder.objects(name, _MAX_BLOCKS) or []
    for block in blocks:
        block.need("type")
        block.text("type")
    return blocks


def _is_foreign(block: Fields) -> bool:
    kind = block.text("type") or ""
    return kind in _FOREIGN or kind.endswith("_tool_result")


def _part(block: Fields) -> Part:
    match block.text("type"):
        case "image":
            return _image(block)
        case "document":
            reason = "documents are not passed on; send their text."
            raise unsupported(block.path("type"), reason)
        case _:
            return _text(block)


def _text(block: Fields) -> Text:
    kind = block.text("type")
    if kind != "text":
        raise wrong_value(block.path("type"), f"a block of type '{kind}' cannot stand here.")
    block.need("text")
    return Text(block.text("text") or "")


def _image(block: Fields) -> Image:
    source = block.need_object("source")
    source.need("type")
    match source.choice("type", ("base64", "url", "file")):
        case "base64":
            media = source.need_text("media_type")
            if media not in _MEDIA:
                reason = f"it must be one of {', '.join(sorted(_MEDIA))}."
                raise wrong_value(source.path("media_type"), reason)
            return Image(f"data:{media};base64,{source.need_text('data')}")
        case "url":
            url = source.need_text("url")
            if not url.startswith("https://"):
                raise wrong_value(source.path("url"), "it must begin with 'https://'.")
            return Image(url)
        case _:
            raise unsupported(source.path("type"), "there are no files here; send the picture.")


def _call(block: Fields) -> ToolCall:
    given = block.need_object("input")
    arguments = orjson.dumps(dict(given.raw), default=str).decode()
    return ToolCall(block.need_text("id"), block.need_text("name"), arguments)


def _result(block: Fields, calls: set[str]) -> tuple[ToolResult, list[Part]]:
    """What a tool returned, and its pictures, which only a user's turn can hold."""
    call_id = block.need_text("tool_use_id")
    if call_id not in calls:
        raise wrong_value(block.path("tool_use_id"), f"no call '{call_id}' comes before it.")
    failed = block.flag("is_error")
    parts = (
        [] if block.get("content") is None else [_returned(b) for b in _blocks(block, "content")]
    )
    text = "".join(part.text for part in parts if isinstance(part, Text))
    pictures: list[Part] = [part for part in parts if isinstance(part, Image)]
    if pictures:
        pictures.insert(0, Text(f"What the tool call {call_id} returned:"))
    return ToolResult(call_id, f"Error: {text}" if failed else text), pictures


def _returned(block: Fields) -> Text | Image:
    return _image(block) if block.text("type") == "image" else _text(block)


def _thoughts(block: Fields) -> list[str]:
    """The reasoning, if it is a worker's own."""
    if block.get("thinking") is None:
        raise missing(block.path("thinking"))
    text = block.text("thinking") or ""
    return [text] if block.text("signature") == REASONING else []
