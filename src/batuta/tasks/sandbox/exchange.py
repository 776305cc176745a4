"""What is said to a warden and what its reply means; functions of values."""

from __future__ import annotations

import json
import re
from typing import Any

from batuta.tasks.sandbox.program import JSON, Call, Check, End, Outcome, Program, Script, Test

STDERR_KEPT = 4000
WARM = (
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
"""Modules that the warden imports before its children do, where a program mentions them."""


def preload(program: Program, test: Test) -> list[str]:
    """The modules worth importing once a program instead of once a test."""
    tested = f"{test.preamble}\n{test.code}" if isinstance(test, Check) else ""
    words = set(re.findall(r"\w+", f"{program.source}\n{tested}"))
    return [name for name in WARM if name.rpartition(".")[2] in words]


def order(program: Program, test: Test, token: str) -> dict[str, Any]:
    """The order to run a test; `token` is what a check proves its end with."""
    if isinstance(test, Script):
        return {"kind": "script", "source": program.source, "stdin": test.stdin}
    if isinstance(test, Call):
        arguments = list(test.arguments)
        call = {"kind": "call", "entry": test.entry, "arguments": arguments}
        return call | {"source": program.source}
    if test.apart:
        told = {"preamble": test.preamble, "entry": test.entry, "size": len(trailing(test))}
        return {"kind": "check", "source": program.source} | told
    source = f"{test.preamble}\n{program.source}"
    return {"kind": "together", "source": source, "code": test.code, "token": token}


def trailing(test: Test) -> bytes:
    """What follows an order and is not for the program: the text of tests that run apart."""
    if isinstance(test, Check) and test.apart:
        return test.code.encode("utf-8", "surrogatepass")
    return b""


def settle(test: Test, reply: dict[str, Any], token: str) -> Outcome:
    """What a warden's reply means.

    The warden is trusted; what it passes on from the program (the output and the report) is not.
    """
    report = _report(reply["result"])
    end = End(reply["ended"]) if reply["ended"] else _end(test, reply["status"], report, token)
    return Outcome(
        end,
        reply["stdout"],
        reply["stderr"][-STDERR_KEPT:],
        report.get("value") if end is End.RETURNED else None,
        None if reply["ended"] else reply["status"],
        reply["seconds"],
    )


def _report(text: str) -> dict[str, JSON]:
    """What the program's process said of its end; nothing, if that makes no sense."""
    try:
        report: JSON = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def _end(test: Test, status: int | None, report: dict[str, JSON], token: str) -> End:
    if status is None:
        return End.LOST
    if status < 0:
        return End.KILLED
    said = str(report.get("end"))
    if said in {End.RAISED, End.MEMORY}:
        return End(said)
    if isinstance(test, Script):
        return End.EXITED if status else End.RETURNED
    together = isinstance(test, Check) and not test.apart
    proved = said == End.RETURNED and (not together or report.get("token") == token)
    return End.RETURNED if proved else End.EXITED
