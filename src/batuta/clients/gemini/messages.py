"""Converts conversations to Gemini's form: the roles `user` and `model`, and parts.

The system prompt is separate from the contents.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from batuta.clients.data_url import split_data_url
from batuta.clients.decoding import parse_object
from batuta.clients.tool_turns import ANY_ID, fit_tool_turns, kept_signatures
from batuta.core import Audio, File, Image, Message, Part, Role, Text, ToolCall
from batuta.core.message import SYSTEM_ROLES

_SKIP_SIGNATURE = "skip_thought_signature_validator"
"""The signature that Google documents for calls whose thoughts are not available."""


def system_texts(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the texts of the system and developer messages."""
    return tuple(m.text for m in messages if m.role in SYSTEM_ROLES and m.text)


def gemini_contents(
    messages: Sequence[Message], *, needs_signature: bool, model: str = ""
) -> list[dict[str, Any]]:
    """Return the conversation without system messages, with adjacent messages of one role merged.

    If nothing of the conversation is left, the result is the user message `Continue.`.

    Args:
        messages: the conversation.
        needs_signature: whether the model refuses a function call without a thought signature;
            such models also use call ids.
        model: the called model; it receives the signatures of its own calls.

    Raises:
        BadRequestError: an image cannot be sent.
    """
    converted: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in fit_tool_turns(messages, ANY_ID):
        if message.role in SYSTEM_ROLES:
            continue
        role = "model" if message.role is Role.ASSISTANT else "user"
        names |= {part.id: part.name for part in message.parts if isinstance(part, ToolCall)}
        parts = [
            part for p in message.parts if (part := _content_part(p, names, signed=needs_signature))
        ]
        _sign_calls(parts, kept_signatures(message, model))
        if parts and converted and converted[-1]["role"] == role:
            converted[-1]["parts"] += parts
        elif parts:
            converted.append({"role": role, "parts": parts})
    return converted or [{"role": "user", "parts": [{"text": "Continue."}]}]


def _sign_calls(parts: list[dict[str, Any]], signatures: dict[int, str]) -> None:
    """Replace the placeholder signatures of calls by the signatures that the model sent.

    The placeholders stay if it sent none.
    """
    calls = [part for part in parts if "functionCall" in part] if signatures else []
    for number, call in enumerate(calls):
        # Gemini signs only the first of parallel calls.
        call.pop("thoughtSignature", None)
        if number in signatures:
            call["thoughtSignature"] = signatures[number]


def _content_part(part: Part, names: dict[str, str], *, signed: bool) -> dict[str, Any]:
    """Return a part as JSON; empty for an empty text."""
    if isinstance(part, Text):
        return {"text": part.text} if part.text else {}
    if isinstance(part, Image):
        return _image_part(part.url)
    if isinstance(part, File):
        return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
    if isinstance(part, Audio):
        return {"inlineData": {"mimeType": f"audio/{part.format}", "data": part.data}}
    if isinstance(part, ToolCall):
        called = {"name": part.name, "args": parse_object(part.arguments, "arguments")}
        call: dict[str, Any] = {"functionCall": ({"id": part.id} if signed else {}) | called}
        return call | ({"thoughtSignature": _SKIP_SIGNATURE} if signed else {})
    # The result must name the function; only the earlier call has its name.
    name = names.get(part.call_id, part.call_id)
    returned = {"name": name, "response": parse_object(part.content, "result")}
    return {"functionResponse": ({"id": part.call_id} if signed else {}) | returned}


def _image_part(url: str) -> dict[str, Any]:
    data = split_data_url(url)
    if data is not None:
        return {"inlineData": {"mimeType": data[0], "data": data[1]}}
    guessed = mimetypes.guess_type(urlsplit(url).path)[0] or "image/jpeg"
    return {"fileData": {"mimeType": guessed, "fileUri": url}}
