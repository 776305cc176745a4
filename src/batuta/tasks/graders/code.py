"""Programs: run elsewhere, on tests whose expected outputs never leave this process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol, final

from batuta.core import Grade
from batuta.tasks.graders.limits import SHOWN
from batuta.tasks.graders.source import program_in
from batuta.tasks.sandbox.program import (
    JSON,
    Call,
    Check,
    End,
    Limits,
    Outcome,
    Program,
    Script,
    Test,
)

LIMITS = Limits()
"""Of each case."""

WEAKLY = "; weakly, since the tests ran in the program's own process"
"""Behind the reason of a grade that a program could have taken."""

_TOGETHER = re.compile(
    r"\b(?:patch|mock\w*|Mock|MagicMock|AsyncMock|mock_open|assertLogs|assertNoLogs|assertWarns\w*|"
    r"warnings|logging|gcf|gca|get_fignums|environ|putenv|chdir|argv|modules|stdin|__main__|"
    r"pickle|joblib|shelve|dill|marshal|load_model|import_module|signal|getsource|rcParams|"
    r"tracemalloc|gc|getrefcount)\b|\bsys\.path\b|"
    r"\b(?:plt|pyplot)\.(?:subplots?|figure|axes|gca|gcf|get_\w+|fignum_exists)\b"
)


class Ready(Protocol):
    """A program that is ready for tests."""

    async def run(self, test: Test) -> Outcome:
        """How the test ended."""
        ...


class Runner(Protocol):
    """Runs programs that nobody has read: a `Sandbox`."""

    def load(self, program: Program, limits: Limits) -> AbstractAsyncContextManager[Ready]:
        """The program, ready for one test after another; all of it has ended after the block."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """A test and what it must give."""

    test: Test
    expected: JSON = None
    """A script's output, or a call's value; a check needs none."""


@final
class Code:
    """Judges the last code block: 1 if it passes every case, 0 at the first that it fails.

    Undecided (None) if the sandbox went away.
    """

    def __init__(self, runner: Runner, cases: Iterable[Case], preamble: str = "") -> None:
        """Learns the cases.

        Args:
            runner: where the program runs.
            cases: at least one.
            preamble: source before the program.
        """
        self._runner = runner
        self._cases = tuple(cases)
        self._preamble = preamble
        if not self._cases:
            raise ValueError("a program without tests cannot be judged")

    async def grade(self, answer: str, target: str) -> Grade:
        """The grade of the program in `answer`.

        Raises:
            SandboxError: no sandbox can be started.
        """
        source = program_in(answer)
        if source is None:
            return Grade(0.0, None, "no whole code block")
        score, reason = await self._tested(Program(f"{self._preamble}\n{source}"))
        return Grade(score, source, reason)

    async def _tested(self, program: Program) -> tuple[float | None, str]:
        async with self._runner.load(program, LIMITS) as ready:
            for number, case in enumerate(self._cases, 1):
                outcome = await ready.run(case.test)
                if outcome.end is End.LOST:
                    return None, "the sandbox went away"
                if fault := fault_of(case, outcome):
                    return 0.0, f"test {number} of {len(self._cases)}: {fault}"
        weakly = any(isinstance(c.test, Check) and not c.test.apart for c in self._cases)
        return 1.0, f"passes all {len(self._cases)} tests{WEAKLY if weakly else ''}"


def fault_of(case: Case, outcome: Outcome) -> str:
    """Why a case is not passed; empty if it is."""
    if outcome.end is not End.RETURNED:
        last = outcome.stderr.strip().rpartition("\n")[2]
        return f"{outcome.end}: {last}"[:SHOWN] if last else str(outcome.end)
    if isinstance(case.test, Script) and not same_output(str(case.expected), outcome.stdout):
        return "another output"
    if isinstance(case.test, Call) and not same_value(case.expected, outcome.value):
        return "another value"
    return ""


def same_value(expected: JSON, value: JSON) -> bool:
    """Whether two values are the same; `1.0` is `1`, but neither is `true`."""
    if isinstance(expected, list) and isinstance(value, list):
        return len(expected) == len(value) and all(map(same_value, expected, value))
    if isinstance(expected, dict) and isinstance(value, dict):
        shared = expected.keys() == value.keys()
        return shared and all(same_value(held, value[key]) for key, held in expected.items())
    return isinstance(expected, bool) == isinstance(value, bool) and expected == value


def same_output(expected: str, printed: str) -> bool:
    """Whether two outputs have the same lines: as texts without margins, else as numbers."""
    wanted, given = expected.strip().splitlines(), printed.strip().splitlines()
    return len(wanted) == len(given) and all(map(_same_line, wanted, given))


def _same_line(wanted: str, given: str) -> bool:
    wanted, given = wanted.strip(), given.strip()
    return wanted == given or _same_numbers(wanted.split(), given.split())


def _same_numbers(wanted: list[str], given: list[str]) -> bool:
    """Whether both are lists of numbers and equal: `1.0` is `1`."""
    try:
        return list(map(Decimal, wanted)) == list(map(Decimal, given))
    except InvalidOperation:
        return False


def script_cases(data: Any) -> tuple[Case, ...]:
    """Cases of programs that read and print: `{"tests": [{"input", "output"}]}`."""
    return tuple(Case(Script(test["input"]), test["output"]) for test in data["tests"])


def call_cases(data: Any) -> tuple[Case, ...]:
    """Cases of a function: as above and `"entry"`; one JSON value a line, an argument each."""
    return tuple(
        Case(
            Call(data["entry"], tuple(map(json.loads, test["input"].splitlines()))),
            json.loads(test["output"]),
        )
        for test in data["tests"]
    )


def check_cases(data: Any) -> tuple[Case, ...]:
    """The case of tests that raise: `{"tests"}`, source that follows the program.

    Also `"preamble"`, source before it, and `"entry"`, a name that the preamble only sketches.
    """
    code, preamble, entry = data["tests"], data.get("preamble", ""), data.get("entry", "")
    # A function that is to be inspected must be there itself, not only answer calls.
    apart = can_run_apart(code) and "import inspect" not in preamble
    return (Case(Check(code, preamble, entry, apart=apart)),)


def can_run_apart(code: str) -> bool:
    """Whether tests can run in another process than the program that they test.

    Only their own text decides, never what a program does. They cannot where they reach into the
    program's process: replace what it imports, look at its warnings, logs or figures, set its
    environment; nor where they load files in a form that runs code.
    """
    return _TOGETHER.search(code) is None
