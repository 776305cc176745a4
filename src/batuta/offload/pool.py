"""Processes that are killed when a call takes too long. They start with the first call.

The call is made from a thread of its own, so the pool belongs to no event loop: one pool serves the
server, the graders and every test, and a call that is cancelled takes its process with it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, cast, final

import anyio
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

from batuta.errors import BatutaError
from batuta.offload.child import HEADER_BYTES

CPU_SECONDS = 1.0
"""Processor time of one call; the kernel counts in whole seconds and rounds up."""
WALL_SECONDS = 10.0
"""Time of one call by the clock, from the moment it has a process."""
PROCESSES = 2
"""Processes of an event loop that work at the same time; further calls wait."""
_CHUNK = 1 << 16
_MAX_ANSWER_BYTES = 64 << 20
"""Bytes of an answer."""
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH")
"""Variables that a process of the pool is given; keys are in none of them."""


class ProcessTimeoutError(BatutaError):
    """The call used up its time, and its process was killed."""


class ProcessDiedError(BatutaError):
    """The call ended its process, or what it called failed; nothing else was harmed."""


class ProcessStartError(BatutaError):
    """This machine has no room for another process now."""


class _ProcessGoneError(Exception):
    """The process had ended before it was asked."""


@final
class _Child:
    """One process, asked one thing at a time."""

    def __init__(self) -> None:
        root = str(Path(__file__).parents[2])
        given = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        self.calls = 0
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "batuta.offload.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**given, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )

    def ask(self, request: bytes, seconds: float) -> Any:
        """The answer to a call.

        Raises:
            ProcessTimeoutError: it did not come in time.
            ProcessDiedError: it will never come.
            _ProcessGoneError: the process had ended before.
        """
        self.calls += 1
        end = monotonic() + seconds
        stdin = cast("Any", self._process.stdin)
        try:
            stdin.write(len(request).to_bytes(HEADER_BYTES) + request)
            stdin.flush()
        except (BrokenPipeError, ValueError):
            self.kill()
            if self.calls > 1:
                raise _ProcessGoneError from None
            raise ProcessStartError("a separate process could not be started") from None
        head = self._read(HEADER_BYTES, end)
        size = int.from_bytes(head)
        if size > _MAX_ANSWER_BYTES:
            self.kill()
            raise ProcessDiedError("the answer of a separate process is too long")
        return json.loads(self._read(size, end))

    def kill(self) -> None:
        """End the process now, whatever it does; a call that waits for it fails."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """End the process and give back its pipes."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _read(self, size: int, end: float) -> bytes:
        descriptor = cast("Any", self._process.stdout).fileno()
        parts: list[bytes] = []
        while size:
            left = end - monotonic()
            if left <= 0 or not _is_readable(descriptor, left):
                raise ProcessTimeoutError("it took too long")
            part = os.read(descriptor, min(size, _CHUNK))
            if not part:
                raise self._ended()
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _ended(self) -> Exception:
        """Why there is no answer: the process is no more."""
        code = self._process.wait()
        if code == 0 and self.calls > 1:
            return _ProcessGoneError()  # it had nothing to do for so long that it went
        late = sys.platform != "win32" and code == -signal.SIGXCPU
        return (
            ProcessTimeoutError("it took too long")
            if late
            else ProcessDiedError("it ended its process")
        )


def _is_readable(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read, or an end, within that time; pipes of any number."""
    if not hasattr(select, "poll"):
        return True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


@final
class ProcessPool:
    """Calls functions of this package in processes of its own."""

    def __init__(self, processes: int = PROCESSES) -> None:
        """Starts nothing yet."""
        self._processes = processes
        self._idle: list[_Child] = []
        self._lock = threading.Lock()
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar(f"offload-{id(self)}")

    async def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        cpu_seconds: float = CPU_SECONDS,
        wall_seconds: float = WALL_SECONDS,
    ) -> Any:
        """What the function returns there; cancelled, it ends with its process.

        Args:
            function: one of this package's modules.
            arguments: JSON, as is what it returns.
            cpu_seconds: processor time after which the kernel ends it.
            wall_seconds: time by the clock after which it is killed.

        Raises:
            ProcessTimeoutError: it was killed.
            ProcessDiedError: its process ended, or it raised.
            ProcessStartError: no process can be had.
        ProcessStartError: no process can be had.
        """
        request = _encode_call(function, arguments, cpu_seconds)
        taken: list[_Child] = []
        work = partial(self._work, request, wall_seconds, taken)
        try:
            return await run_sync(work, abandon_on_cancel=True, limiter=self._limiter_here())
        except BaseException:
            for child in taken:
                child.kill()
            raise

    def call_now(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        cpu_seconds: float = CPU_SECONDS,
        wall_seconds: float = WALL_SECONDS,
    ) -> Any:
        """As `call`, for a thread that may wait.

        Raises:
            ProcessTimeoutError: it was killed.
            ProcessDiedError: its process ended, or it raised.
            ProcessStartError: no process can be had.
        ProcessStartError: no process can be had.
        """
        return self._work(_encode_call(function, arguments, cpu_seconds), wall_seconds, [])

    def close(self) -> None:
        """End the processes that wait for work."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()

    def _limiter_here(self) -> anyio.CapacityLimiter:
        try:
            return self._limiter.get()
        except LookupError:
            limiter = anyio.CapacityLimiter(self._processes)
            self._limiter.set(limiter)
            return limiter

    def _work(self, request: bytes, seconds: float, taken: list[_Child]) -> Any:
        while True:
            child = self._take()
            taken[:] = [child]
            try:
                answer = child.ask(request, seconds)
            except _ProcessGoneError:
                child.close()
                continue
            except BaseException:
                child.close()
                raise
            taken.clear()
            self._put(child)
            if "error" in answer:
                raise ProcessDiedError(f"it failed with {answer['error']}")
            return answer["value"]

    def _take(self) -> _Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            return _Child()
        except OSError as error:
            raise ProcessStartError(
                f"no separate process can be started: {error.strerror}"
            ) from None

    def _put(self, child: _Child) -> None:
        with self._lock:
            if len(self._idle) < self._processes:
                self._idle.append(child)
                return
        child.close()


def _encode_call(function: Callable[..., Any], arguments: tuple[Any, ...], cpu: float) -> bytes:
    asked = {
        "module": function.__module__,
        "function": function.__name__,
        "arguments": arguments,
        "cpu_seconds": cpu,
    }
    return json.dumps(asked).encode()


_POOL = ProcessPool()
atexit.register(_POOL.close)


async def call_in_process(
    function: Callable[..., Any],
    *arguments: Any,
    cpu_seconds: float = CPU_SECONDS,
    wall_seconds: float = WALL_SECONDS,
) -> Any:
    """As `ProcessPool.call`, in the pool that all of this process share.

    Raises:
        ProcessTimeoutError: it was killed.
        ProcessDiedError: its process ended, or it raised.
        ProcessStartError: no process can be had.
    """
    return await _POOL.call(
        function, *arguments, cpu_seconds=cpu_seconds, wall_seconds=wall_seconds
    )


def call_in_process_now(
    function: Callable[..., Any],
    *arguments: Any,
    cpu_seconds: float = CPU_SECONDS,
    wall_seconds: float = WALL_SECONDS,
) -> Any:
    """As `call_in_process`, for a thread that may wait.

    Raises:
        ProcessTimeoutError: it was killed.
        ProcessDiedError: its process ended, or it raised.
        ProcessStartError: no process can be had.
    """
    return _POOL.call_now(function, *arguments, cpu_seconds=cpu_seconds, wall_seconds=wall_seconds)
