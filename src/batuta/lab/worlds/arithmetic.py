"""Family: arithmetic in many steps."""

from __future__ import annotations

import re
from random import Random

from batuta.lab.worlds.grammar import (
    QuestionFamily,
    QuestionStyle,
    StepLayout,
    draw_steps,
    register_family,
)
from batuta.lab.worlds.problem import Problem, StepKind, StepValue, register_kinds, solve_problem


def _require_int(value: StepValue) -> int:
    if isinstance(value, int):
        return value
    raise TypeError(f"not a number: {value!r}")


_ARITHMETIC_KINDS = (
    StepKind(
        name="add",
        skill="arithmetic",
        phrases=("add #", "increase it by #", "plus #", "add on another #", "put # on top"),
        apply=lambda v, n: _require_int(v) + n,
        ranges=((3, 60),),
        confusable_with=("subtract",),
    ),
    StepKind(
        name="subtract",
        skill="arithmetic",
        phrases=("subtract #", "decrease it by #", "minus #", "reduce it by #", "take # off"),
        apply=lambda v, n: _require_int(v) - n,
        ranges=((3, 60),),
        confusable_with=("add",),
    ),
    StepKind(
        name="multiply",
        skill="arithmetic",
        phrases=(
            "multiply by #",
            "make it # times as large",
            "times #",
            "enlarge it by a factor of #",
            "take # times that",
        ),
        apply=lambda v, n: _require_int(v) * n,
        ranges=((2, 9),),
        confusable_with=("add",),
    ),
    StepKind(
        name="divide",
        skill="arithmetic",
        phrases=(
            "divide by # and drop the remainder",
            "split it by # and round down",
            "divide by # without the remainder",
            "do an integer division by #",
            "take the whole part of a division by #",
        ),
        apply=lambda v, n: _require_int(v) // n,
        ranges=((2, 9),),
        confusable_with=("remainder",),
    ),
    StepKind(
        name="remainder",
        skill="arithmetic",
        phrases=(
            "keep only the remainder of a division by #",
            "reduce it modulo #",
            "mod #",
            "divide by # and keep the remainder only",
            "leave what is over after a division by #",
        ),
        apply=lambda v, n: _require_int(v) % n,
        ranges=((11, 97),),
        confusable_with=("divide",),
    ),
    StepKind(
        name="square",
        skill="arithmetic",
        phrases=(
            "square it",
            "multiply it by itself",
            "replace it by its square",
            "form its square",
            "raise it to the second power",
        ),
        apply=lambda v: _require_int(v) ** 2,
        ranges=(),
        confusable_with=("double",),
    ),
    StepKind(
        name="double",
        skill="arithmetic",
        phrases=(
            "double it",
            "add it to itself",
            "make it twice as large",
            "twice that",
            "take two of it",
        ),
        apply=lambda v: _require_int(v) * 2,
        ranges=(),
        confusable_with=("square",),
    ),
)

register_kinds(_ARITHMETIC_KINDS)

CALCULATIONS = tuple(kind.name for kind in _ARITHMETIC_KINDS)
"""The kinds of arithmetic steps."""

LARGEST_NUMBER = 100_000
"""Number that one can follow."""


def _draw_arithmetic(rng: Random, difficulty: int) -> Problem | None:
    problem = Problem("arithmetic", rng.randint(5, 60), draw_steps(rng, CALCULATIONS, difficulty))
    return keep_if_bounded(problem)


def keep_if_bounded(problem: Problem) -> Problem | None:
    """Return the problem if every number on its way is of a size that one can follow."""
    for length in range(1, len(problem.ops) + 1):
        value = solve_problem(Problem(problem.family, problem.start, problem.ops[:length]))
        if not isinstance(value, int | str) or (
            isinstance(value, int) and abs(value) > LARGEST_NUMBER
        ):
            return None
    return problem


def _read_number(text: str) -> StepValue | None:
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else None


ARITHMETIC_FAMILY = register_family(
    QuestionFamily(
        name="arithmetic",
        skill="arithmetic",
        styles=(
            QuestionStyle("Start with {start}. {steps} What number do you get?"),
            QuestionStyle("Take {start}, then {steps}. What is the result?", StepLayout.THEN),
            QuestionStyle("Compute the result: begin at {start}; {steps}.", StepLayout.SEMICOLONS),
            QuestionStyle(
                "Begin with the number {start} and follow these steps:\n{steps}\n"
                "What is the final number?",
                StepLayout.LINES,
            ),
            QuestionStyle(
                "The display says {start}: {steps}. Which number is it now?", StepLayout.ARROWS
            ),
            QuestionStyle("Suppose n is {start}. {steps} Tell me n.", StepLayout.SENTENCES),
            QuestionStyle(
                "With {start} in hand: {steps}. How much is it in the end?", StepLayout.SEMICOLONS
            ),
            QuestionStyle(
                "Sum in progress, so far {start}.\n{steps}\nGive the figure.", StepLayout.LINES
            ),
            QuestionStyle("If x = {start}, {steps}. Then x is what?", StepLayout.THEN),
            QuestionStyle("Someone has {start} coins. {steps} How many are counted?"),
            QuestionStyle(
                "My calculator shows {start}. These keys come next: {steps}. "
                "What does it show in the end?",
                StepLayout.ARROWS,
            ),
            QuestionStyle(
                "A counter stands at {start}. {steps} Where does the counter stand now?",
                StepLayout.SENTENCES,
            ),
        ),
        draw=_draw_arithmetic,
        read_start=_read_number,
        grader=lambda _problem, _value: "integer",
    )
)
