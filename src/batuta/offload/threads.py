"""Work on conversations that would hold the event loop: it is done in a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from anyio.to_thread import run_sync

from batuta.core import Message, Part, Text, ToolCall, ToolResult

_T = TypeVar("_T")
_LARGE_PARTS = 1_000
_LARGE_CHARACTERS = 300_000


async def read_off_loop(messages: Sequence[Message], read: Callable[[], _T]) -> _T:
    """Return what is read of a conversation; one that is large is read in a thread."""
    return await run_sync(read) if _is_large(messages) else read()


def _is_large(messages: Sequence[Message]) -> bool:
    if sum(len(message.parts) for message in messages) > _LARGE_PARTS:
        return True
    return (
        sum(_count_characters(part) for message in messages for part in message.parts)
        > _LARGE_CHARACTERS
    )


def _count_characters(part: Part) -> int:
    match part:
        case Text():
            return len(part.text)
        case ToolCall():
            return len(part.arguments)
        case ToolResult():
            return len(part.content)
        case _:  # pictures, files and recordings are not read
            return 0
