"""What goes into a sandbox and what comes out; expected outputs stay outside."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

MEGABYTE = 1 << 20
ENTRY = re.compile(r"[A-Za-z_]\w*(\(\))?(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class Program:
    """Python source; every test runs it from the start, in a process of its own."""

    source: str


@dataclass(frozen=True, slots=True)
class Script:
    """Runs the program as `__main__`; what it prints is the result."""

    stdin: str


@dataclass(frozen=True, slots=True)
class Call:
    """Calls a function of the program; what it returns is the result, as JSON."""

    entry: str
    """A function, or a method of a class that is built without arguments: `Solution().solve`."""
    arguments: tuple[JSON, ...] = ()

    def __post_init__(self) -> None:
        if not ENTRY.fullmatch(self.entry):
            raise ValueError(f"an entry point is `name` or `Class().name`, not {self.entry!r}")


@dataclass(frozen=True, slots=True)
class Check:
    """Runs code behind the program in the same namespace; to reach its end is the result.

    The end is proved by a random token, so a program that exits early has not returned. A program
    that searches the memory of its own process can find the token; it can find no expected
    output of another kind of test, because none is there.
    """

    code: str


Test: TypeAlias = Script | Call | Check


@dataclass(frozen=True, slots=True)
class Limits:
    """What one test may use."""

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


class End(StrEnum):
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of a test that ran."""

    end: End
    stdout: str = ""
    stderr: str = ""
    """Its last 4,000 characters."""
    value: JSON = None
    """What a `Call` returned, if it returned."""
    status: int | None = None
    """Exit status; None: unknown, or ended by a limit."""
    seconds: float = 0.0
    """Wall time."""
