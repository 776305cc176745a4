"""Runs untrusted programs, isolated except in the tier `none`."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import final

import anyio

from batuta.errors import SandboxError
from batuta.sandbox.backends import (
    Interpreter,
    SandboxBackend,
    build_launch,
    inspect_interpreter,
    new_temporary_path,
)
from batuta.sandbox.inside.usage import removal_command
from batuta.sandbox.process import LoadedProgram, open_program
from batuta.sandbox.program import (
    CallTest,
    EndReason,
    Program,
    ProgramResult,
    ProgramTest,
    SandboxLimits,
)

SELF_TEST_LIMITS = SandboxLimits(seconds=120.0, processes=4)
"""Limits of the self-test; generous in time, so that a tier does not fail on a busy machine."""

BREAKOUT_PROGRAM = Program("""
import ctypes, os, socket, time

def unshare():
    if ctypes.CDLL(None).unshare(0x10000000):
        raise OSError

def trace():
    if ctypes.CDLL(None).ptrace(0, 0, 0, 0):
        raise OSError

def breaches(folder, secret):
    attempts = {
        "read a file of the machine": lambda: open(os.path.join(folder, secret)).read(),
        "write a file of the machine": lambda: open(os.path.join(folder, "new"), "w"),
        "open a connection": socket.socket,
        "become root": lambda: os.setuid(0),
        "make a namespace": unshare,
        "be traced": trace,
    }
    return [name for name, attempt in attempts.items() if succeeds(attempt)]

def succeeds(attempt):
    try:
        attempt()
    except OSError:
        return False
    return True

def multiply():
    for _ in range(100):
        if not os.fork():
            time.sleep(60)
""")
REMEDY = (
    "install bubblewrap 0.8 or later and let it make namespaces (in a container: --security-opt "
    "seccomp=unconfined), or use Linux 6.12 or later, or choose the tier `none` to run "
    "programs without isolation"
)


async def choose_backend(
    backend: SandboxBackend, interpreter: Interpreter, uid: int | None
) -> SandboxBackend:
    """Return the requested tier, or for `auto` the strongest tier that passes its self-test.

    The tier `none` has no self-test. `uid` is the user that a sandbox started by root changes to;
    None if this process is not root's.

    Raises:
        SandboxError: this is not Linux, or the requested tier does not work here; the message has
            the cause for each tier that was tried.
    """
    if sys.platform != "linux":
        raise SandboxError(f"programs are run on Linux only, and this is {sys.platform}")
    if backend is SandboxBackend.NONE:
        return backend
    causes: list[str] = []
    for candidate in (
        (SandboxBackend.BUBBLEWRAP, SandboxBackend.LANDLOCK)
        if backend is SandboxBackend.AUTO
        else (backend,)
    ):
        try:
            await _run_self_test(candidate, interpreter, uid)
        except SandboxError as error:
            causes.append(f"{candidate}: {error}")
        else:
            return candidate
    raise SandboxError(f"no sandbox works here ({'; '.join(causes)}): {REMEDY}")


@asynccontextmanager
async def _bait_file() -> AsyncGenerator[Path]:
    """Yield a file in a folder; all users may write both, so only the sandbox can protect them.

    A separate process removes the folder when the block ends, or when this process is killed.
    """
    folder = Path(new_temporary_path())
    shell, option, script, name = removal_command(str(folder))
    async with await anyio.open_process(
        [shell, option, f"read end; {script}", name],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as remover:
        assert remover.stdin is not None  # noqa: S101 - it is a pipe
        try:
            folder.mkdir()
            folder.chmod(0o777)
            secret = folder / "secret"
            secret.write_text("", encoding="utf-8")
            secret.chmod(0o666)
            yield secret
        finally:
            with anyio.CancelScope(shield=True):
                await remover.stdin.aclose()
                await remover.wait()


async def _run_self_test(
    backend: SandboxBackend, interpreter: Interpreter, uid: int | None
) -> None:
    """Run a program that tries to break out; raise SandboxError if it can, or if it fails."""
    start = lambda: build_launch(backend, interpreter, SELF_TEST_LIMITS, uid)  # noqa: E731
    async with (
        _bait_file() as secret,
        open_program(BREAKOUT_PROGRAM, SELF_TEST_LIMITS, start) as breakout,
    ):
        arguments = (json.dumps(str(secret.parent)), json.dumps(secret.name))
        breaches = await breakout.run(CallTest("breaches", arguments))
        bomb = await breakout.run(CallTest("multiply"))
    if breaches.end is not EndReason.RETURNED:
        raise SandboxError(
            f"its self-test did not end normally ({breaches.end}): {breaches.stderr}"
        )
    if isinstance(breaches.value, list) and breaches.value:
        raise SandboxError(f"in it, a program can {', '.join(map(str, breaches.value))}")
    if bomb.end not in {EndReason.RAISED, EndReason.PROCESSES}:
        raise SandboxError("in it, a program can start processes without limit")


DEFAULT_LIMITS = SandboxLimits()
FIRST_UID, UID_COUNT = 20_000, 40_000
"""Sandboxes started by root have one of UID_COUNT user ids from FIRST_UID on; all are below 2^16,
because a container may have no more."""


@final
class Sandbox:
    """Runs programs, each in its own sandbox, up to a fixed number concurrently."""

    def __init__(
        self, backend: SandboxBackend, interpreter: Interpreter, uids: list[int | None]
    ) -> None:
        self.backend = backend
        self._interpreter = interpreter
        self._uids = uids
        """A user id for each free slot; None keeps the current user."""
        self._slots = anyio.Semaphore(len(uids))

    @staticmethod
    @asynccontextmanager
    async def open(
        backend: SandboxBackend | str = SandboxBackend.AUTO,
        *,
        slots: int = 2,
        python: str | Path = sys.executable,
    ) -> AsyncGenerator[Sandbox]:
        """Yield a sandbox of that tier; every tier but `none` has passed its self-test.

        Args:
            backend: the tier; only `none` runs programs without isolation.
            slots: maximum number of programs that run concurrently.
            python: the interpreter, with the packages that programs may import.

        Raises:
            SandboxError: this is not Linux, the interpreter does not run or is too old, or the
                requested tier does not work here; the message has the causes.
            ValueError: `slots` is below 1, or there is no such tier.
        """
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
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
        """Wait for a free slot, and yield the program, ready for one test after another.

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
    """Return a user id for each slot; None for each if this process is not root's.

    The ids are consecutive and begin at random, so that two processes rarely have the same.
    """
    if os.getuid():
        return [None] * slots
    first = FIRST_UID + secrets.randbelow(UID_COUNT - slots)
    return list(range(first, first + slots))
