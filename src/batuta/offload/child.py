"""The program of a pool's process: it calls functions by name until its input ends.

It is started with no environment of the parent's, so no secret is in it, and it imports nothing but
what it is asked to call. Messages are JSON with their length before them, both ways: what a hostile
input could make of this process is read by the parent as data only.
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
"""Bytes of a message's length, big end first."""
_PACKAGE = "batuta."


def serve_calls(memory_bytes: int, idle_seconds: float) -> None:
    """Serve calls until the input ends or none came for so long."""
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's interrupt is the parent's business
    if sys.platform != "win32":
        _set_limit(resource.RLIMIT_AS, memory_bytes)
        _set_limit(resource.RLIMIT_CORE, 0)
    while (asked := _read_call(incoming, idle_seconds)) is not None:
        answer = _answer_call(asked)
        outgoing.write(len(answer).to_bytes(HEADER_BYTES) + answer)
        outgoing.flush()


def _read_call(incoming: BinaryIO, idle_seconds: float) -> Any:
    """Read the next call; None if there is none."""
    if sys.platform != "win32" and not select.select([incoming], [], [], idle_seconds)[0]:
        return None
    head = incoming.read(HEADER_BYTES)
    return json.loads(incoming.read(int.from_bytes(head))) if len(head) == HEADER_BYTES else None


def _answer_call(asked: dict[str, Any]) -> bytes:
    """Return the function's value as JSON, or the name of what it raised."""
    try:
        if not asked["module"].startswith(_PACKAGE):
            raise ImportError  # noqa: TRY301 - answered as any failure
        function = getattr(importlib.import_module(asked["module"]), asked["function"])
        _limit_cpu(asked["cpu_seconds"])
        return json.dumps({"value": function(*asked["arguments"])}).encode()
    except Exception as error:  # noqa: BLE001 - its name is the answer
        return json.dumps({"error": type(error).__name__}).encode()


def _limit_cpu(seconds: float) -> None:
    """Let the kernel end this process, also if its parent is gone or the machine is busy."""
    if sys.platform != "win32":
        used = resource.getrusage(resource.RUSAGE_SELF)
        _set_limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds))


def _set_limit(kind: int, wanted: int) -> None:
    """Set a limit, or the lower one that the process has already."""
    if sys.platform != "win32":
        hard = resource.getrlimit(kind)[1]
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (soft, hard))


if __name__ == "__main__":
    serve_calls(int(sys.argv[1]), float(sys.argv[2]))
