"""Finds the tests that a question itself shows: its `assert` lines and its `>>>` examples.

These tests are public, so the engine may run an answer on them before returning it. A program that
passes them may still be wrong.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from batuta.errors import SandboxError
from batuta.lab.tasks.graders.code import CodeGrader, CodeRunner, check_cases
from batuta.lab.tasks.graders.code_extraction import parse_source
from batuta.lab.tasks.literals import UNREADABLE, read_literal

_EXAMPLE = re.compile(
    r"^[ \t]*(>>> .+(?:\n[ \t]*\.\.\. .*)*)\n"  # the call
    r"((?:(?![ \t]*(?:>>>|```|\"{3}|'{3}|$)).+(?:\n|\Z))+)",  # its result
    re.MULTILINE,
)
_IMPORT_LINE = re.compile(r"^(?:from\s+[\w.]+\s+)?import\s+.+$")


@dataclass(frozen=True, slots=True)
class QuestionTests:
    """The tests of a question."""

    code: str
    """Source that raises an error if a test fails."""
    imports: str
    """Import lines that the question also shows."""


@lru_cache(maxsize=512)
def find_question_tests(question: str) -> QuestionTests | None:
    """Return the tests that the question shows; None if there are none."""
    lines = [line.strip() for line in question.splitlines()]
    found = dict.fromkeys((*filter(_is_assertion, lines), *_example_assertions(question)))
    if not found:
        return None
    imports = dict.fromkeys(
        line for line in lines if _IMPORT_LINE.match(line) and parse_source(line)
    )
    return QuestionTests("\n".join(found) + "\n", "\n".join(imports) + "\n" if imports else "")


def _is_assertion(line: str) -> bool:
    """Return whether the line is a complete assertion about the result of a call."""
    if not line.startswith("assert ") or (tree := parse_source(line)) is None:
        return False
    return any(isinstance(node, ast.Call) for node in ast.walk(tree))


def _example_assertions(question: str) -> Iterator[str]:
    """Yield an assertion for each example with a literal as its result.

    `doctest` rejects a whole text if one example is indented inconsistently, as in many prompts.
    """
    for found in _EXAMPLE.finditer(question):
        source = "\n".join(line.strip()[4:] for line in found[1].splitlines()).strip()
        want = "\n".join(line.strip() for line in found[2].splitlines())
        try:
            called = ast.unparse(ast.parse(source, mode="eval"))  # without comments
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        # `print` returns None, whatever it prints
        if read_literal(want) is not UNREADABLE and not called.startswith("print("):
            yield f"assert ({called}) == ({want})"


@dataclass(frozen=True, slots=True)
class QuestionTestRunner:
    """Runs answers on the tests of their questions."""

    runner: CodeRunner
    """A sandbox that runs the programs."""

    async def __call__(self, question: str, answer: str) -> bool | None:
        """Return whether the program in the answer passes the tests that the question shows.

        Return None if it shows none, or if the sandbox could not run them.
        """
        tests = find_question_tests(question)
        if tests is None:
            return None
        cases = check_cases({"tests": tests.code, "preamble": tests.imports})
        try:
            found = await CodeGrader(self.runner, cases, tests.imports).grade(answer, "")
        except SandboxError:
            return None
        return None if found.score is None else found.score >= 0.5  # noqa: PLR2004 - 0 or 1
