"""Family: programs on lists that are really executed."""

from __future__ import annotations

import re
from random import Random

from batuta.lab.worlds.arithmetic import LARGEST_NUMBER
from batuta.lab.worlds.grammar import (
    QuestionFamily,
    QuestionStyle,
    StepLayout,
    draw_steps,
    register_family,
)
from batuta.lab.worlds.problem import Problem, StepKind, StepValue, register_kinds, solve_problem


def _require_list(value: StepValue) -> tuple[int, ...]:
    if isinstance(value, tuple):
        return value
    raise TypeError(f"not a list: {value!r}")


def _rotate_left(value: StepValue, by: int) -> tuple[int, ...]:
    items = _require_list(value)
    by = by % len(items) if items else 0
    return items[by:] + items[:by]


_LIST_KINDS = (
    StepKind(
        name="reverse",
        skill="code",
        phrases=(
            "reverse it",
            "turn the list around",
            "flip the order",
            "read it backwards",
            "put the items in opposite order",
        ),
        apply=lambda v: _require_list(v)[::-1],
        ranges=(),
        confusable_with=("sort", "sort down"),
    ),
    StepKind(
        name="sort",
        skill="code",
        phrases=(
            "sort it in ascending order",
            "put the smallest first",
            "sort ascending",
            "arrange it upwards",
            "order it from low to high",
        ),
        apply=lambda v: tuple(sorted(_require_list(v))),
        ranges=(),
        confusable_with=("sort down", "reverse"),
    ),
    StepKind(
        name="sort down",
        skill="code",
        phrases=(
            "sort it in descending order",
            "put the largest first",
            "sort descending",
            "arrange it downwards",
            "order it from high to low",
        ),
        apply=lambda v: tuple(sorted(_require_list(v), reverse=True)),
        ranges=(),
        confusable_with=("sort", "reverse"),
    ),
    StepKind(
        name="drop first",
        skill="code",
        phrases=(
            "drop the first # items",
            "remove # items from the front",
            "skip # items at the beginning",
            "delete the leading # items",
            "throw away # items at the start",
        ),
        apply=lambda v, n: _require_list(v)[n:],
        ranges=((2, 3),),
        confusable_with=("drop last",),
    ),
    StepKind(
        name="drop last",
        skill="code",
        phrases=(
            "drop the last # items",
            "remove # items from the back",
            "cut # items at the tail",
            "delete the trailing # items",
            "throw away # items at the end",
        ),
        apply=lambda v, n: _require_list(v)[: max(0, len(_require_list(v)) - n)],
        ranges=((2, 3),),
        confusable_with=("drop first",),
    ),
    StepKind(
        name="rotate",
        skill="code",
        phrases=(
            "rotate it left by #",
            "move the first # items to the back",
            "rotate by # to the left",
            "let the first # items go last",
            "shift it cyclically to the left by #",
        ),
        apply=_rotate_left,
        ranges=((2, 4),),
        confusable_with=("drop first",),
    ),
    StepKind(
        name="add each",
        skill="code",
        phrases=(
            "add # to each item",
            "raise every item by #",
            "increase each item by #",
            "plus # for each item",
            "let every item grow by #",
        ),
        apply=lambda v, n: tuple(x + n for x in _require_list(v)),
        ranges=((2, 12),),
        confusable_with=("times each",),
    ),
    StepKind(
        name="times each",
        skill="code",
        phrases=(
            "multiply each item by #",
            "scale every item by #",
            "make each item # times as large",
            "times # for each item",
            "replace every item by # times itself",
        ),
        apply=lambda v, n: tuple(x * n for x in _require_list(v)),
        ranges=((2, 5),),
        confusable_with=("add each",),
    ),
    StepKind(
        name="evens",
        skill="code",
        phrases=(
            "keep only the even items",
            "remove every odd item",
            "delete the odd items",
            "select the even items",
            "filter out what is odd",
        ),
        apply=lambda v: tuple(x for x in _require_list(v) if x % 2 == 0),
        ranges=(),
        confusable_with=("odds",),
    ),
    StepKind(
        name="odds",
        skill="code",
        phrases=(
            "keep only the odd items",
            "remove every even item",
            "delete the even items",
            "select the odd items",
            "filter out what is even",
        ),
        apply=lambda v: tuple(x for x in _require_list(v) if x % 2),
        ranges=(),
        confusable_with=("evens",),
    ),
    StepKind(
        name="squares",
        skill="code",
        phrases=(
            "square each item",
            "replace each item by its square",
            "square all items",
            "multiply each item by itself",
            "raise each item to the second power",
        ),
        apply=lambda v: tuple(x * x for x in _require_list(v)),
        ranges=(),
        confusable_with=("running sums",),
    ),
    StepKind(
        name="running sums",
        skill="code",
        phrases=(
            "replace each item by the running total",
            "turn it into its prefix sums",
            "form the cumulative sums",
            "write the partial sums",
            "accumulate it from left to right",
        ),
        apply=lambda v: tuple(sum(_require_list(v)[: i + 1]) for i in range(len(_require_list(v)))),
        ranges=(),
        confusable_with=("squares",),
    ),
    StepKind(
        name="sum",
        skill="code",
        phrases=(
            "take the sum of the items",
            "add all items up",
            "sum the list",
            "compute the sum of all items",
            "total the items",
        ),
        apply=lambda v: sum(_require_list(v)),
        ranges=(),
        confusable_with=("spread",),
        is_final=True,
    ),
    StepKind(
        name="spread",
        skill="code",
        phrases=(
            "subtract the smallest item from the largest",
            "take the range of the items",
            "compute maximum minus minimum",
            "find the difference of largest and smallest",
            "take the gap between extremes",
        ),
        apply=lambda v: max(_require_list(v)) - min(_require_list(v)),
        ranges=(),
        confusable_with=("sum",),
        is_final=True,
    ),
)

