"""Orders to a supervisor and the meaning of its replies, as functions of values."""

from __future__ import annotations

import re
from typing import Any

from batuta.sandbox.program import (
    JSON,
    AssertionTest,
    CallTest,
    EndReason,
    Program,
    ProgramResult,
    ProgramTest,
    ScriptTest,
    parse_value,
)

MAX_STDERR = 4000
PRELOADABLE_MODULES = (
    "numpy",
    "pandas",
    "matplotlib.pyplot",
    "sortedcontainers",
    "typing",
    "collections",
    "heapq",
    "bisect",
    "itertools",
    "functools",
    "re",
    "math",
    "random",
    "string",
    "datetime",
    "dataclasses",
    "decimal",
    "fractions",
    "statistics",
    "unittest",
    "threading",
)
"""Modules that the supervisor imports before its children do, where a program mentions them."""


def modules_to_preload(program: Program, test: ProgramTest) -> list[str]:
    """The modules worth importing once a program instead of once a test."""
    tested = f"{test.preamble}\n{test.code}" if isinstance(test, AssertionTest) else ""
    words = set(re.findall(r"\w+", f"{program.source}\n{tested}"))
    return [name for name in PRELOADABLE_MODULES if name.rpartition(".")[2] in words]


def build_order(program: Program, test: ProgramTest, token: str) -> dict[str, Any]:
    """The order to run a test; `token` is what a check proves its end with."""
    if isinstance(test, ScriptTest):
        return {"kind": "script", "source": program.source, "stdin": test.stdin}
    if isinstance(test, CallTest):
        arguments = list(test.arguments)
        call = {"kind": "call", "entry": test.entry, "arguments": arguments}
        return call | {"source": program.source}
    if test.separate:
        told = {"preamble": test.preamble, "entry": test.entry, "size": len(trailing_bytes(test))}
        return {"kind": "check", "source": program.source} | told
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
    said = str(report.get("end"))
    if said in {EndReason.RAISED, EndReason.MEMORY}:
        return EndReason(said)
    if isinstance(test, ScriptTest):
        return EndReason.EXITED if status else EndReason.RETURNED
    together = isinstance(test, AssertionTest) and not test.separate
    proved = said == EndReason.RETURNED and (not together or report.get("token") == token)
    return EndReason.RETURNED if proved else EndReason.EXITED
