"""Family: programs on lists that are really executed."""

from __future__ import annotations

import re
from itertools import accumulate
from random import Random

from batuta.lab.worlds.arithmetic import LARGEST_NUMBER
from batuta.lab.worlds.grammar import QuestionFamily, draw_steps, register_family
from batuta.lab.worlds.problem import (
    Problem,
    StepRule,
    StepValue,
    register_steps,
    solve_problem,
)

Items = tuple[int, ...]


def _rotate_left(items: Items, by: int) -> Items:
    by = by % len(items) if items else 0
    return items[by:] + items[:by]


_STEPS = register_steps(
    "code",
    tuple,
    StepRule("reverse", lambda v, _: v[::-1], ("sort", "sort down")),
    StepRule("sort", lambda v, _: tuple(sorted(v)), ("sort down", "reverse")),
    StepRule("sort down", lambda v, _: tuple(sorted(v, reverse=True)), ("sort", "reverse")),
    StepRule("drop first", lambda v, n: v[n:], ("drop last",), number=(2, 3)),
    StepRule("drop last", lambda v, n: v[: max(0, len(v) - n)], ("drop first",), number=(2, 3)),
    StepRule("rotate", _rotate_left, ("drop first",), number=(2, 4)),
    StepRule("add each", lambda v, n: tuple(x + n for x in v), ("times each",), number=(2, 12)),
    StepRule("times each", lambda v, n: tuple(x * n for x in v), ("add each",), number=(2, 5)),
    StepRule("evens", lambda v, _: tuple(x for x in v if x % 2 == 0), ("odds",)),
    StepRule("odds", lambda v, _: tuple(x for x in v if x % 2), ("evens",)),
    StepRule("squares", lambda v, _: tuple(x * x for x in v), ("running sums",)),
    StepRule("running sums", lambda v, _: tuple(accumulate(v)), ("squares",)),
    StepRule("sum", lambda v, _: sum(v), ("spread",)),
    StepRule("spread", lambda v, _: max(v) - min(v), ("sum",)),
    final=("sum", "spread"),
)


def _draw_list(rng: Random, difficulty: int) -> Problem | None:
    start = tuple(rng.randint(1, 20) for _ in range(rng.randint(6, 9)))
    last = rng.choice([kind.name for kind in _STEPS if kind.is_final])
    middle = [kind.name for kind in _STEPS if not kind.is_final]
    ends = difficulty > 1 and rng.random() < 0.5  # noqa: PLR2004  (half of them end in a number)
    ops = draw_steps(rng, middle, difficulty - ends)
    if ends:
        ops += draw_steps(rng, [last], 1)
    for length in range(1, difficulty + 1):
        value = solve_problem(Problem("lists", start, ops[:length]))
        if (
            value is None
            or value == ()
            or (isinstance(value, tuple) and max(value) > LARGEST_NUMBER)
        ):
            return None
    return Problem("lists", start, ops)


def _read_list(text: str) -> StepValue | None:
    found = re.fullmatch(r"\[(-?\d{1,9}(?:, ?-?\d{1,9}){0,31})\]", text)
    return tuple(int(item) for item in found[1].split(",")) if found else None


LISTS_FAMILY = register_family(
    QuestionFamily(
        name="lists",
        skill="code",
        draw=_draw_list,
        read_start=_read_list,
        grader=lambda _, value: "list" if isinstance(value, tuple) else "integer",
    )
)
