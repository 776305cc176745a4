"""A conversation as Anthropic wants it: system apart, turns in alternation, content in blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from batuta.clients.data_url import split_data_url
from batuta.core import Image, Message, Part, Role, Text, ToolCall

_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")
_SYSTEM = {Role.SYSTEM, Role.DEVELOPER}


def system_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """The texts of the system and developer messages."""
    return tuple(m.text for m in messages if m.role in _SYSTEM and m.text)


def turns_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The other messages; neighbours of one role are merged and a user speaks first.

    Raises:
        BadRequest: a picture that cannot be sent.
    """
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role in _SYSTEM:
            continue
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        blocks = [block for part in message.parts if (block := _block(part)) is not None]
        if not blocks:
            continue  # the API refuses an empty turn
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    if not turns or turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": "Continue."}]})
    for turn in turns:
        # Tool results must open the turn that carries them.
        turn["content"].sort(key=_not_a_result)
    return turns


def _not_a_result(block: dict[str, Any]) -> bool:
    return block["type"] != "tool_result"


def _block(part: Part) -> dict[str, Any] | None:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text} if part.text.strip() else None
    if isinstance(part, Image):
        return {"type": "image", "source": _source(part.url)}
    if isinstance(part, ToolCall):
        return {
            "type": "tool_use",
            "id": _safe(part.id),
            "name": part.name,
            "input": _input(part.arguments),
        }
    return {"type": "tool_result", "tool_use_id": _safe(part.call_id), "content": part.content}


def _source(url: str) -> dict[str, Any]:
    data = split_data_url(url)
    if data is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": data[0], "data": data[1]}


def _safe(call_id: str) -> str:
    """Ids of other providers may hold what this one refuses."""
    return _NOT_IN_ID.sub("_", call_id) or "_"


def _input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; a model's broken JSON is kept as text."""
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}  # pyright: ignore[reportUnknownVariableType]
