"""The input and output of a sandbox: programs, tests, limits and results."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
"""A JSON value; an integer in it may be a Decimal (see `parse_value`)."""

MEGABYTE = 1 << 20
ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\(\))?(\.[A-Za-z_]\w*)*")


def parse_value(text: str) -> JSON:
    """Parse JSON; an integer with more digits than Python reads by default becomes a Decimal.

    Raises:
        ValueError: the text is not JSON.
        RecursionError: the text is nested too deeply.
    """
    return json.loads(text, parse_int=_parse_integer)


def _parse_integer(digits: str) -> int | Decimal:
    longest = sys.int_info.default_max_str_digits  # the most digits that Python reads
    return int(digits) if len(digits) <= longest else Decimal(digits)


@dataclass(frozen=True, slots=True)
class Program:
    """Python source; every test runs it from the start, in a new process."""

    source: str


@dataclass(frozen=True, slots=True)
class ScriptTest:
    """Runs the program as `__main__`; its output is the result."""

    stdin: str


@dataclass(frozen=True, slots=True)
class CallTest:
    """Calls a function of the program; its return value is the result, as JSON.

    Raises:
        ValueError: the entry point is malformed, or an argument is not JSON.
        RecursionError: an argument is nested too deeply.
    """

    entry: str
    """A function, or a method of a class constructed without arguments: `Solution().solve`."""
    arguments: tuple[str, ...] = ()
    """Each argument as JSON text, in which integers may have any number of digits."""

    def __post_init__(self) -> None:
        if not ENTRY_POINT.fullmatch(self.entry):
            raise ValueError(f"an entry point is `name` or `Class().name`, not {self.entry!r}")
        for text in self.arguments:
            parse_value(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertionTest:
    """Runs tests that raise if one fails; the result is whether they reach their end.

    Separate tests run in their own process, which the program can neither read nor change. Names
    that neither the tests, the preamble nor Python define are the program's: calls go over a pipe
    and return plain values, which the tests compare. An object of a class that the program defines
    stays in the program's process: the tests can call its methods, but it never equals a plain
    value.

    Tests that are not separate run in the program's process, after it and in its namespace; a
    random token proves that they reached their end. A program that searches its memory finds the
    tests and the token, and one that changes what the tests use can make them pass. Use this only
    for tests that cannot run separately, and trust their result less.
    """

    code: str
    preamble: str = ""
    """Source that runs before the program and before the tests, in the process of each."""
    entry: str = ""
    """A name that the preamble only declares and the program must define; empty if none."""
    separate: bool = True


ProgramTest: TypeAlias = ScriptTest | CallTest | AssertionTest


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """The limits of one test.

    Raises:
        ValueError: a limit is not greater than 0.
    """

    seconds: float = 10.0
    """Wall time."""
    memory: int = 1024 * MEGABYTE
    """Resident bytes of all processes of the test; each may reserve four times as much."""
    output: int = 8 * MEGABYTE
    """Bytes of standard output, of standard error and of the value, each."""
    processes: int = 32
    """Maximum number of processes and threads at the same time."""
    files: int = 64 * MEGABYTE
    """Bytes in all files that the test writes; a small file, or a folder, counts as 16 KiB."""

    def __post_init__(self) -> None:
        if min(self.seconds, self.memory, self.output, self.processes, self.files) <= 0:
            raise ValueError("sandbox limits must be greater than 0")


class EndReason(StrEnum):
    """How a test ended; whether its result is correct is decided elsewhere."""

    RETURNED = "returned"
    """The script exited with status 0, the function returned, or the tests reached their end."""
    RAISED = "raised"
    """An exception was not caught; its traceback is in `stderr`."""
    EXITED = "exited"
    """The program exited: a script with a nonzero status, other tests with any status."""
    KILLED = "killed"
    """A signal ended the process; `status` is the signal's number, negated."""
    TIME = "time"
    """The test exceeded its time limit."""
    MEMORY = "memory"
    """The test exceeded its memory limit, or the program raised MemoryError."""
    OUTPUT = "output"
    """The test exceeded its limit of output."""
    PROCESSES = "processes"
    """The test exceeded its limit of processes and threads."""
    FILES = "files"
    """The test exceeded its limit of bytes in files."""
    LOST = "lost"
    """The sandbox itself failed; how the program ended is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """The result of a test."""

    end: EndReason
    stdout: str = ""
    stderr: str = ""
    """The last 4,000 characters of the standard error."""
    value: JSON = None
    """The value that a `CallTest` returned; None for other tests and if it did not return."""
    status: int | None = None
    """Exit status, or a signal's number, negated; None if unknown or if a limit ended the test."""
    seconds: float = 0.0
    """Wall time."""
