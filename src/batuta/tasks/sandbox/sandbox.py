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

from batuta.tasks.sandbox.interpreter import Interpreter, ask
from batuta.tasks.sandbox.loaded import Loaded, loaded
from batuta.tasks.sandbox.probe import choose
from batuta.tasks.sandbox.program import Limits, Outcome, Program, Test
from batuta.tasks.sandbox.tiers import Tier, launch

DEFAULT = Limits()
FIRST_UID, UIDS = 20_000, 40_000
"""Users that root's sandboxes become: below 2^16, since a container may have no more."""


@final
class Sandbox:
    """A number of programs at a time, each in a sandbox of its own."""

    def __init__(self, tier: Tier, interpreter: Interpreter, uids: list[int | None]) -> None:
        self.tier = tier
        self._interpreter = interpreter
        self._uids = uids
        """One for each free slot; None: stay who we are."""
        self._slots = anyio.Semaphore(len(uids))

    @staticmethod
    @asynccontextmanager
    async def open(
        tier: Tier | str = Tier.AUTO, *, slots: int = 2, python: str | Path = sys.executable
    ) -> AsyncGenerator[Sandbox]:
        """A sandbox of that tier, which has passed its self-test.

        Args:
            tier: `none` alone runs programs without isolation.
            slots: programs at the same time.
            python: the interpreter that runs the programs, with the packages they may import.

        Raises:
            SandboxError: no tier that was asked for works here, with causes and a remedy.
        """
        if slots < 1:
            raise ValueError("a sandbox has at least one slot")
        interpreter = await ask(python)
        uids = _uids(slots)
        yield Sandbox(await choose(Tier(tier), interpreter, uids[0]), interpreter, uids)

    async def run(
        self, program: Program, tests: tuple[Test, ...], limits: Limits = DEFAULT
    ) -> tuple[Outcome, ...]:
        """How each test ended, in order.

        Raises:
            SandboxError: no sandbox could be started.
        """
        async with self.load(program, limits) as ready:
            return tuple([await ready.run(test) for test in tests])

    @asynccontextmanager
    async def load(self, program: Program, limits: Limits = DEFAULT) -> AsyncGenerator[Loaded]:
        """The program, ready for one test after another; waits for a free slot.

        When the block ends, cancelled or not, everything the program started has ended.
        """
        async with self._slots:
            uid = self._uids.pop()
            try:
                start = lambda: launch(self.tier, self._interpreter, limits, uid)  # noqa: E731
                async with loaded(program, limits, start) as ready:
                    yield ready
            finally:
                self._uids.append(uid)


def _uids(slots: int) -> list[int | None]:
    """A user for each slot, if we are root; by chance, since others may do the same."""
    if os.getuid():
        return [None] * slots
    first = FIRST_UID + secrets.randbelow(UIDS - slots)
    return list(range(first, first + slots))
