"""Families: arithmetic in many steps, and programs on lists that are really executed."""

from __future__ import annotations

import re
from random import Random

from batuta.rehearsal.grammar import Family, Layout, Style, chain, enroll
from batuta.rehearsal.problem import Kind, Problem, Value, register, solve


def _int(value: Value) -> int:
    if isinstance(value, int):
        return value
    raise TypeError(f"not a number: {value!r}")


def _list(value: Value) -> tuple[int, ...]:
    if isinstance(value, tuple):
        return value
    raise TypeError(f"not a list: {value!r}")


def _rotated(value: Value, by: int) -> tuple[int, ...]:
    items = _list(value)
    by = by % len(items) if items else 0
    return items[by:] + items[:by]


_ARITHMETIC = (
    Kind(
        "add",
        "arithmetic",
        ("add #", "increase it by #", "put # on top"),
        lambda v, n: _int(v) + n,
        ((3, 60),),
        ("subtract",),
    ),
    Kind(
        "subtract",
        "arithmetic",
        ("subtract #", "decrease it by #", "take # off"),
        lambda v, n: _int(v) - n,
        ((3, 60),),
        ("add",),
    ),
    Kind(
        "multiply",
        "arithmetic",
        ("multiply by #", "make it # times as large", "take # times that"),
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
            "leave what is over after a division by #",
        ),
        lambda v, n: _int(v) % n,
        ((11, 97),),
        ("divide",),
    ),
    Kind(
        "square",
        "arithmetic",
        ("square it", "multiply it by itself", "raise it to the second power"),
        lambda v: _int(v) ** 2,
        (),
        ("double",),
    ),
    Kind(
        "double",
        "arithmetic",
        ("double it", "add it to itself", "take two of it"),
        lambda v: _int(v) * 2,
        (),
        ("square",),
    ),
)

_LISTS = (
    Kind(
        "reverse",
        "code",
        ("reverse it", "turn the list around", "put the items in opposite order"),
        lambda v: _list(v)[::-1],
        (),
        ("sort", "sort down"),
    ),
    Kind(
        "sort",
        "code",
        ("sort it in ascending order", "put the smallest first", "order it from low to high"),
        lambda v: tuple(sorted(_list(v))),
        (),
        ("sort down", "reverse"),
    ),
    Kind(
        "sort down",
        "code",
        ("sort it in descending order", "put the largest first", "order it from high to low"),
        lambda v: tuple(sorted(_list(v), reverse=True)),
        (),
        ("sort", "reverse"),
    ),
    Kind(
        "drop first",
        "code",
        (
            "drop the first # items",
            "remove # items from the front",
            "throw away # items at the start",
        ),
        lambda v, n: _list(v)[n:],
        ((2, 3),),
        ("drop last",),
    ),
    Kind(
        "drop last",
        "code",
        ("drop the last # items", "remove # items from the back", "throw away # items at the end"),
        lambda v, n: _list(v)[: max(0, len(_list(v)) - n)],
        ((2, 3),),
        ("drop first",),
    ),
    Kind(
        "rotate",
        "code",
        (
            "rotate it left by #",
            "move the first # items to the back",
            "shift it cyclically to the left by #",
        ),
        _rotated,
        ((2, 4),),
        ("drop first",),
    ),
    Kind(
        "add each",
        "code",
        ("add # to each item", "raise every item by #", "let every item grow by #"),
        lambda v, n: tuple(x + n for x in _list(v)),
        ((2, 12),),
        ("times each",),
    ),
    Kind(
        "times each",
        "code",
        (
            "multiply each item by #",
            "scale every item by #",
            "replace every item by # times itself",
        ),
        lambda v, n: tuple(x * n for x in _list(v)),
        ((2, 5),),
        ("add each",),
    ),
    Kind(
        "evens",
        "code",
        ("keep only the even items", "remove every odd item", "filter out what is odd"),
        lambda v: tuple(x for x in _list(v) if x % 2 == 0),
        (),
        ("odds",),
    ),
    Kind(
        "odds",
        "code",
        ("keep only the odd items", "remove every even item", "filter out what is even"),
        lambda v: tuple(x for x in _list(v) if x % 2),
        (),
        ("evens",),
    ),
    Kind(
        "squares",
        "code",
        (
            "square each item",
            "replace each item by its square",
            "raise each item to the second power",
        ),
        lambda v: tuple(x * x for x in _list(v)),
        (),
        ("running sums",),
    ),
    Kind(
        "running sums",
        "code",
        (
            "replace each item by the running total",
            "turn it into its prefix sums",
            "accumulate it from left to right",
        ),
        lambda v: tuple(sum(_list(v)[: i + 1]) for i in range(len(_list(v)))),
        (),
        ("squares",),
    ),
    Kind(
        "sum",
        "code",
        ("take the sum of the items", "add all items up", "total the items"),
        lambda v: sum(_list(v)),
        (),
        ("spread",),
        final=True,
    ),
    Kind(
        "spread",
        "code",
        (
            "subtract the smallest item from the largest",
            "take the range of the items",
            "take the gap between extremes",
        ),
        lambda v: max(_list(v)) - min(_list(v)),
        (),
        ("sum",),
        final=True,
    ),
)

