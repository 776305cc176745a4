"""Runs programs that nobody has read, apart from the machine and from one another."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import final

import anyio

from batuta.sandbox.backends import Interpreter, SandboxBackend, build_launch, inspect_interpreter
from batuta.sandbox.process import LoadedProgram, open_program
from batuta.sandbox.program import Program, ProgramResult, ProgramTest, SandboxLimits
from batuta.sandbox.self_test import choose_backend

DEFAULT_LIMITS = SandboxLimits()
FIRST_UID, UID_COUNT = 20_000, 40_000
"""Users that root's sandboxes become: below 2^16, since a container may have no more."""


@final
class Sandbox:
    """A number of programs at a time, each in a sandbox of its own."""

    def __init__(
        self, backend: SandboxBackend, interpreter: Interpreter, uids: list[int | None]
    ) -> None:
        self.backend = backend
        self._interpreter = interpreter
        self._uids = uids
        """One for each free slot; None: stay who we are."""
        self._slots = anyio.Semaphore(len(uids))

    @staticmethod
    @asynccontextmanager
    async def open(
        backend: SandboxBackend | str = SandboxBackend.AUTO,
        *,
        slots: int = 2,
        python: str | Path = sys.executable,
    ) -> AsyncGenerator[Sandbox]:
        """A sandbox of that tier, which has passed its self-test.

        Args:
            backend: `none` alone runs programs without isolation.
            slots: programs at the same time.
            python: the interpreter that runs the programs, with the packages they may import.

        Raises:
            SandboxError: no tier that was asked for works here, with causes and a remedy.
        """
        if slots < 1:
            raise ValueError("a sandbox has at least one slot")
        interpreter = await inspect_interpreter(python)
        uids = _slot_uids(slots)
        yield Sandbox(
            await choose_backend(SandboxBackend(backend), interpreter, uids[0]), interpreter, uids
        )

    async def run(
        self,
        program: Program,
        tests: tuple[ProgramTest, ...],
        limits: SandboxLimits = DEFAULT_LIMITS,
    ) -> tuple[ProgramResult, ...]:
        """Run the tests in order and return their results.

        Raises:
            SandboxError: no sandbox could be started.
        """
        async with self.load(program, limits) as ready:
            return tuple([await ready.run(test) for test in tests])

    @asynccontextmanager
    async def load(
        self, program: Program, limits: SandboxLimits = DEFAULT_LIMITS
    ) -> AsyncGenerator[LoadedProgram]:
        """The program, ready for one test after another; waits for a free slot.

        When the block ends, cancelled or not, everything the program started has ended.
        """
        async with self._slots:
            uid = self._uids.pop()
            try:
                start = lambda: build_launch(self.backend, self._interpreter, limits, uid)  # noqa: E731
                async with open_program(program, limits, start) as ready:
                    yield ready
            finally:
                self._uids.append(uid)


def _slot_uids(slots: int) -> list[int | None]:
    """A user for each slot, if we are root; by chance, since others may do the same."""
    if os.getuid():
        return [None] * slots
    first = FIRST_UID + secrets.randbelow(UID_COUNT - slots)
    return list(range(first, first + slots))
