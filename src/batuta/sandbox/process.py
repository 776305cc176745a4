"""Starts a sandbox's supervisor, sends it tests and interprets its replies."""

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
"""Maximum number of characters of standard error that are kept, from the end."""
PRELOADABLE_MODULES = (
    "numpy", "pandas", "matplotlib.pyplot", "sortedcontainers", "typing", "collections", "heapq",
    "bisect", "itertools", "functools", "re", "math", "random", "string", "datetime",
    "dataclasses", "decimal", "fractions", "statistics", "unittest", "threading",
)  # fmt: skip
"""Modules that the supervisor imports before it forks, if the program or its tests mention them."""


def modules_to_preload(program: Program, test: ProgramTest) -> list[str]:
    """Return the modules worth importing once per program instead of once per test."""
    tested = f"{test.preamble}\n{test.code}" if isinstance(test, AssertionTest) else ""
    words = set(re.findall(r"\w+", f"{program.source}\n{tested}"))
    return [name for name in PRELOADABLE_MODULES if name.rpartition(".")[2] in words]


def build_order(program: Program, test: ProgramTest, token: str) -> dict[str, Any]:
    """Return the order to run a test.

    `token` proves that tests in the program's own process reached their end.
    """
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
    """Return the text of separate tests, sent after their order so that the program cannot see it.

    It is empty for other tests.
    """
    if isinstance(test, AssertionTest) and test.separate:
        return test.code.encode("utf-8", "surrogatepass")
    return b""


def interpret_reply(test: ProgramTest, reply: dict[str, Any], token: str) -> ProgramResult:
    """Interpret a supervisor's reply.

    The supervisor is trusted; the output and report that it passes on from the program are not.
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
    """Parse the report of the program's process on how it ended; empty if it is invalid."""
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
"""Seconds that a supervisor on a busy machine may take in addition to its test's time limit."""


@final
class SandboxProcess:
    """A running supervisor, ready for tests."""

    def __init__(self, process: Process, exit_timeout: float) -> None:
        assert process.stdin is not None  # noqa: S101 - all three are pipes
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        self.is_used_up = False
        """True if this process can run no more tests."""
        self._exit_timeout = exit_timeout
        self._process = process
        self._orders = process.stdin
        self._replies = BufferedByteReceiveStream(process.stdout)
        self._stderr = process.stderr

    async def has_started(self) -> bool:
        """Wait up to `REPLY_TIMEOUT` for the supervisor's first message; return False if none."""
        return await self._exchange(b"", 0) is not None

    async def send_order(
        self, order: dict[str, Any], seconds: float, after: bytes = b""
    ) -> dict[str, Any] | None:
        """Send an order, then `after`, and return the reply.

        Return None if the supervisor has exited, or does not reply within `seconds` plus
        `REPLY_TIMEOUT`.
        """
        data = json.dumps(order).encode()
        self.is_used_up = True  # if cancelled here, its reply would answer the next order
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
        """Return the last line of the supervisor's stderr, which is read for at most a second.

        Without such a line, return a sentence that says so.
        """
        lines: list[str] = []
        with anyio.move_on_after(1):
            async for data in self._stderr:
                lines += data.decode(errors="replace").splitlines()
        return lines[-1] if lines else "it ended without an error message"

    async def close(self) -> None:
        """End the supervisor and every process in its sandbox."""
        with anyio.CancelScope(shield=True):
            await self._orders.aclose()
            await self._wait_for_exit()
            # Descendants first: a bwrap exits by itself when its namespace has ended.
            for doomed in (descendant_processes(self._process.pid), [self._process.pid]):
                if self._process.returncode is None:
                    _kill_processes(doomed)
                    await self._wait_for_exit()
            await self._process.aclose()

    async def _wait_for_exit(self) -> None:
        with anyio.move_on_after(self._exit_timeout):
            await self._process.wait()


@asynccontextmanager
async def open_sandbox_process(
    launch: SupervisorLaunch, preload: list[str]
) -> AsyncGenerator[SandboxProcess]:
    """Yield a sandbox that is ready for tests and has tried to import the modules in `preload`.

    When the block ends, none of its processes or files remains.

    Raises:
        SandboxError: the sandbox could not be started; the message has the cause.
    """
    try:
        sandbox = SandboxProcess(await _start_process(launch), launch.exit_timeout)
        try:
            first = launch.first_order | {"preload": preload}
            if not await sandbox.has_started() or await sandbox.send_order(first, 0) is None:
                raise SandboxError(await sandbox.last_error_line())
            yield sandbox
        finally:
            await sandbox.close()
    finally:
        if launch.folder is not None and os.path.exists(launch.folder):  # noqa: PTH110
            with anyio.CancelScope(shield=True):  # its supervisor was killed
                await anyio.run_process(removal_command(launch.folder), check=False)


def _kill_processes(processes: list[int]) -> None:
    """Kill the processes; `Process.kill` would reap them without asyncio noticing."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


async def _start_process(launch: SupervisorLaunch) -> Process:
    try:
        with anyio.CancelScope(shield=True):  # a bwrap killed while starting leaves a child
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
    """A program that is ready for one test after another; each test runs it in a new process."""

    def __init__(
        self, program: Program, limits: SandboxLimits, build_launch: Callable[[], SupervisorLaunch]
    ) -> None:
        self._program = program
        self._limits = limits
        self._build_launch = build_launch
        self._stack = AsyncExitStack()
        self._process: SandboxProcess | None = None

    async def run(self, test: ProgramTest) -> ProgramResult:
        """Run one test; nothing of it remains for the next test.

        Raises:
            SandboxError: no sandbox could be started.
        """
        sandbox, token = await self._ready_process(test), secrets.token_hex(16)
        order, after = build_order(self._program, test, token), trailing_bytes(test)
        reply = await sandbox.send_order(order, self._limits.seconds, after)
        return (
            ProgramResult(end=EndReason.LOST)
            if reply is None
            else interpret_reply(test, reply, token)
        )

    async def _ready_process(self, test: ProgramTest) -> SandboxProcess:
        """Return the current sandbox, or a new one if there is none or it can run no more tests."""
        if self._process is None or self._process.is_used_up:
            await self.close()
            sandbox = open_sandbox_process(
                self._build_launch(), modules_to_preload(self._program, test)
            )
            self._process = await self._stack.enter_async_context(sandbox)
        return self._process

    async def close(self) -> None:
        """End the sandbox, if one was started."""
        await self._stack.aclose()


@asynccontextmanager
async def open_program(
    program: Program, limits: SandboxLimits, build_launch: Callable[[], SupervisorLaunch]
) -> AsyncGenerator[LoadedProgram]:
    """Yield the program; its sandbox starts, as `build_launch` describes, with the first test."""
    ready = LoadedProgram(program, limits, build_launch)
    try:
        yield ready
    finally:
        await ready.close()
