"""Tasks that run beside a block of code."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def open_background_tasks() -> AsyncGenerator[TaskGroup]:
    """Open a task group whose tasks are cancelled at the end of the block.

    Unlike with the group's own `async with`, no ExceptionGroup wraps an error of the block.
    """
    group = await anyio.create_task_group().__aenter__()
    try:
        yield group
    finally:
        group.cancel_scope.cancel()
        await group.__aexit__(None, None, None)
