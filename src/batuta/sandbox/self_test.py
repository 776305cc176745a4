"""Which tier works here: a program tries to break out of each; the first that holds is taken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from batuta.errors import SandboxError
from batuta.sandbox.backends import Interpreter, SandboxBackend, build_launch, new_temporary_path
from batuta.sandbox.inside.usage import removal_command
from batuta.sandbox.process import open_program
from batuta.sandbox.program import CallTest, EndReason, Program, SandboxLimits

LIMITS = SandboxLimits(seconds=120.0, processes=4)
"""Much time: a machine that is busy is no reason to run programs less apart."""
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
    "seccomp=unconfined), or use Linux 6.12 or later, or ask for the tier `none` to run "
    "programs without isolation"
)


async def choose_backend(
    backend: SandboxBackend, interpreter: Interpreter, uid: int | None
) -> SandboxBackend:
    """Return that tier, or the strongest for `auto`, once it has passed its self-test.

    Raises:
        SandboxError: no tier that was asked for works here, with the cause for each.
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
    raise SandboxError(f"no sandbox holds here ({'; '.join(causes)}): {REMEDY}")


@asynccontextmanager
async def _bait_file() -> AsyncGenerator[Path]:
    """A file in a folder, that all may read and write: only the sandbox stands in the way.

    A process of its own removes the folder when this block ends, or when we are killed in it.
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
    """Let the break-out be tried.

    Raises:
        SandboxError: the tier cannot be built, or it does not hold.
    """
    start = lambda: build_launch(backend, interpreter, LIMITS, uid)  # noqa: E731
    async with _bait_file() as secret, open_program(BREAKOUT_PROGRAM, LIMITS, start) as breakout:
        breaches = await breakout.run(CallTest("breaches", (str(secret.parent), secret.name)))
        bomb = await breakout.run(CallTest("multiply"))
    if breaches.end is not EndReason.RETURNED:
        raise SandboxError(f"its self-test did not end well ({breaches.end}): {breaches.stderr}")
    if isinstance(breaches.value, list) and breaches.value:
        raise SandboxError(f"in it, a program can {', '.join(map(str, breaches.value))}")
    if bomb.end not in {EndReason.RAISED, EndReason.PROCESSES}:
        raise SandboxError("in it, a program can start processes without limit")
