"""What runs in a process of the pool: it calls functions by name until its input ends.

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
IDLE_SECONDS = 300.0
"""Seconds without a call after which the process ends; the parent starts another when needed."""
MAX_MEMORY_BYTES = 1 << 30
"""Bytes of address space."""
_PACKAGE = "batuta."


def serve_calls() -> None:
    """Serve calls until the input ends or none came for a while."""
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # what a library prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's interrupt is the parent's business
    _limit_memory()
    while (asked := _read_call(incoming)) is not None:
        answer = json.dumps(_answer_call(asked)).encode()
        outgoing.write(len(answer).to_bytes(HEADER_BYTES) + answer)
        outgoing.flush()


def _read_call(incoming: BinaryIO) -> Any:
    """The next call; None if there is none."""
    if sys.platform != "win32" and not select.select([incoming], [], [], IDLE_SECONDS)[0]:
        return None
    head = incoming.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None
    return json.loads(incoming.read(int.from_bytes(head)))


def _answer_call(asked: dict[str, Any]) -> dict[str, Any]:
    """What the function returned, or the name of what it raised."""
    name = str(asked["module"])
    if not name.startswith(_PACKAGE):
        return {"error": "ImportError"}
    function = getattr(importlib.import_module(name), asked["function"])
    _limit_cpu(asked["cpu_seconds"])
    try:
        return {"value": function(*asked["arguments"])}
    except Exception as error:  # noqa: BLE001 - its name is the answer
        return {"error": type(error).__name__}


def _limit_cpu(seconds: float) -> None:
    """Let the kernel end this process, also if its parent is gone or the machine is busy."""
    if sys.platform == "win32":
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    wanted = math.ceil(used.ru_utime + used.ru_stime + seconds)
    _set_limit(resource.RLIMIT_CPU, wanted)


def _limit_memory() -> None:
    if sys.platform == "win32":
        return
    _set_limit(resource.RLIMIT_AS, MAX_MEMORY_BYTES)
    _set_limit(resource.RLIMIT_CORE, 0)


def _set_limit(kind: int, wanted: int) -> None:
    """Set a limit, or the lower one that the process has already."""
    if sys.platform == "win32":
        return
    hard = resource.getrlimit(kind)[1]
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (soft, hard))


if __name__ == "__main__":
    serve_calls()
