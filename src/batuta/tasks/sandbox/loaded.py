"""A program in a sandbox of its own."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import final

from batuta.tasks.sandbox.cell import Cell, opened
from batuta.tasks.sandbox.exchange import order, preload, settle, trailing
from batuta.tasks.sandbox.program import End, Limits, Outcome, Program, Test
from batuta.tasks.sandbox.tiers import Launch


@final
class Loaded:
    """A program that is ready for one test after another; each runs it in a fresh process."""

    def __init__(self, program: Program, limits: Limits, launch: Callable[[], Launch]) -> None:
        self._program = program
        self._limits = limits
        self._launch = launch
        self._stack = AsyncExitStack()
        self._cell: Cell | None = None

    async def run(self, test: Test) -> Outcome:
        """How the test ended; the next one begins with nothing left of it.

        Raises:
            SandboxError: no sandbox could be started.
        """
        cell, token = await self._ready(test), secrets.token_hex(16)
        told, after = order(self._program, test, token), trailing(test)
        reply = await cell.ask(told, self._limits.seconds, after)
        return Outcome(End.LOST) if reply is None else settle(test, reply, token)

    async def _ready(self, test: Test) -> Cell:
        """The present cell, or a new one if a test left traces in it that could not be removed."""
        if self._cell is None or self._cell.spent:
            await self.close()
            cell = opened(self._launch(), preload(self._program, test))
            self._cell = await self._stack.enter_async_context(cell)
        return self._cell

    async def close(self) -> None:
        """End what runs and leave nothing."""
        await self._stack.aclose()


@asynccontextmanager
async def loaded(
    program: Program, limits: Limits, launch: Callable[[], Launch]
) -> AsyncGenerator[Loaded]:
    """The program in a sandbox that is started as `launch` says when the first test comes."""
    ready = Loaded(program, limits, launch)
    try:
        yield ready
    finally:
        await ready.close()
