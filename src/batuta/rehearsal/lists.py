"""Family: programs on lists that are really executed."""

from __future__ import annotations

import re
from random import Random

from batuta.rehearsal.grammar import Family, Layout, Style, chain, enroll
from batuta.rehearsal.numbers import LARGEST
from batuta.rehearsal.problem import Kind, Problem, Value, register, solve


def _list(value: Value) -> tuple[int, ...]:
    if isinstance(value, tuple):
        return value
    raise TypeError(f"not a list: {value!r}")


def _rotated(value: Value, by: int) -> tuple[int, ...]:
    items = _list(value)
    by = by % len(items) if items else 0
    return items[by:] + items[:by]


_LISTS = (
    Kind(
        "reverse",
        "code",
        (
            "reverse it",
            "turn the list around",
            "flip the order",
            "read it backwards",
            "put the items in opposite order",
        ),
        lambda v: _list(v)[::-1],
        (),
        ("sort", "sort down"),
    ),
    Kind(
        "sort",
        "code",
        (
            "sort it in ascending order",
            "put the smallest first",
            "sort ascending",
            "arrange it upwards",
            "order it from low to high",
        ),
        lambda v: tuple(sorted(_list(v))),
        (),
        ("sort down", "reverse"),
    ),
    Kind(
        "sort down",
        "code",
        (
            "sort it in descending order",
            "put the largest first",
            "sort descending",
            "arrange it downwards",
            "order it from high to low",
        ),
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
            "skip # items at the beginning",
            "delete the leading # items",
            "throw away # items at the start",
        ),
        lambda v, n: _list(v)[n:],
        ((2, 3),),
        ("drop last",),
    ),
    Kind(
        "drop last",
        "code",
        (
            "drop the last # items",
            "remove # items from the back",
            "cut # items at the tail",
            "delete the trailing # items",
            "throw away # items at the end",
        ),
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
            "rotate by # to the left",
            "let the first # items go last",
            "shift it cyclically to the left by #",
        ),
        _rotated,
        ((2, 4),),
        ("drop first",),
    ),
    Kind(
        "add each",
        "code",
        (
            "add # to each item",
            "raise every item by #",
            "increase each item by #",
            "plus # for each item",
            "let every item grow by #",
        ),
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
            "make each item # times as large",
            "times # for each item",
            "replace every item by # times itself",
        ),
        lambda v, n: tuple(x * n for x in _list(v)),
        ((2, 5),),
        ("add each",),
    ),
    Kind(
        "evens",
        "code",
        (
            "keep only the even items",
            "remove every odd item",
            "delete the odd items",
            "select the even items",
            "filter out what is odd",
        ),
        lambda v: tuple(x for x in _list(v) if x % 2 == 0),
        (),
        ("odds",),
    ),
    Kind(
        "odds",
        "code",
        (
            "keep only the odd items",
            "remove every even item",
            "delete the even items",
            "select the odd items",
            "filter out what is even",
        ),
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
            "square all items",
            "multiply each item by itself",
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
            "form the cumulative sums",
            "write the partial sums",
            "accumulate it from left to right",
        ),
        lambda v: tuple(sum(_list(v)[: i + 1]) for i in range(len(_list(v)))),
        (),
        ("squares",),
    ),
    Kind(
        "sum",
        "code",
        (
            "take the sum of the items",
            "add all items up",
            "sum the list",
            "compute the sum of all items",
            "total the items",
        ),
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
            "compute maximum minus minimum",
            "find the difference of largest and smallest",
            "take the gap between extremes",
        ),
        lambda v: max(_list(v)) - min(_list(v)),
        (),
        ("sum",),
        final=True,
    ),
)

register(_LISTS)


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
        if value is None or value == () or (isinstance(value, tuple) and max(value) > LARGEST):
            return None
    return Problem("lists", start, ops)


def _read_list(text: str) -> Value | None:
    found = re.fullmatch(r"\[(-?\d{1,9}(?:, ?-?\d{1,9}){0,31})\]", text)
    return tuple(int(item) for item in found[1].split(",")) if found else None


LISTS = enroll(
    Family(
        "lists",
        "code",
        (
            Style("Start with the list {start}. {steps} What is the result?"),
            Style("Run this program on {start}:\n{steps}\nWhat does it return?", Layout.LINES),
            Style("Given the list {start}, {steps}. What comes out?", Layout.THEN),
            Style("items = {start}; {steps}. Print the outcome.", Layout.SEMICOLONS),
            Style("Input: {start}. Pipeline: {steps}. What leaves the pipeline?", Layout.ARROWS),
            Style("Let xs be {start}. {steps} Show xs.", Layout.SENTENCES),
            Style("Cards lie in a row, {start}: {steps}. How do they lie now?", Layout.THEN),
            Style(
                "The script reads {start} and does this:\n{steps}\nWrite its output.",
                Layout.LINES,
            ),
            Style("Queue {start}; {steps}; done. What is in it?", Layout.SEMICOLONS),
            Style("Somebody hands you {start}, you {steps}. What do you hand back?", Layout.THEN),
            Style(
                "A function receives {start} and works as follows: {steps}. "
                "What value does it give back?",
                Layout.ARROWS,
            ),
            Style(
                "On the tape stands {start}. {steps} What stands there at the end?",
                Layout.SENTENCES,
            ),
        ),
        _draw_list,
        _read_list,
        lambda _, value: "list" if isinstance(value, tuple) else "integer",
    )
)
