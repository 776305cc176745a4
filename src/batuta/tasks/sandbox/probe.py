"""Which tier works here: a program tries to break out of each; the first that holds is taken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from batuta.errors import SandboxError
from batuta.tasks.sandbox.inside.usage import removal
from batuta.tasks.sandbox.interpreter import Interpreter
from batuta.tasks.sandbox.loaded import loaded
from batuta.tasks.sandbox.program import Call, End, Limits, Program
from batuta.tasks.sandbox.tiers import Tier, fresh, launch

LIMITS = Limits(seconds=120.0, processes=4)
"""Much time: a machine that is busy is no reason to run programs less apart."""
BREAKOUT = Program("""
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


async def choose(tier: Tier, interpreter: Interpreter, uid: int | None) -> Tier:
    """That tier, or the strongest for `auto`, once it has passed its self-test; `none` has none.

    Raises:
        SandboxError: no tier that was asked for works here, with the cause for each.
    """
    if sys.platform != "linux":
        raise SandboxError(f"programs are run on Linux only, and this is {sys.platform}")
    if tier is Tier.NONE:
        return tier
    causes: list[str] = []
    for candidate in (Tier.BUBBLEWRAP, Tier.LANDLOCK) if tier is Tier.AUTO else (tier,):
        try:
            await _prove(candidate, interpreter, uid)
        except SandboxError as error:
            causes.append(f"{candidate}: {error}")
        else:
            return candidate
    raise SandboxError(f"no sandbox holds here ({'; '.join(causes)}): {REMEDY}")


@asynccontextmanager
async def _bait() -> AsyncGenerator[Path]:
    """A file in a folder, that all may read and write: only the sandbox stands in the way.

    A process of its own removes the folder when this block ends, or when we are killed in it.
    """
    folder = Path(fresh())
    shell, option, script, name = removal(str(folder))
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


async def _prove(tier: Tier, interpreter: Interpreter, uid: int | None) -> None:
    """Let the break-out be tried.

    Raises:
        SandboxError: the tier cannot be built, or it does not hold.
    """
    start = lambda: launch(tier, interpreter, LIMITS, uid)  # noqa: E731
    async with _bait() as secret, loaded(BREAKOUT, LIMITS, start) as breakout:
        breaches = await breakout.run(Call("breaches", (str(secret.parent), secret.name)))
        bomb = await breakout.run(Call("multiply"))
    if breaches.end is not End.RETURNED:
        raise SandboxError(f"its self-test did not end well ({breaches.end}): {breaches.stderr}")
    if isinstance(breaches.value, list) and breaches.value:
        raise SandboxError(f"in it, a program can {', '.join(map(str, breaches.value))}")
    if bomb.end not in {End.RAISED, End.PROCESSES}:
        raise SandboxError("in it, a program can start processes without limit")