register_kinds(_LIST_KINDS)


def _draw_list(rng: Random, difficulty: int) -> Problem | None:
    start = tuple(rng.randint(1, 20) for _ in range(rng.randint(6, 9)))
    last = rng.choice([kind.name for kind in _LIST_KINDS if kind.is_final])
    middle = [kind.name for kind in _LIST_KINDS if not kind.is_final]
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
        styles=(
            QuestionStyle("Start with the list {start}. {steps} What is the result?"),
            QuestionStyle(
                "Run this program on {start}:\n{steps}\nWhat does it return?", StepLayout.LINES
            ),
            QuestionStyle("Given the list {start}, {steps}. What comes out?", StepLayout.THEN),
            QuestionStyle("items = {start}; {steps}. Print the outcome.", StepLayout.SEMICOLONS),
            QuestionStyle(
                "Input: {start}. Pipeline: {steps}. What leaves the pipeline?", StepLayout.ARROWS
            ),
            QuestionStyle("Let xs be {start}. {steps} Show xs.", StepLayout.SENTENCES),
            QuestionStyle(
                "Cards lie in a row, {start}: {steps}. How do they lie now?", StepLayout.THEN
            ),
            QuestionStyle(
                "The script reads {start} and does this:\n{steps}\nWrite its output.",
                StepLayout.LINES,
            ),
            QuestionStyle("Queue {start}; {steps}; done. What is in it?", StepLayout.SEMICOLONS),
            QuestionStyle(
                "Somebody hands you {start}, you {steps}. What do you hand back?", StepLayout.THEN
            ),
            QuestionStyle(
                "A function receives {start} and works as follows: {steps}. "
                "What value does it give back?",
                StepLayout.ARROWS,
            ),
            QuestionStyle(
                "On the tape stands {start}. {steps} What stands there at the end?",
                StepLayout.SENTENCES,
            ),
        ),
        draw=_draw_list,
        read_start=_read_list,
        grader=lambda _, value: "list" if isinstance(value, tuple) else "integer",
    )
)
