"""Family: arithmetic in many steps."""

from __future__ import annotations

import re
from random import Random

from batuta.rehearsal.grammar import Family, Layout, Style, chain, enroll
from batuta.rehearsal.problem import Kind, Problem, Value, register, solve


def _int(value: Value) -> int:
    if isinstance(value, int):
        return value
    raise TypeError(f"not a number: {value!r}")


_ARITHMETIC = (
    Kind(
        "add",
        "arithmetic",
        ("add #", "increase it by #", "plus #", "add on another #", "put # on top"),
        lambda v, n: _int(v) + n,
        ((3, 60),),
        ("subtract",),
    ),
    Kind(
        "subtract",
        "arithmetic",
        ("subtract #", "decrease it by #", "minus #", "reduce it by #", "take # off"),
        lambda v, n: _int(v) - n,
        ((3, 60),),
        ("add",),
    ),
    Kind(
        "multiply",
        "arithmetic",
        (
            "multiply by #",
            "make it # times as large",
            "times #",
            "enlarge it by a factor of #",
            "take # times that",
        ),
        lambda v, n: _int(v) * n,
        ((2, 9),),
        ("add",),
    ),
    Kind(
        "divide",
        "arithmetic",
        (
            "divide by # and drop the remainder",
            "split it by # and round down",
            "divide by # without the remainder",
            "do an integer division by #",
            "take the whole part of a division by #",
        ),
        lambda v, n: _int(v) // n,
        ((2, 9),),
        ("remainder",),
    ),
    Kind(
        "remainder",
        "arithmetic",
        (
            "keep only the remainder of a division by #",
            "reduce it modulo #",
            "mod #",
            "divide by # and keep the remainder only",
            "leave what is over after a division by #",
        ),
        lambda v, n: _int(v) % n,
        ((11, 97),),
        ("divide",),
    ),
    Kind(
        "square",
        "arithmetic",
        (
            "square it",
            "multiply it by itself",
            "replace it by its square",
            "form its square",
            "raise it to the second power",
        ),
        lambda v: _int(v) ** 2,
        (),
        ("double",),
    ),
    Kind(
        "double",
        "arithmetic",
        ("double it", "add it to itself", "make it twice as large", "twice that", "take two of it"),
        lambda v: _int(v) * 2,
        (),
        ("square",),
    ),
)

register(_ARITHMETIC)

CALCULATIONS = tuple(kind.name for kind in _ARITHMETIC)
"""The kinds of arithmetic steps."""

LARGEST = 100_000
"""Number that one can follow."""


def _draw_arithmetic(rng: Random, difficulty: int) -> Problem | None:
    problem = Problem("arithmetic", rng.randint(5, 60), chain(rng, CALCULATIONS, difficulty))
    return tame(problem)


def tame(problem: Problem) -> Problem | None:
    """The problem if every number on its way is of a size that one can follow."""
    for length in range(1, len(problem.ops) + 1):
        value = solve(Problem(problem.family, problem.start, problem.ops[:length]))
        if not isinstance(value, int | str) or (isinstance(value, int) and abs(value) > LARGEST):
            return None
    return problem


def _read_number(text: str) -> Value | None:
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else None


ARITHMETIC = enroll(
    Family(
        "arithmetic",
        "arithmetic",
        (
            Style("Start with {start}. {steps} What number do you get?"),
            Style("Take {start}, then {steps}. What is the result?", Layout.THEN),
            Style("Compute the result: begin at {start}; {steps}.", Layout.SEMICOLONS),
            Style(
                "Begin with the number {start} and follow these steps:\n{steps}\n"
                "What is the final number?",
                Layout.LINES,
            ),
            Style("The display says {start}: {steps}. Which number is it now?", Layout.ARROWS),
            Style("Suppose n is {start}. {steps} Tell me n.", Layout.SENTENCES),
            Style("With {start} in hand: {steps}. How much is it in the end?", Layout.SEMICOLONS),
            Style("Sum in progress, so far {start}.\n{steps}\nGive the figure.", Layout.LINES),
            Style("If x = {start}, {steps}. Then x is what?", Layout.THEN),
            Style("Someone has {start} coins. {steps} How many are counted?"),
            Style(
                "My calculator shows {start}. These keys come next: {steps}. "
                "What does it show in the end?",
                Layout.ARROWS,
            ),
            Style(
                "A counter stands at {start}. {steps} Where does the counter stand now?",
                Layout.SENTENCES,
            ),
        ),
        _draw_arithmetic,
        _read_number,
        lambda _problem, _value: "integer",
    )
)
