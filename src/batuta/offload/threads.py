"""Runs work on large conversations in a thread, so that it does not block the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from anyio.to_thread import run_sync

from batuta.core import Message, Text, ToolCall, ToolResult

_T = TypeVar("_T")
_LARGE_PARTS = 1_000
_LARGE_CHARACTERS = 300_000


async def read_off_loop(messages: Sequence[Message], read: Callable[[], _T]) -> _T:
    """Return `read()`; call it in a thread if the conversation is large."""
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
                characters += len(part.arguments)  # images, files and audio are not counted
        if parts > _LARGE_PARTS or characters > _LARGE_CHARACTERS:
            return True
    return False
