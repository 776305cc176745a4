"""A program in a sandbox of its own."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import final

from batuta.sandbox.backends import SupervisorLaunch
from batuta.sandbox.process import SandboxProcess, open_sandbox_process
from batuta.sandbox.program import EndReason, Program, ProgramResult, ProgramTest, SandboxLimits
from batuta.sandbox.protocol import build_order, interpret_reply, modules_to_preload, trailing_bytes


@final
class LoadedProgram:
    """A program that is ready for one test after another; each runs it in a fresh process."""

    def __init__(
        self, program: Program, limits: SandboxLimits, build_launch: Callable[[], SupervisorLaunch]
    ) -> None:
        self._program = program
        self._limits = limits
        self._build_launch = build_launch
        self._stack = AsyncExitStack()
        self._process: SandboxProcess | None = None

    async def run(self, test: ProgramTest) -> ProgramResult:
        """Run one test; the next one begins with nothing left of it.

        Raises:
            SandboxError: no sandbox could be started.
        """
        cell, token = await self._ready_process(test), secrets.token_hex(16)
        told, after = build_order(self._program, test, token), trailing_bytes(test)
        reply = await cell.send_order(told, self._limits.seconds, after)
        return (
            ProgramResult(end=EndReason.LOST)
            if reply is None
            else interpret_reply(test, reply, token)
        )

    async def _ready_process(self, test: ProgramTest) -> SandboxProcess:
        """The present cell, or a new one if a test left traces in it that could not be removed."""
        if self._process is None or self._process.is_used_up:
            await self.close()
            cell = open_sandbox_process(
                self._build_launch(), modules_to_preload(self._program, test)
            )
            self._process = await self._stack.enter_async_context(cell)
        return self._process

    async def close(self) -> None:
        """End what runs and leave nothing."""
        await self._stack.aclose()


@asynccontextmanager
async def open_program(
    program: Program, limits: SandboxLimits, build_launch: Callable[[], SupervisorLaunch]
) -> AsyncGenerator[LoadedProgram]:
    """The program in a sandbox that is started as `launch` says when the first test comes."""
    ready = LoadedProgram(program, limits, build_launch)
    try:
        yield ready
    finally:
        await ready.close()
