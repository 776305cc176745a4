"""Converts conversations to Anthropic's form: alternating roles and content blocks.

The system prompt is separate from the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batuta.clients.data_url import split_data_url
from batuta.clients.decoding import parse_object
from batuta.clients.tool_turns import CLAUDE_IDS, fit_tool_turns, is_round_trip
from batuta.core import Audio, File, Image, Message, Part, Role, Text, Thought, ToolCall
from batuta.core.message import SYSTEM_ROLES
from batuta.errors import BadRequestError

_DEFAULT_LIFETIME = "5m"
"""The API's default lifetime of a cached prefix."""


def system_texts(messages: Sequence[Message], *extra: str) -> str | list[dict[str, Any]]:
    """Return the system and developer messages that have text, followed by `extra`.

    The result is one string, or a list of blocks if a part is marked for caching.

    Raises:
        BadRequestError: a part cannot be sent as a block.
    """
    instructions = [
        message for message in messages if message.role in SYSTEM_ROLES and message.text
    ]
    if any(part.cache for message in instructions for part in message.parts):
        blocks = [
            block
            for m in instructions
            for part in m.parts
            if (block := _content_block(part)) is not None
        ]
        return [*blocks, *({"type": "text", "text": text} for text in extra)]
    return "\n\n".join((*(message.text for message in instructions), *extra))


def anthropic_messages(messages: Sequence[Message], thinker: str = "") -> list[dict[str, Any]]:
    """Return the conversation without system messages; `user` is first, and the roles alternate.

    Adjacent messages of one role are merged; empty messages are left out. If the first message is
    not the user's, or there is none, a user message `Continue.` is put first.

    Args:
        messages: the conversation.
        thinker: the model whose signed or encrypted thoughts are included; empty: none.

    Raises:
        BadRequestError: a part, such as audio or a malformed image, cannot be sent.
    """
    converted: list[dict[str, Any]] = []
    for message in fit_tool_turns(messages, CLAUDE_IDS):
        if message.role in SYSTEM_ROLES:
            continue
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        blocks = [
            _thinking_block(one)
            for one in message.thoughts
            if one.model == thinker and (one.signature or one.redacted) and not is_round_trip(one)
        ]
        blocks += [block for part in message.parts if (block := _content_block(part)) is not None]
        if not blocks:
            continue  # the API refuses an empty message
        if converted and converted[-1]["role"] == role:
            converted[-1]["content"] += blocks
        else:
            converted.append({"role": role, "content": blocks})
    if not converted or converted[0]["role"] != "user":
        converted.insert(0, {"role": "user", "content": [{"type": "text", "text": "Continue."}]})
    for each in converted:
        # Tool results must come first in their message.
        each["content"].sort(key=_is_not_tool_result)
    return converted


def _is_not_tool_result(block: dict[str, Any]) -> bool:
    return block["type"] != "tool_result"


def cache_control(mark: str) -> dict[str, Any]:
    """Return the API's `cache_control` object for a lifetime such as `5m` or `1h`."""
    return {"type": "ephemeral"} | ({"ttl": mark} if mark != _DEFAULT_LIFETIME else {})


def _thinking_block(thought: Thought) -> dict[str, Any]:
    if thought.redacted:
        return {"type": "redacted_thinking", "data": thought.redacted}
    return {"type": "thinking", "thinking": thought.text, "signature": thought.signature}


def _content_block(part: Part) -> dict[str, Any] | None:
    block = _unmarked_block(part)
    if block is not None and part.cache is not None:
        block["cache_control"] = cache_control(part.cache)
    return block


def _unmarked_block(part: Part) -> dict[str, Any] | None:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text} if part.text.strip() else None
    if isinstance(part, Image):
        return {"type": "image", "source": _image_source(part.url)}
    if isinstance(part, File):
        return _document_block(part)
    if isinstance(part, Audio):
        raise BadRequestError("Anthropic's models do not accept audio")
    if isinstance(part, ToolCall):
        return {
            "type": "tool_use",
            "id": part.id,
            "name": part.name,
            "input": parse_object(part.arguments, "arguments"),
        }
    return {
        "type": "tool_result",
        "tool_use_id": part.call_id,
        "content": part.content,
    }


def _document_block(part: File) -> dict[str, Any]:
    source = {"type": "base64", "media_type": part.media_type, "data": part.data}
    return {"type": "document", "source": source} | ({"title": part.name} if part.name else {})


def _image_source(url: str) -> dict[str, Any]:
    data = split_data_url(url)
    if data is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": data[0], "data": data[1]}
