"""A conversation as Gemini wants it: system apart, roles `user` and `model`, content in parts."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson

from batuta.clients.data_url import split_data_url
from batuta.core import Audio, File, Image, Message, Part, Role, Text, ToolCall

_SYSTEM_ROLES = {Role.SYSTEM, Role.DEVELOPER}
_SKIP_SIGNATURE = "skip_thought_signature_validator"
"""What Google documents for calls whose thoughts were not kept, such as another model's."""


def system_texts(messages: Sequence[Message]) -> tuple[str, ...]:
    """The texts of the system and developer messages."""
    return tuple(m.text for m in messages if m.role in _SYSTEM_ROLES and m.text)


def gemini_contents(messages: Sequence[Message], *, needs_signature: bool) -> list[dict[str, Any]]:
    """The other messages; neighbours of one role are merged.

    Args:
        messages: the conversation.
        needs_signature: whether the model refuses a function call without a thought signature.

    Raises:
        BadRequestError: a picture that cannot be sent.
    """
    turns: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        if message.role in _SYSTEM_ROLES:
            continue
        role = "model" if message.role is Role.ASSISTANT else "user"
        names |= {part.id: part.name for part in message.parts if isinstance(part, ToolCall)}
        parts = [
            part for p in message.parts if (part := _content_part(p, names, signed=needs_signature))
        ]
        if parts and turns and turns[-1]["role"] == role:
            turns[-1]["parts"] += parts
        elif parts:
            turns.append({"role": role, "parts": parts})
    return turns or [{"role": "user", "parts": [{"text": "Continue."}]}]


def _content_part(part: Part, names: dict[str, str], *, signed: bool) -> dict[str, Any]:
    """One part; empty for an empty text."""
    if isinstance(part, Text):
        return {"text": part.text} if part.text else {}
    if isinstance(part, Image):
        return _image_part(part.url)
    if isinstance(part, File):
        return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
    if isinstance(part, Audio):
        return {"inlineData": {"mimeType": f"audio/{part.format}", "data": part.data}}
    if isinstance(part, ToolCall):
        call: dict[str, Any] = {
            "functionCall": {"name": part.name, "args": _parse_object(part.arguments, "arguments")}
        }
        return call | ({"thoughtSignature": _SKIP_SIGNATURE} if signed else {})
    # The result names the function, which only the call before it knows.
    name = names.get(part.call_id, part.call_id)
    return {"functionResponse": {"name": name, "response": _parse_object(part.content, "result")}}


def _image_part(url: str) -> dict[str, Any]:
    data = split_data_url(url)
    if data is not None:
        return {"inlineData": {"mimeType": data[0], "data": data[1]}}
    guessed = mimetypes.guess_type(urlsplit(url).path)[0] or "image/jpeg"
    return {"fileData": {"mimeType": guessed, "fileUri": url}}


def _parse_object(text: str, name: str) -> dict[str, Any]:
    """`text` as a JSON object; anything else is wrapped in one under `name`."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        value = text
    return value if isinstance(value, dict) else {name: value}  # pyright: ignore[reportUnknownVariableType]