register(_ARITHMETIC)
register(_LISTS)

CALCULATIONS = tuple(kind.name for kind in _ARITHMETIC)
"""The kinds of arithmetic steps."""

_LARGEST = 100_000


def _draw_arithmetic(rng: Random, difficulty: int) -> Problem | None:
    problem = Problem("arithmetic", rng.randint(5, 60), chain(rng, CALCULATIONS, difficulty))
    return tame(problem)


def tame(problem: Problem) -> Problem | None:
    """The problem if every number on its way is of a size that one can follow."""
    for length in range(1, len(problem.ops) + 1):
        value = solve(Problem(problem.family, problem.start, problem.ops[:length]))
        if not isinstance(value, int | str) or (isinstance(value, int) and abs(value) > _LARGEST):
            return None
    return problem


def _draw_list(rng: Random, difficulty: int) -> Problem | None:
    start = tuple(rng.randint(1, 20) for _ in range(rng.randint(6, 9)))
    last = rng.choice([kind.name for kind in _LISTS if kind.final])
    middle = [kind.name for kind in _LISTS if not kind.final]
    ends = difficulty > 1 and rng.random() < 0.5  # noqa: PLR2004  (half of them end in a number)
    ops = chain(rng, middle, difficulty - ends)
    if ends:
        ops += chain(rng, [last], 1)
    for length in range(1, difficulty + 1):
        value = solve(Problem("lists", start, ops[:length]))
        if value is None or value == () or (isinstance(value, tuple) and max(value) > _LARGEST):
            return None
    return Problem("lists", start, ops)


def _read_number(text: str) -> Value | None:
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else None


def _read_list(text: str) -> Value | None:
    found = re.fullmatch(r"\[(-?\d{1,9}(?:, ?-?\d{1,9}){0,31})\]", text)
    return tuple(int(item) for item in found[1].split(",")) if found else None


ARITHMETIC = enroll(
    Family(
        "arithmetic",
        "arithmetic",
        (
            Style("Start with {start}. {steps} What number do you get?"),
            Style("Take {start}, then {steps}. What is the result?", Layout.THEN, 1),
            Style("Compute the result: begin at {start}; {steps}.", Layout.SEMICOLONS),
            Style(
                "Begin with the number {start} and follow these steps:\n{steps}\n"
                "What is the final number?",
                Layout.LINES,
                1,
            ),
            Style("The display says {start}: {steps}. Which number is it now?", Layout.ARROWS),
            Style("Suppose n is {start}. {steps} Tell me n.", Layout.SENTENCES, 1),
            Style(
                "With {start} in hand: {steps}. How much is it in the end?", Layout.SEMICOLONS, 1
            ),
            Style("Sum in progress, so far {start}.\n{steps}\nGive the figure.", Layout.LINES),
            Style("If x = {start}, {steps}. Then x is what?", Layout.THEN),
            Style("Someone has {start} coins. {steps} How many are counted?"),
            Style(
                "My calculator shows {start}. These keys come next: {steps}. "
                "What does it show in the end?",
                Layout.ARROWS,
                2,
            ),
            Style(
                "A counter stands at {start}. {steps} Where does the counter stand now?",
                Layout.SENTENCES,
                2,
            ),
        ),
        _draw_arithmetic,
        _read_number,
        lambda _problem, _value: "integer",
    )
)

LISTS = enroll(
    Family(
        "lists",
        "code",
        (
            Style("Start with the list {start}. {steps} What is the result?"),
            Style("Run this program on {start}:\n{steps}\nWhat does it return?", Layout.LINES),
            Style("Given the list {start}, {steps}. What comes out?", Layout.THEN, 1),
            Style("items = {start}; {steps}. Print the outcome.", Layout.SEMICOLONS, 1),
            Style("Input: {start}. Pipeline: {steps}. What leaves the pipeline?", Layout.ARROWS),
            Style("Let xs be {start}. {steps} Show xs.", Layout.SENTENCES, 1),
            Style("Cards lie in a row, {start}: {steps}. How do they lie now?", Layout.THEN),
            Style(
                "The script reads {start} and does this:\n{steps}\nWrite its output.",
                Layout.LINES,
                1,
            ),
            Style("Queue {start}; {steps}; done. What is in it?", Layout.SEMICOLONS),
            Style(
                "Somebody hands you {start}, you {steps}. What do you hand back?", Layout.THEN, 1
            ),
            Style(
                "A function receives {start} and works as follows: {steps}. "
                "What value does it give back?",
                Layout.ARROWS,
                2,
            ),
            Style(
                "On the tape stands {start}. {steps} What stands there at the end?",
                Layout.SENTENCES,
                2,
            ),
        ),
        _draw_list,
        _read_list,
        lambda _, value: "list" if isinstance(value, tuple) else "integer",
    )
)
