"""Grades programs: a sandbox runs their tests, and this process compares outputs and values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol, final

from batuta.core import Grade
from batuta.lab.tasks.graders.code_extraction import extract_program
from batuta.lab.tasks.graders.limits import MAX_SHOWN
from batuta.lab.tasks.graders.structured_data import is_same_value, is_within
from batuta.sandbox.program import (
    JSON,
    AssertionTest,
    CallTest,
    EndReason,
    Program,
    ProgramResult,
    ProgramTest,
    SandboxLimits,
    ScriptTest,
    parse_value,
)

LIMITS = SandboxLimits()
"""The sandbox's limits for each case."""

WEAK_RESULT_NOTE = "; weakly, since the tests ran in the program's own process"
"""Appended to the reason of a grade that the program could have forged."""

_NEEDS_SAME_PROCESS = re.compile(
    r"\b(?:patch|mock\w*|Mock|MagicMock|AsyncMock|mock_open|assertLogs|assertNoLogs|assertWarns\w*|"
    r"warnings|logging|gcf|gca|get_fignums|environ|putenv|chdir|argv|modules|stdin|__main__|"
    r"pickle|joblib|shelve|dill|marshal|load_model|import_module|signal|getsource|rcParams|"
    r"tracemalloc|gc|getrefcount)\b|\bsys\.path\b|"
    r"\b(?:plt|pyplot)\.(?:subplots?|figure|axes|gca|gcf|get_\w+|fignum_exists)\b"
)


_WITH_DECIMALS = re.compile(r"[.eE]")


class RunnableProgram(Protocol):
    """A program that is ready for tests."""

    async def run(self, test: ProgramTest) -> ProgramResult:
        """Run the test and return how it ended."""
        ...


class CodeRunner(Protocol):
    """Runs untrusted programs, as a `Sandbox` does."""

    def load(
        self, program: Program, limits: SandboxLimits
    ) -> AbstractAsyncContextManager[RunnableProgram]:
        """Yield the program, ready for one test after another; its processes end with the block."""
        ...


@dataclass(frozen=True, slots=True)
class CodeCase:
    """A test and its expected result."""

    test: ProgramTest
    expected: JSON = None
    """A script's output, or a call's value; None for assertions."""
    tolerance: float = 0.0
    """The relative or absolute error allowed for numbers with decimals."""


@final
class CodeGrader:
    """Scores 1 if the program of an answer (`extract_program`) passes every case, else 0.

    The cases after a failed case are not run. The grade is undecided (None) if the sandbox is lost.
    """

    def __init__(self, runner: CodeRunner, cases: Iterable[CodeCase], preamble: str = "") -> None:
        """Take the cases.

        Args:
            runner: where the program runs.
            cases: at least one.
            preamble: source before the program.

        Raises:
            ValueError: there is no case.
        """
        self._runner = runner
        self._cases = tuple(cases)
        self._preamble = preamble
        if not self._cases:
            raise ValueError("a program without tests cannot be judged")

    async def grade(self, answer: str, target: str) -> Grade:
        """Return the grade of the program in `answer`.

        Raises:
            SandboxError: no sandbox can be started.
        """
        source = extract_program(answer)
        if source is None:
            return Grade(0.0, None, "no complete code block")
        score, reason = await self._run_cases(Program(f"{self._preamble}\n{source}"))
        return Grade(score, source, reason)

    async def _run_cases(self, program: Program) -> tuple[float | None, str]:
        async with self._runner.load(program, LIMITS) as ready:
            for number, case in enumerate(self._cases, 1):
                outcome = await ready.run(case.test)
                if outcome.end is EndReason.LOST:
                    return None, "the sandbox was lost"
                if fault := case_fault(case, outcome):
                    return 0.0, f"test {number} of {len(self._cases)}: {fault}"
        weakly = any(isinstance(c.test, AssertionTest) and not c.test.separate for c in self._cases)
        return 1.0, f"passes all {len(self._cases)} tests{WEAK_RESULT_NOTE if weakly else ''}"


def case_fault(case: CodeCase, outcome: ProgramResult) -> str:
    """Return the reason why the outcome fails the case; empty if it passes."""
    if outcome.end is not EndReason.RETURNED:
        last = outcome.stderr.strip().rpartition("\n")[2]
        return f"{outcome.end}: {last}"[:MAX_SHOWN] if last else str(outcome.end)
    if isinstance(case.test, ScriptTest) and not is_same_output(
        str(case.expected), outcome.stdout, case.tolerance
    ):
        return "wrong output"
    if isinstance(case.test, CallTest) and not is_same_value(
        case.expected, outcome.value, case.tolerance
    ):
        return "wrong value"
    return ""


