"""One supervisor, from the outside, and the program that it has loaded."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from batuta.errors import SandboxError
from batuta.sandbox.backends import SupervisorLaunch
from batuta.sandbox.inside.usage import descendant_processes, removal_command
from batuta.sandbox.program import (
    JSON,
    AssertionTest,
    CallTest,
    EndReason,
    Program,
    ProgramResult,
    ProgramTest,
    SandboxLimits,
    ScriptTest,
    parse_value,
)

MAX_STDERR = 4000
PRELOADABLE_MODULES = (
    "numpy", "pandas", "matplotlib.pyplot", "sortedcontainers", "typing", "collections", "heapq",
    "bisect", "itertools", "functools", "re", "math", "random", "string", "datetime",
    "dataclasses", "decimal", "fractions", "statistics", "unittest", "threading",
)  # fmt: skip
"""Modules that the supervisor imports before its children do, where a program mentions them."""


def modules_to_preload(program: Program, test: ProgramTest) -> list[str]:
    """Return the modules worth importing once a program instead of once a test."""
    tested = f"{test.preamble}\n{test.code}" if isinstance(test, AssertionTest) else ""
    words = set(re.findall(r"\w+", f"{program.source}\n{tested}"))
    return [name for name in PRELOADABLE_MODULES if name.rpartition(".")[2] in words]


def build_order(program: Program, test: ProgramTest, token: str) -> dict[str, Any]:
    """Return the order to run a test; `token` is what a check proves its end with."""
    if isinstance(test, ScriptTest):
        return {"kind": "script", "source": program.source, "stdin": test.stdin}
    if isinstance(test, CallTest):
        call = {"kind": "call", "entry": test.entry, "arguments": list(test.arguments)}
        return call | {"source": program.source}
    if test.separate:
        order = {"preamble": test.preamble, "entry": test.entry, "size": len(trailing_bytes(test))}
        return {"kind": "check", "source": program.source} | order
    source = f"{test.preamble}\n{program.source}"
    return {"kind": "together", "source": source, "code": test.code, "token": token}


def trailing_bytes(test: ProgramTest) -> bytes:
    """Return what follows an order and is not for the program: the text of tests that run apart."""
    if isinstance(test, AssertionTest) and test.separate:
        return test.code.encode("utf-8", "surrogatepass")
    return b""


def interpret_reply(test: ProgramTest, reply: dict[str, Any], token: str) -> ProgramResult:
    """Interpret a supervisor's reply.

    The supervisor is trusted; what it passes on from the program (output and report) is not.
    """
    report = _parse_report(reply["result"])
    end = (
        EndReason(reply["ended"])
        if reply["ended"]
        else _end_reason(test, reply["status"], report, token)
    )
    return ProgramResult(
        end=end,
        stdout=reply["stdout"],
        stderr=reply["stderr"][-MAX_STDERR:],
        value=report.get("value") if end is EndReason.RETURNED else None,
        status=None if reply["ended"] else reply["status"],
        seconds=reply["seconds"],
    )


def _parse_report(text: str) -> dict[str, JSON]:
    """Parse the report of the program's process about its end.

    An empty one if it makes no sense.
    """
    try:
        report = parse_value(text)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def _end_reason(
    test: ProgramTest, status: int | None, report: dict[str, JSON], token: str
) -> EndReason:
    if status is None:
        return EndReason.LOST
    if status < 0:
        return EndReason.KILLED
    reason = str(report.get("end"))
    if reason in {EndReason.RAISED, EndReason.MEMORY}:
        return EndReason(reason)
    if isinstance(test, ScriptTest):
        return EndReason.EXITED if status else EndReason.RETURNED
    together = isinstance(test, AssertionTest) and not test.separate
    proved = reason == EndReason.RETURNED and (not together or report.get("token") == token)
    return EndReason.RETURNED if proved else EndReason.EXITED


REPLY_TIMEOUT = 60.0
"""Seconds that a supervisor may take beyond what it was asked to do, on a machine that is busy."""


@final
class SandboxProcess:
    """A supervisor that waits for tests."""

    def __init__(self, process: Process, exit_timeout: float) -> None:
        assert process.stdin is not None  # noqa: S101 - all three are pipes
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        self.is_used_up = False
        """Whether it will run no more tests."""
        self._exit_timeout = exit_timeout
        self._process = process
        self._orders = process.stdin
        self._replies = BufferedByteReceiveStream(process.stdout)
        self._stderr = process.stderr

    async def has_started(self) -> bool:
        """Return True if it runs; an order to a dead one would break the pipe."""
        return await self._exchange(b"", 0) is not None

    async def send_order(
        self, order: dict[str, Any], seconds: float, after: bytes = b""
    ) -> dict[str, Any] | None:
        """Return its reply to an order and to what follows it.

        None if it is gone, or says nothing for that long and more.
        """
        data = json.dumps(order).encode()
        self.is_used_up = True  # who stops listening leaves a reply behind that fits no other order
        reply = await self._exchange(struct.pack(">I", len(data)) + data + after, seconds)
        self.is_used_up = reply is None or reply.get("spent", False)
        return reply

    async def _exchange(self, data: bytes, seconds: float) -> dict[str, Any] | None:
        try:
            with anyio.fail_after(seconds + REPLY_TIMEOUT):
                await self._orders.send(data)
                (size,) = struct.unpack(">I", await self._replies.receive_exactly(4))
                return json.loads(await self._replies.receive_exactly(size))
        except (OSError, anyio.BrokenResourceError, anyio.IncompleteRead, TimeoutError):
            return None

    async def last_error_line(self) -> str:
        """Return the last line that it, or what should have started it, wrote to standard error."""
        lines: list[str] = []
        with anyio.move_on_after(1):
            async for data in self._stderr:
                lines += data.decode(errors="replace").splitlines()
        return lines[-1] if lines else "it ended without a word"

    async def close(self) -> None:
        """End it and everything in it."""
        with anyio.CancelScope(shield=True):
            await self._orders.aclose()
            await self._wait_for_exit()
            # First what is below: a bwrap ends by itself when its namespace has ended.
            for doomed in (descendant_processes(self._process.pid), [self._process.pid]):
                if self._process.returncode is None:
                    _kill_processes(doomed)
                    await self._wait_for_exit()
            await self._process.aclose()

    async def _wait_for_exit(self) -> None:
        """Wait for its end, as long as it may take."""
        with anyio.move_on_after(self._exit_timeout):
            await self._process.wait()


@asynccontextmanager
async def open_sandbox_process(
    launch: SupervisorLaunch, preload: list[str]
) -> AsyncGenerator[SandboxProcess]:
    """Yield a cell that is ready for tests and has imported `preload`.

    At the end, nothing is left of it.

    Raises:
        SandboxError: it could not be built; the cause is in the sentence.
    """
    try:
        cell = SandboxProcess(await _start_process(launch), launch.exit_timeout)
        try:
            first = launch.first_order | {"preload": preload}
            if not await cell.has_started() or await cell.send_order(first, 0) is None:
                raise SandboxError(await cell.last_error_line())
            yield cell
        finally:
            await cell.close()
    finally:
        if launch.folder is not None and os.path.exists(launch.folder):  # noqa: PTH110
            with anyio.CancelScope(shield=True):  # its supervisor was killed
                await anyio.run_process(removal_command(launch.folder), check=False)


def _kill_processes(processes: list[int]) -> None:
    """Kill them, not by `Process.kill`, which would reap them behind asyncio's back."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


async def _start_process(launch: SupervisorLaunch) -> Process:
    try:
        with anyio.CancelScope(shield=True):  # a bwrap that is killed at its start leaves a child
            process = await anyio.open_process(
                launch.command,
                env=launch.environment,
                pass_fds=launch.descriptors,
                start_new_session=True,
            )
    except OSError as error:
        raise SandboxError(f"{launch.command[0]} does not start: {error.strerror}") from error
    finally:
        for descriptor in launch.descriptors:
            os.close(descriptor)
    return process  # pyright: ignore[reportPossiblyUnboundVariable] - the scope swallows nothing


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
        order, after = build_order(self._program, test, token), trailing_bytes(test)
        reply = await cell.send_order(order, self._limits.seconds, after)
        return (
            ProgramResult(end=EndReason.LOST)
            if reply is None
            else interpret_reply(test, reply, token)
        )

    async def _ready_process(self, test: ProgramTest) -> SandboxProcess:
        """Return the present cell, or a new one if a test left traces that could not be removed."""
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
    """Yield the program in a sandbox that is started as `launch` says when the first test comes."""
    ready = LoadedProgram(program, limits, build_launch)
    try:
        yield ready
    finally:
        await ready.close()
