"""The program of a `ProcessPool`'s process, which calls functions by name until its input ends.

The process gets only a few harmless environment variables, so it has no secrets. Besides this
package it imports only the modules of the functions that it calls. Messages are length-prefixed
JSON, so that the parent reads answers only as data, even if a hostile input takes over the process.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import select
import signal
import sys
from typing import Any, BinaryIO

if sys.platform != "win32":
    import resource

HEADER_BYTES = 8
"""Bytes of a message's length prefix, big-endian."""
_PACKAGE = "batuta."


def serve_calls(memory_bytes: int, idle_seconds: float) -> None:
    """Serve calls until the input ends, or no call arrives for `idle_seconds`.

    On Windows the process has no limit on memory, CPU time or idle time.

    Args:
        memory_bytes: maximum address space of this process.
        idle_seconds: maximum seconds between two calls.
    """
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # keeps output of libraries out of the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles the terminal's interrupt
    if sys.platform != "win32":
        _set_limit(resource.RLIMIT_AS, memory_bytes)
        _set_limit(resource.RLIMIT_CORE, 0)
    while (asked := _read_call(incoming, idle_seconds)) is not None:
        answer = _answer_call(asked)
        outgoing.write(len(answer).to_bytes(HEADER_BYTES) + answer)
        outgoing.flush()


def _read_call(incoming: BinaryIO, idle_seconds: float) -> Any:
    """Return the next call; None at the end of the input or after `idle_seconds`."""
    if sys.platform != "win32" and not select.select([incoming], [], [], idle_seconds)[0]:
        return None
    head = incoming.read(HEADER_BYTES)
    return json.loads(incoming.read(int.from_bytes(head))) if len(head) == HEADER_BYTES else None


def _answer_call(asked: dict[str, Any]) -> bytes:
    """Return the function's value as JSON, or the name of the exception that it raised."""
    try:
        if not asked["module"].startswith(_PACKAGE):
            raise ImportError  # noqa: TRY301 - answered as any failure
        function = getattr(importlib.import_module(asked["module"]), asked["function"])
        _limit_cpu(asked["cpu_seconds"])
        return json.dumps({"value": function(*asked["arguments"])}).encode()
    except Exception as error:  # noqa: BLE001 - its name is returned
        return json.dumps({"error": type(error).__name__}).encode()


def _limit_cpu(seconds: float) -> None:
    """Let the kernel end this process after that much more CPU time, even without its parent."""
    if sys.platform != "win32":
        used = resource.getrusage(resource.RUSAGE_SELF)
        _set_limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds))


def _set_limit(kind: int, wanted: int) -> None:
    """Set a resource limit, at most the process's existing hard limit."""
    if sys.platform != "win32":
        hard = resource.getrlimit(kind)[1]
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (soft, hard))


if __name__ == "__main__":
    serve_calls(int(sys.argv[1]), float(sys.argv[2]))
