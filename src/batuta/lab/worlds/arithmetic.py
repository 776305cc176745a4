"""Family: arithmetic in many steps."""

from __future__ import annotations

import re
from random import Random

from batuta.lab.worlds.grammar import QuestionFamily, draw_steps, register_family
from batuta.lab.worlds.problem import (
    Problem,
    StepRule,
    StepValue,
    register_steps,
    solve_problem,
)

_STEPS = register_steps(
    "arithmetic",
    int,
    StepRule("add", lambda v, n: v + n, ("subtract",), number=(3, 60)),
    StepRule("subtract", lambda v, n: v - n, ("add",), number=(3, 60)),
    StepRule("multiply", lambda v, n: v * n, ("add",), number=(2, 9)),
    StepRule("divide", lambda v, n: v // n, ("remainder",), number=(2, 9)),
    StepRule("remainder", lambda v, n: v % n, ("divide",), number=(11, 97)),
    StepRule("square", lambda v, _: v**2, ("double",)),
    StepRule("double", lambda v, _: v * 2, ("square",)),
)
CALCULATIONS = tuple(kind.name for kind in _STEPS)
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
        draw=_draw_arithmetic,
        read_start=_read_number,
        grader=lambda _problem, _value: "integer",
    )
)
