"""Conversion of a library caller's input to a `Question`. Pure, except for reading image files."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from batuta.core import Image, Message, Part, Question, Role, Text

ImageLike = str | Path | bytes
"""An image: the path of a file, its bytes, or its `https:`, `http:` or `data:` URL."""
QuestionLike = str | Question | Message | Sequence[Message | Mapping[str, Any]]
"""Text, a question, a message, or a conversation.

A mapping in a conversation is a message of OpenAI's Chat Completions API: its `role` is system,
developer, user or assistant, its `content` a string or a list of parts (text, image_url). Other
fields are ignored.
"""
_URL_PREFIXES = ("https://", "http://", "data:")
_ROLES = ("system", "developer", "user", "assistant")
_MAGIC = {b"\x89PNG": "image/png", b"\xff\xd8": "image/jpeg", b"GIF8": "image/gif"}


def parse_question(given: QuestionLike, images: Sequence[ImageLike] = ()) -> Question:
    """Return the input as a `Question`, with the images added to its last message.

    Raises:
        TypeError: the input, an element of a conversation, or an image has the wrong type.
        ValueError: the input is empty, or one of its messages is malformed.
        OSError: an image file cannot be read.
    """
    question = given if isinstance(given, Question) else Question(messages=_parse_messages(given))
    if not images:
        return question
    *before, last = question.messages
    extended = replace(last, parts=(*last.parts, *map(load_image, images)))
    return replace(question, messages=(*before, extended))


def load_image(given: ImageLike) -> Image:
    """Return the image with its URL; the content of a file, or bytes, become a `data:` URL.

    PNG, JPEG and GIF are recognised by their first bytes, other types by the file's name; an image
    of unknown type is taken for WebP.

    Raises:
        OSError: the file cannot be read.
        TypeError: `given` is no string, path or bytes.
    """
    if isinstance(given, str) and given.startswith(_URL_PREFIXES):
        return Image(url=given)
    data = given if isinstance(given, bytes) else Path(given).read_bytes()
    kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)
    if kind is None and not isinstance(given, bytes):
        kind = mimetypes.guess_type(str(given))[0]
    return Image(url=f"data:{kind or 'image/webp'};base64,{base64.b64encode(data).decode()}")


def _parse_messages(given: Any) -> tuple[Message, ...]:
    if isinstance(given, str):
        if not given.strip():
            raise ValueError("the question is empty")
        return (Message(role=Role.USER, parts=(Text(given),)),)
    if isinstance(given, Message):
        return (given,)
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise TypeError(
            "a question must be a string, a `Question`, a `Message` or a list of messages, "
            f"not {given!r:.60}"
        )
    if not given:
        raise ValueError("a conversation must have at least one message")
    messages = cast("Sequence[Any]", given)
    return tuple(m if isinstance(m, Message) else _parse_message(m) for m in messages)


def _parse_message(given: Any) -> Message:
    if not isinstance(given, Mapping):
        raise TypeError(
            f"a message must be a `Message`, or a mapping with role and content, not {given!r:.60}"
        )
    fields = cast("Mapping[str, Any]", given)
    role, content = fields.get("role"), fields.get("content")
    if role not in _ROLES:
        raise ValueError(
            f"a message's role must be system, developer, user or assistant, not {role!r}"
        )
    if isinstance(content, str):
        return Message(role=Role(role), parts=(Text(content),))
    if not isinstance(content, list) or not content:
        raise ValueError("a message's content must be a string, or a list with at least one part")
    return Message(role=Role(role), parts=tuple(map(_parse_part, cast("list[Any]", content))))


def _parse_part(given: Any) -> Part:
    match given:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return Image(url=url)
        case _:
            raise ValueError(
                'a part must be {"type": "text", "text": "…"} or '
                f'{{"type": "image_url", "image_url": {{"url": "…"}}}}, not {given!r:.80}'
            )
