"""A conversation as Gemini wants it: system apart, roles `user` and `model`, content in parts."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson

from batuta.clients.data_url import split_data_url
from batuta.core import Image, Message, Part, Role, Text, ToolCall

_SYSTEM = {Role.SYSTEM, Role.DEVELOPER}
_UNSIGNED = "skip_thought_signature_validator"
"""What Google documents for calls whose thoughts were not kept, such as another model's."""


def system_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """The texts of the system and developer messages."""
    return tuple(m.text for m in messages if m.role in _SYSTEM and m.text)


def turns_of(messages: Sequence[Message], *, signed: bool) -> list[dict[str, Any]]:
    """The other messages; neighbours of one role are merged.

    Args:
        messages: the conversation.
        signed: whether the model refuses a function call without a thought signature.

    Raises:
        BadRequest: a picture that cannot be sent.
    """
    turns: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        if message.role in _SYSTEM:
            continue
        role = "model" if message.role is Role.ASSISTANT else "user"
        names |= {part.id: part.name for part in message.parts if isinstance(part, ToolCall)}
        parts = [part for p in message.parts if (part := _part(p, names, signed=signed))]
        if parts and turns and turns[-1]["role"] == role:
            turns[-1]["parts"] += parts
        elif parts:
            turns.append({"role": role, "parts": parts})
    return turns or [{"role": "user", "parts": [{"text": "Continue."}]}]


def _part(part: Part, names: dict[str, str], *, signed: bool) -> dict[str, Any]:
    """One part; empty for an empty text."""
    if isinstance(part, Text):
        return {"text": part.text} if part.text else {}
    if isinstance(part, Image):
        return _picture(part.url)
    if isinstance(part, ToolCall):
        call: dict[str, Any] = {
            "functionCall": {"name": part.name, "args": _object(part.arguments, "arguments")}
        }
        return call | ({"thoughtSignature": _UNSIGNED} if signed else {})
    # The result names the function, which only the call before it knows.
    name = names.get(part.call_id, part.call_id)
    return {"functionResponse": {"name": name, "response": _object(part.content, "result")}}


def _picture(url: str) -> dict[str, Any]:
    data = split_data_url(url)
    if data is not None:
        return {"inlineData": {"mimeType": data[0], "data": data[1]}}
    guessed = mimetypes.guess_type(urlsplit(url).path)[0] or "image/jpeg"
    return {"fileData": {"mimeType": guessed, "fileUri": url}}


def _object(text: str, name: str) -> dict[str, Any]:
    """`text` as a JSON object; anything else is wrapped in one under `name`."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        value = text
    return value if isinstance(value, dict) else {name: value}  # pyright: ignore[reportUnknownVariableType]
