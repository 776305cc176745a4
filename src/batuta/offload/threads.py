"""Work on conversations that would hold the event loop: it is done in a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from anyio.to_thread import run_sync

from batuta.core import Message, Text, ToolCall, ToolResult

_T = TypeVar("_T")
_LARGE_PARTS = 1_000
_LARGE_CHARACTERS = 300_000


async def read_off_loop(messages: Sequence[Message], read: Callable[[], _T]) -> _T:
    """Return what is read of a conversation; one that is large is read in a thread."""
    return await run_sync(read) if _is_large(messages) else read()


def _is_large(messages: Sequence[Message]) -> bool:
    parts = characters = 0
    for message in messages:
        for part in message.parts:
            parts += 1
            if isinstance(part, Text):
                characters += len(part.text)
            elif isinstance(part, ToolResult):
                characters += len(part.content)
            elif isinstance(part, ToolCall):
                characters += len(part.arguments)  # pictures, files and recordings are not read
        if parts > _LARGE_PARTS or characters > _LARGE_CHARACTERS:
            return True
    return False
