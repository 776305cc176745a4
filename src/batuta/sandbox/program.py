"""A sandbox's input and output; expected outputs stay outside."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

MEGABYTE = 1 << 20
ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\(\))?(\.[A-Za-z_]\w*)*")


def parse_value(text: str) -> JSON:
    """Return the value that a text of JSON holds; a whole number of more digits is a Decimal.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_int=_parse_integer)


def _parse_integer(digits: str) -> int | Decimal:
    longest = sys.int_info.default_max_str_digits  # the longest that Python reads and writes
    return int(digits) if len(digits) <= longest else Decimal(digits)


@dataclass(frozen=True, slots=True)
class Program:
    """Python source; every test runs it from the start, in a process of its own."""

    source: str


@dataclass(frozen=True, slots=True)
class ScriptTest:
    """Runs the program as `__main__`; what it prints is the result."""

    stdin: str


@dataclass(frozen=True, slots=True)
class CallTest:
    """Calls a function of the program; what it returns is the result, as JSON."""

    entry: str
    """A function, or a method of a class that is built without arguments: `Solution().solve`."""
    arguments: tuple[str, ...] = ()
    """Each as JSON; as a text, a whole number may have any number of digits."""

    def __post_init__(self) -> None:
        if not ENTRY_POINT.fullmatch(self.entry):
            raise ValueError(f"an entry point is `name` or `Class().name`, not {self.entry!r}")
        for text in self.arguments:
            parse_value(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertionTest:
    """Runs tests that raise if one fails; to reach their end is the result.

    Apart, the tests run in a process of their own, which the program can neither look into nor
    write to. Names that neither they nor the preamble define stand for the program's; it is called
    over a pipe, and what it returns comes back as plain values, which the tests compare. An object
    of a class of its own stays with it: the tests can call its methods, but it equals nothing.
    Together, the tests run in the program's own process, behind it and in the same namespace; their
    end is proved by a random token. A program that searches its own memory finds the tests and the
    token, and one that changes what the tests use can let them pass: this is for tests that cannot
    run apart, and their result is to be believed less.
    """

    code: str
    preamble: str = ""
    """Source before both, that the program may rely on: apart, each runs its own."""
    entry: str = ""
    """A name that is the program's although the preamble defines it, as a sketch; empty: none."""
    separate: bool = True


ProgramTest: TypeAlias = ScriptTest | CallTest | AssertionTest


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """The limits of one test."""

    seconds: float = 10.0
    """Wall time."""
    memory: int = 1024 * MEGABYTE
    """Bytes resident in all its processes; each may reserve four times as much."""
    output: int = 8 * MEGABYTE
    """Bytes each of standard output, standard error and the value."""
    processes: int = 32
    """Processes and threads at the same time."""
    files: int = 64 * MEGABYTE
    """Bytes in all files written."""

    def __post_init__(self) -> None:
        if min(self.seconds, self.memory, self.output, self.processes, self.files) <= 0:
            raise ValueError("limits of a sandbox are greater than 0")


class EndReason(StrEnum):
    """How a test ended. Whether the result is right is not decided here."""

    RETURNED = "returned"
    """The script ended with status 0, the function returned, the check reached its end."""
    RAISED = "raised"
    """An exception was not caught; its traceback is in `stderr`."""
    EXITED = "exited"
    """The process ended itself: a script with another status than 0, the others at all."""
    KILLED = "killed"
    """A signal ended the process; `status` is its number, negative."""
    TIME = "time"
    MEMORY = "memory"
    OUTPUT = "output"
    PROCESSES = "processes"
    FILES = "files"
    LOST = "lost"
    """The sandbox itself went away; nothing is known of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """The result of a test that ran."""

    end: EndReason
    stdout: str = ""
    stderr: str = ""
    """The last 4,000 characters of its standard error."""
    value: JSON = None
    """The value that a `Call` returned, if it returned."""
    status: int | None = None
    """Exit status; None: unknown, or ended by a limit."""
    seconds: float = 0.0
    """Wall time."""
