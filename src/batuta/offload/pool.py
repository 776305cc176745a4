"""Processes that are killed when a call takes too long. They start with the first call.

The call is made from a thread of its own, so the pool belongs to no event loop: one pool serves the
server, the graders and every test, and a call that is cancelled takes its process with it.

Processes of `multiprocessing`, and so of pebble, run the main module of the parent again, inherit
its environment with its keys, and answer with pickles that the parent would have to trust.
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
MEMORY_BYTES = 1 << 30
"""Address space of a process."""
IDLE_SECONDS = 300.0
"""Seconds without a call after which a process ends; another starts when one is needed."""
_MAX_ANSWER_BYTES = 64 << 20
_CHUNK = 1 << 16
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH")
"""Variables that a process of the pool is given; keys are in none of them."""


class ProcessTimeoutError(BatutaError):
    """The call used up its time, and its process was killed."""


class ProcessDiedError(BatutaError):
    """The call ended its process, or the function that it called failed."""


class ProcessFailedError(ProcessDiedError):
    """The function raised, and the process goes on."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"it failed with {kind}")
        self.kind = kind
        """The name of the exception's type."""


class ProcessStartError(BatutaError):
    """This machine has no room for another process now."""


class _ProcessGoneError(Exception):
    """The process had ended before it was asked."""


@final
class _Child:
    """One process, asked one thing at a time."""

    def __init__(self, memory_bytes: int, idle_seconds: float) -> None:
        given = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter and two numbers
            [
                *(sys.executable, "-P", "-m", "batuta.offload.child"),
                *(str(memory_bytes), str(idle_seconds)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**given, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,
        )
        self._has_answered = False
        self._is_late = False

    @property
    def id(self) -> int:
        """The process's id."""
        return self._process.pid

    def ask(self, request: bytes, seconds: float) -> Any:
        """Return the answer to a call.

        Raises:
            ProcessTimeoutError: it did not come in time.
            ProcessDiedError: it will never come.
            ProcessStartError: the process did not start.
            _ProcessGoneError: the process had ended before.
        """
        process = cast("Any", self._process)
        if process.poll() is not None:
            raise _ProcessGoneError
        end = monotonic() + seconds
        try:
            process.stdin.write(len(request).to_bytes(HEADER_BYTES) + request)
            process.stdin.flush()
        except (OSError, ValueError):  # a pipe that nobody reads, or that was closed
            raise self._explain_end() from None
        size = int.from_bytes(self._read(HEADER_BYTES, end))
        if size > _MAX_ANSWER_BYTES:
            raise ProcessDiedError("the answer of a separate process is too long")
        text = self._read(size, end)
        self._has_answered = True
        return json.loads(text)

    def kill(self) -> None:
        """End the process now, whatever it does; a call that waits for it fails."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """End the process and give back its pipes."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                cast("Any", pipe).close()

    def _read(self, size: int, end: float) -> bytearray:
        """Read so many bytes until then."""
        descriptor, text = cast("Any", self._process.stdout).fileno(), bytearray()
        while len(text) < size:
            self._is_late = not _wait_until_readable(descriptor, end)
            part = b"" if self._is_late else os.read(descriptor, min(size - len(text), _CHUNK))
            if not part:
                raise self._explain_end()
            text += part
        return text

    def _explain_end(self) -> Exception:
        """End the process and return the error that says why there is no answer."""
        if self._is_late:
            self.kill()
        code = self._process.wait()
        if self._is_late or (sys.platform != "win32" and code == -signal.SIGXCPU):
            return ProcessTimeoutError("it took too long")
        if code == 0 and self._has_answered:
            return _ProcessGoneError()
        if code == 1 and not self._has_answered:
            return ProcessStartError("a separate process could not be started")
        return ProcessDiedError("it ended its process")


def _wait_until_readable(descriptor: int, end: float) -> bool:
    """Wait for bytes or an end of the pipe; tell whether they came before `end`."""
    if not hasattr(select, "poll"):
        return True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(max(0.0, end - monotonic()) * 1000))


@final
class ProcessPool:
    """Calls functions of this package in processes of its own."""

    def __init__(
        self,
        processes: int = PROCESSES,
        *,
        memory_bytes: int = MEMORY_BYTES,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._processes = processes
        self._open_child = partial(_Child, memory_bytes, idle_seconds)
        self._idle: list[_Child] = []
        self._working: set[_Child] = set()
        self._lock = threading.Lock()
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar(f"offload-{id(self)}")

    @property
    def process_ids(self) -> frozenset[int]:
        """The ids of the processes that work or wait for work."""
        with self._lock:
            return frozenset(child.id for child in (*self._idle, *self._working))

    async def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        cpu_seconds: float = CPU_SECONDS,
        wall_seconds: float = WALL_SECONDS,
    ) -> Any:
        """Return the function's value; cancelled, the call ends with its process.

        Args:
            function: one of this package's modules.
            arguments: JSON, as is what it returns.
            cpu_seconds: processor time after which the kernel ends it.
            wall_seconds: time by the clock after which it is killed.

        Raises:
            ProcessTimeoutError: it was killed.
            ProcessDiedError: its process ended, or it raised.
            ProcessStartError: no process can be had.
        """
        taken: list[_Child] = []
        request = _encode_call(function, arguments, cpu_seconds)
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
        """Do as `call` does, for a thread that may wait."""
        return self._work(_encode_call(function, arguments, cpu_seconds), wall_seconds, [])

    def close(self) -> None:
        """End the processes; calls that are being made fail."""
        with self._lock:
            idle, self._idle = self._idle, []
            for child in self._working:
                child.kill()
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
            keeps = False
            try:
                answer = child.ask(request, seconds)
                keeps = True
            except _ProcessGoneError:
                continue
            finally:
                taken.clear()
                self._put(child, keeps=keeps)
            if "error" in answer:
                raise ProcessFailedError(answer["error"])
            return answer["value"]

    def _take(self) -> _Child:
        with self._lock:
            child = self._idle.pop() if self._idle else None
        try:
            child = child or self._open_child()
        except OSError as error:
            message = f"no separate process can be started: {error.strerror}"
            raise ProcessStartError(message) from None
        with self._lock:
            self._working.add(child)
        return child

    def _put(self, child: _Child, *, keeps: bool) -> None:
        with self._lock:
            self._working.discard(child)
            keeps = keeps and len(self._idle) < self._processes
            if keeps:
                self._idle.append(child)
        if not keeps:
            child.close()


def _encode_call(function: Callable[..., Any], arguments: tuple[Any, ...], cpu: float) -> bytes:
    asked = {
        "module": function.__module__,
        "function": function.__name__,
        "arguments": arguments,
        "cpu_seconds": cpu,
    }
    return json.dumps(asked).encode()


SHARED_PROCESSES = ProcessPool()
"""The pool that everything in this process shares."""
atexit.register(SHARED_PROCESSES.close)