def is_same_output(expected: str, printed: str, tolerance: float = 0.0) -> bool:
    """Return whether two outputs have the same lines, as stripped strings or as numbers.

    A number with decimals may be off by the tolerance, relatively or absolutely.
    """
    wanted, given = expected.strip().splitlines(), printed.strip().splitlines()
    return len(wanted) == len(given) and all(
        _is_same_line(one.strip(), other.strip(), tolerance)
        for one, other in zip(wanted, given, strict=True)
    )


def _is_same_line(wanted: str, given: str, tolerance: float) -> bool:
    if wanted == given:
        return True
    words, others = wanted.split(), given.split()
    if not tolerance:
        return _is_same_numbers(words, others)
    return len(words) == len(others) and all(
        one == other or _is_same_numbers([one], [other]) or _is_near(one, other, tolerance)
        for one, other in zip(words, others, strict=True)
    )


def _is_same_numbers(wanted: list[str], given: list[str]) -> bool:
    """Return whether both are lists of equal numbers; `1.0` equals `1`."""
    try:
        return list(map(Decimal, wanted)) == list(map(Decimal, given))
    except InvalidOperation:
        return False


def _is_near(wanted: str, given: str, tolerance: float) -> bool:
    """Return whether both are numbers, one with decimals, that differ by at most the tolerance."""
    if not (_WITH_DECIMALS.search(wanted) or _WITH_DECIMALS.search(given)):
        return False
    try:
        numbers = float(wanted), float(given)
    except ValueError:
        return False
    return all(map(math.isfinite, numbers)) and is_within(*numbers, tolerance)


def script_cases(data: Any) -> tuple[CodeCase, ...]:
    """Return the cases of a program that reads and prints: `{"tests": [{"input", "output"}]}`.

    `"tolerance"` is the relative or absolute error that numbers with decimals may have.

    Raises:
        ValueError: as for `read_tolerance`.
        KeyError: a field is missing.
    """
    allowed = read_tolerance(data)
    return tuple(
        CodeCase(ScriptTest(test["input"]), test["output"], allowed) for test in data["tests"]
    )


def call_cases(data: Any) -> tuple[CodeCase, ...]:
    """Return the cases of a function: as `script_cases`, with `"entry"` and an argument per line.

    Raises:
        ValueError: as for `read_tolerance`, or an output is not JSON.
        RecursionError: an output is nested too deeply.
        KeyError: a field is missing.
    """
    allowed = read_tolerance(data)
    return tuple(
        CodeCase(
            CallTest(data["entry"], tuple(test["input"].splitlines())),
            parse_value(test["output"]),
            allowed,
        )
        for test in data["tests"]
    )


def read_tolerance(data: Any) -> float:
    """Return the error that a task allows numbers with decimals; 0 if it states none.

    Raises:
        ValueError: the error is not a number from 0 to below 1.
    """
    allowed = data.get("tolerance") or 0.0
    if isinstance(allowed, bool) or not isinstance(allowed, int | float) or not 0 <= allowed < 1:
        raise ValueError(f"the tolerance {allowed!r} is not a number from 0 to below 1")
    return float(allowed)


def check_cases(data: Any) -> tuple[CodeCase, ...]:
    """Return the case of assertion tests: `"tests"` is source that follows the program.

    `"preamble"` is source before the program; `"entry"` names a function that the preamble only
    declares.
    """
    code, preamble, entry = data["tests"], data.get("preamble", ""), data.get("entry", "")
    # `inspect` needs the function itself in the same process, not a stub that forwards calls.
    separate = can_run_separately(code) and "import inspect" not in preamble
    return (CodeCase(AssertionTest(code=code, preamble=preamble, entry=entry, separate=separate)),)


def can_run_separately(code: str) -> bool:
    """Return whether tests can run in another process than the program under test.

    Only the text of the tests decides, not the program. Tests need the program's process if they
    mock its imports, inspect its warnings, logs, figures, source or memory, use signals, set its
    environment, or load files in a format that can run code.
    """
    return _NEEDS_SAME_PROCESS.search(code) is None
