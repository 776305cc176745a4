"""The families of questions: arithmetic, dates and units, facts, lists and texts.

Chains of facts that end in arithmetic are the held-out family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from itertools import accumulate
from random import Random

from batuta.lab.worlds.grammar import QuestionFamily, draw_steps, register_family
from batuta.lab.worlds.knowledge_base import FACTS, KINDS_OF, THINGS, relations_of
from batuta.lab.worlds.problem import (
    WEEKDAYS,
    Problem,
    ProblemStep,
    StepRule,
    StepValue,
    Transform,
    is_thing,
    read_value,
    register_steps,
    solve_problem,
)
from batuta.lab.worlds.words import WORDS

_ARITHMETIC_STEPS = register_steps(
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
CALCULATIONS = tuple(kind.name for kind in _ARITHMETIC_STEPS)
"""The kinds of arithmetic steps."""

LARGEST_NUMBER = 100_000
"""Maximum absolute value of a number in the working of an arithmetic or mixed question, and of an
item of a list."""


def _draw_arithmetic(rng: Random, difficulty: int) -> Problem | None:
    problem = Problem("arithmetic", rng.randint(5, 60), draw_steps(rng, CALCULATIONS, difficulty))
    return keep_if_bounded(problem)


def keep_if_bounded(problem: Problem) -> Problem | None:
    """Return the problem if all steps can be applied and no number is too large, else None."""
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


UNIT_FACTORS = {
    "hours": 60,
    "days": 1440,
    "kilometres": 1000,
    "kilograms": 1000,
    "tonnes": 1_000_000,
}
"""The number of base units (minutes, metres, grams) in each unit."""


def _convert_units(*units: str) -> Transform:
    """Return the conversion of a quantity in one of these units to its base unit."""

    def convert(value: str, _: int) -> StepValue:
        number, unit = value.split()
        if unit not in units:
            raise ValueError(f"not a unit of this kind: {unit}")
        return int(number) * UNIT_FACTORS[unit]

    return convert


def _add_amount(by: int) -> Transform:
    return lambda value, number: value + by * number


def _add_days(days: int) -> Transform:
    return lambda day, number: day + timedelta(days=days * number)


def _first_of_next_month(day: date, _: int) -> date:
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


def _name_weekday(day: date, _: int) -> str:
    return WEEKDAYS[day.weekday()]


_DATE_STEPS = register_steps(
    "calendar",
    date,
    StepRule("days on", _add_days(1), ("days back",), number=(2, 90)),
    StepRule("days back", _add_days(-1), ("days on",), number=(2, 90)),
    StepRule("weeks on", _add_days(7), ("weeks back",), number=(2, 15)),
    StepRule("weeks back", _add_days(-7), ("weeks on",), number=(2, 15)),
    StepRule("next month", _first_of_next_month, ("next Monday",)),
    StepRule("next Monday", lambda v, _: v + timedelta(days=7 - v.weekday()), ("next month",)),
    StepRule("weekday", _name_weekday),
    final=("weekday",),
)
register_steps(
    "calendar",
    str,
    StepRule("to minutes", _convert_units("hours", "days")),
    StepRule("to metres", _convert_units("kilometres")),
    StepRule("to grams", _convert_units("kilograms", "tonnes")),
)
register_steps(
    "calendar",
    int,
    StepRule("hours more", _add_amount(60), ("hours less",), number=(2, 30)),
    StepRule("hours less", _add_amount(-60), ("hours more",), number=(2, 30)),
    StepRule("minutes more", _add_amount(1), ("hours more",), number=(2, 300)),
    StepRule("kilometres more", _add_amount(1000), ("metres more",), number=(2, 30)),
    StepRule("metres more", _add_amount(1), ("metres less",), number=(2, 900)),
    StepRule("metres less", _add_amount(-1), ("metres more",), number=(2, 900)),
    StepRule("kilograms more", _add_amount(1000), ("grams more",), number=(2, 30)),
    StepRule("grams more", _add_amount(1), ("grams less",), number=(2, 900)),
    StepRule("grams less", _add_amount(-1), ("grams more",), number=(2, 900)),
    StepRule("legs", lambda value, number: value * number, ("minutes more",), number=(2, 6)),
)

UNIT_LADDERS = (
    ("minutes", ("hours", "days"), ("hours more", "hours less", "minutes more", "legs")),
    ("metres", ("kilometres",), ("kilometres more", "metres more", "metres less", "legs")),
    ("grams", ("kilograms", "tonnes"), ("kilograms more", "grams more", "grams less", "legs")),
)
"""Each base unit, the units in which questions start, and the steps on amounts in the base unit."""


def _draw_calendar(rng: Random, difficulty: int) -> Problem:
    if rng.random() < 0.5:  # noqa: PLR2004  (half dates, half units)
        start = date(rng.randint(1990, 2035), rng.randint(1, 12), rng.randint(1, 28))
        ends = rng.random() < 0.6  # noqa: PLR2004  (most end in a weekday)
        ops = draw_steps(
            rng, [kind.name for kind in _DATE_STEPS if not kind.is_final], difficulty - ends
        )
        return Problem("calendar", start, ops + draw_steps(rng, ["weekday"], int(ends)))
    base, units, names = rng.choice(UNIT_LADDERS)
    ops = draw_steps(rng, [f"to {base}"], 1) + draw_steps(rng, names, difficulty - 1)
    return Problem("calendar", f"{rng.randint(2, 40)} {rng.choice(units)}", ops)


def _read_calendar_start(text: str) -> StepValue | None:
    value = read_value(text)
    if isinstance(value, date):
        return value
    found = re.fullmatch(r"\d{1,6} ([a-z]+)", text)
    return text if found and found[1] in UNIT_FACTORS else None


CALENDAR_FAMILY = register_family(
    QuestionFamily(
        name="calendar",
        skill="calendar",
        draw=_draw_calendar,
        read_start=_read_calendar_start,
        grader=lambda _, value: "integer" if isinstance(value, int) else "exact",
    )
)


_MIN_MIXED_STEPS = 2
"""Minimum steps of a mixed question: one hop and one calculation."""


def _random_walk(rng: Random, length: int, *, to_number: bool) -> Problem | None:
    """Return a random chain of `length` hops; None if the draw repeats a thing or cannot go on.

    With `to_number` the last hop leads to a number, otherwise to a thing.
    """
    start = rng.choice(THINGS[rng.choice(list(THINGS))])
    here, seen, ops = start, {start}, list[ProblemStep]()
    for hop in range(length):
        last = hop == length - 1
        ways = [
            relation
            for relation in relations_of(KINDS_OF[here])
            if (relation.object == "number") is (last and to_number)
        ]
        if not ways:
            return None
        way = rng.choice(ways)
        there = FACTS[way.name, here]
        ops.append(ProblemStep(way.name))
        if isinstance(there, str):
            if there in seen:
                return None
            seen.add(there)
            here = there
    return Problem("facts", start, tuple(ops))


def _draw_facts(rng: Random, difficulty: int) -> Problem | None:
    return _random_walk(rng, difficulty, to_number=rng.random() < 0.3)  # noqa: PLR2004  (some end in a number)


def _draw_mixed(rng: Random, difficulty: int) -> Problem | None:
    difficulty = max(_MIN_MIXED_STEPS, difficulty)
    hops = difficulty // 2
    walk = _random_walk(rng, hops, to_number=True)
    if walk is None:
        return None
    ops = walk.ops + draw_steps(rng, CALCULATIONS, difficulty - hops)
    return keep_if_bounded(Problem("mixed", walk.start, ops))


def _read_thing(text: str) -> StepValue | None:
    return text if is_thing(text) else None


FACTS_FAMILY = register_family(
    QuestionFamily(
        name="facts",
        skill="facts",
        draw=_draw_facts,
        read_start=_read_thing,
        grader=lambda _, value: "integer" if isinstance(value, int) else "name",
    )
)

MIXED_FAMILY = register_family(
    QuestionFamily(
        name="mixed",
        skill="facts",
        draw=_draw_mixed,
        read_start=_read_thing,
        grader=lambda _problem, _value: "integer",
    )
)


Items = tuple[int, ...]


def _rotate_left(items: Items, by: int) -> Items:
    by = by % len(items) if items else 0
    return items[by:] + items[:by]


_LIST_STEPS = register_steps(
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
    last = rng.choice([kind.name for kind in _LIST_STEPS if kind.is_final])
    middle = [kind.name for kind in _LIST_STEPS if not kind.is_final]
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


_VOCABULARY: list[str] = WORDS["vocabulary"]["words"].split()
_CONSONANTS = "bcdfghjklmnpqrstvwxyz"


def _change_words(change: Callable[[list[str]], Iterable[str]]) -> Transform:
    return lambda text, _: " ".join(change(text.split()))


def _caesar_shift(text: str, by: int) -> str:
    return " ".join("".join(_shift_letter(c, by) for c in word) for word in text.split())


def _shift_letter(letter: str, by: int) -> str:
    base = ord("A") if letter.isupper() else ord("a")
    return chr(base + (ord(letter) - base + by) % 26) if letter.isascii() else letter


def _swap_ends(words: list[str]) -> list[str]:
    first, *middle, last = words
    return [last, *middle, first]


def _capitalise_words(words: list[str], parity: int) -> list[str]:
    return [word.upper() if i % 2 == parity else word for i, word in enumerate(words)]


def _without_vowels(word: str) -> str:
    return "".join(c for c in word if c.lower() not in "aeiou")


def _count_letters(text: str, letters: str) -> int:
    return sum(c.lower() in letters for word in text.split() for c in word)


_TEXT_STEPS = register_steps(
    "text",
    str,
    StepRule(
        "reverse words", _change_words(lambda words: words[::-1]), ("sort words", "swap ends")
    ),
    StepRule(
        "reverse letters", _change_words(lambda ws: [w[::-1] for w in ws]), ("reverse words",)
    ),
    StepRule(
        "capitals", _change_words(lambda words: _capitalise_words(words, 1)), ("odd capitals",)
    ),
    StepRule(
        "odd capitals", _change_words(lambda words: _capitalise_words(words, 0)), ("capitals",)
    ),
    StepRule("shift", _caesar_shift, number=(1, 5)),
    StepRule("drop vowels", _change_words(lambda ws: map(_without_vowels, ws)), ("capitals",)),
    StepRule("sort words", _change_words(lambda ws: sorted(ws, key=str.lower)), ("reverse words",)),
    StepRule("swap ends", _change_words(_swap_ends), ("reverse words",)),
    StepRule("drop word", _change_words(lambda words: words[1:]), ("swap ends",)),
    StepRule("initials", lambda text, _: "".join(w[0] for w in text.split())),
    StepRule("count vowels", lambda v, _: _count_letters(v, "aeiou"), ("count consonants",)),
    StepRule("count consonants", lambda v, _: _count_letters(v, _CONSONANTS), ("count vowels",)),
    final=("initials", "count vowels", "count consonants"),
)

_MIN_WORDS, _MAX_WORDS = 4, 6


def _draw_text(rng: Random, difficulty: int) -> Problem | None:
    start = " ".join(rng.sample(_VOCABULARY, rng.randint(_MIN_WORDS, _MAX_WORDS)))
    ends = difficulty > 1 and rng.random() < 0.4  # noqa: PLR2004  (some end in a count or initials)
    ops = draw_steps(
        rng, [kind.name for kind in _TEXT_STEPS if not kind.is_final], difficulty - ends
    )
    if ends:
        ops += draw_steps(rng, [kind.name for kind in _TEXT_STEPS if kind.is_final], 1)
    names = [op.kind for op in ops]
    if len(set(names)) < len(names) or (ends and "drop vowels" in names):
        return None
    problem = Problem("text", start, ops)
    value = solve_problem(problem)
    return problem if value not in (None, "", start) else None


def _read_words(text: str) -> StepValue | None:
    return text if re.fullmatch(r"[A-Za-z]+(?: [A-Za-z]+){1,15}", text) else None


TEXT_FAMILY = register_family(
    QuestionFamily(
        name="text",
        skill="text",
        draw=_draw_text,
        read_start=_read_words,
        grader=lambda _, value: "integer" if isinstance(value, int) else "exact",
    )
)
