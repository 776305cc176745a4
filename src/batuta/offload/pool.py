"""A pool of processes, which start when they are needed and are killed when a call takes too long.

Each `call` waits in a separate thread, so one pool can serve several event loops. If a call is
cancelled, its process is killed. On Windows time, memory and idle time are not limited.

`multiprocessing`, and therefore pebble, is not used: its processes run the parent's main module
again, inherit the environment with its keys, and answer with pickles that the parent must trust.
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
"""Default limit on the CPU time of one call; the call may take up to a second more."""
WALL_SECONDS = 10.0
"""Default limit on the wall-clock time of one call, including the start of a new process."""
PROCESSES = 2
"""Default maximum of concurrent calls per event loop; further calls wait."""
MEMORY_BYTES = 1 << 30
"""Default maximum address space of a process."""
IDLE_SECONDS = 300.0
"""Default seconds without a call after which a process ends; a new one starts when needed."""
_MAX_ANSWER_BYTES = 64 << 20
_CHUNK = 1 << 16
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH")
"""Environment variables passed to the processes, besides PYTHONPATH; none contains a key."""


class ProcessTimeoutError(BatutaError):
    """The call exceeded a time limit, and its process was killed."""


class ProcessDiedError(BatutaError):
    """The call has no value: its process died or gave no usable answer, or its function failed."""


class ProcessFailedError(ProcessDiedError):
    """The called function raised an exception or returned no JSON value; its process lives on."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"the function failed with {kind}")
        self.kind = kind
        """The name of the exception's type."""


class ProcessStartError(BatutaError):
    """No further process can be started on this machine now, or a new one failed as it started."""


class _ProcessGoneError(Exception):
    """The process had ended before the call."""


@final
class _Child:
    """One process, which serves one call at a time."""

    def __init__(self, memory_bytes: int, idle_seconds: float) -> None:
        given = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter with two numbers
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
        """The process id."""
        return self._process.pid

    def ask(self, request: bytes, seconds: float) -> Any:
        """Send a call and return its answer: a dict with the `value`, or with the `error`.

        Raises:
            ProcessTimeoutError: there was no answer in time, or within the limit on CPU time.
            ProcessDiedError: the process died, or its answer is too long or not valid.
            ProcessStartError: the process did not start.
            _ProcessGoneError: the process had already ended.
        """
        process = cast("Any", self._process)
        if process.poll() is not None:
            raise _ProcessGoneError
        end = monotonic() + seconds
        try:
            process.stdin.write(len(request).to_bytes(HEADER_BYTES) + request)
            process.stdin.flush()
        except (OSError, ValueError):  # a broken or closed pipe
            raise self._explain_end() from None
        size = int.from_bytes(self._read(HEADER_BYTES, end))
        if size > _MAX_ANSWER_BYTES:
            raise ProcessDiedError("the answer of a separate process is too long")
        text = self._read(size, end)
        self._has_answered = True
        return _read_answer(text)

    def kill(self) -> None:
        """Kill the process; a call that waits for it fails."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """Kill the process and close its pipes."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                cast("Any", pipe).close()

    def _read(self, size: int, end: float) -> bytearray:
        """Read `size` bytes before the time `end` (of `monotonic`); raises the errors of `ask`."""
        descriptor, text = cast("Any", self._process.stdout).fileno(), bytearray()
        while len(text) < size:
            self._is_late = not _wait_until_readable(descriptor, end)
            part = b"" if self._is_late else os.read(descriptor, min(size - len(text), _CHUNK))
            if not part:
                raise self._explain_end()
            text += part
        return text

    def _explain_end(self) -> Exception:
        """Wait for the end of the process, killing a late one; return the error to raise."""
        if self._is_late:
            self.kill()
        code = self._process.wait()
        if self._is_late or (sys.platform != "win32" and code == -signal.SIGXCPU):
            return ProcessTimeoutError("the call took too long")
        if code == 0 and self._has_answered:
            return _ProcessGoneError()
        if code == 1 and not self._has_answered:
            return ProcessStartError("a separate process could not be started")
        return ProcessDiedError("the process of the call died")


def _read_answer(text: bytearray) -> dict[str, Any]:
    """Return the answer of a process, in which a hostile input may have taken over.

    Raises:
        ProcessDiedError: the text is not an answer.
    """
    try:
        answer: Any = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or not ("value" in answer or "error" in answer):
        raise ProcessDiedError("the answer of a separate process is not valid")
    return cast("dict[str, Any]", answer)


def _wait_until_readable(descriptor: int, end: float) -> bool:
    """Wait for data or the end of the pipe; return False if neither arrives before `end`.

    On Windows, which has no `poll`, return True at once: the read then waits without a limit.
    """
    if not hasattr(select, "poll"):
        return True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(max(0.0, end - monotonic()) * 1000))


@final
class ProcessPool:
    """Calls functions of the package `batuta` in separate processes."""

    def __init__(
        self,
        processes: int = PROCESSES,
        *,
        memory_bytes: int = MEMORY_BYTES,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Create the pool; processes are started by calls.

        Args:
            processes: maximum of concurrent calls per event loop, and of idle processes.
            memory_bytes: maximum address space of a process.
            idle_seconds: seconds without a call after which a process ends.
        """
        self._processes = processes
        self._open_child = partial(_Child, memory_bytes, idle_seconds)
        self._idle: list[_Child] = []
        self._working: set[_Child] = set()
        self._lock = threading.Lock()
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar(f"offload-{id(self)}")

    @property
    def process_ids(self) -> frozenset[int]:
        """The ids of the busy and idle processes."""
        with self._lock:
            return frozenset(child.id for child in (*self._idle, *self._working))

    async def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        cpu_seconds: float = CPU_SECONDS,
        wall_seconds: float = WALL_SECONDS,
    ) -> Any:
        """Call the function in a process and return its value; cancellation kills the process.

        If as many calls as allowed are running, wait for one of them to end, without a limit.

        Args:
            function: a module-level function of the package `batuta`.
            arguments: the arguments, which like the return value must be JSON values; tuples
                arrive as lists.
            cpu_seconds: CPU time after which the kernel ends the process.
            wall_seconds: wall-clock time, without that wait, after which the process is killed.

        Raises:
            ProcessTimeoutError: the call exceeded a time limit.
            ProcessFailedError: the function raised an exception, or returned no JSON value.
            ProcessDiedError: the process died, its answer is not valid, or the value takes more
                than 64 MiB.
            ProcessStartError: no process can be started.
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
        """Do as `call`, but block the current thread, and start a process if all are busy."""
        return self._work(_encode_call(function, arguments, cpu_seconds), wall_seconds, [])

    def close(self) -> None:
        """Kill all processes; running calls fail. Later calls start new processes."""
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
        """Return the answer of a process to the request; `taken` holds that process until then."""
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
    call = {
        "module": function.__module__,
        "function": function.__name__,
        "arguments": arguments,
        "cpu_seconds": cpu,
    }
    return json.dumps(call).encode()


SHARED_PROCESSES = ProcessPool()
"""The pool that code in this process shares unless it needs a separate one."""
atexit.register(SHARED_PROCESSES.close)
