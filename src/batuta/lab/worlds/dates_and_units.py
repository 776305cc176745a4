"""Family: dates and units."""

from __future__ import annotations

import re
from datetime import date, timedelta
from random import Random

from batuta.lab.worlds.grammar import (
    QuestionFamily,
    QuestionStyle,
    StepLayout,
    draw_steps,
    register_family,
)
from batuta.lab.worlds.problem import (
    WEEKDAYS,
    Problem,
    StepKind,
    StepValue,
    Transform,
    read_value,
    register_kinds,
)

UNIT_FACTORS = {
    "hours": 60,
    "days": 1440,
    "kilometres": 1000,
    "kilograms": 1000,
    "tonnes": 1_000_000,
}
"""How many of its base unit (minutes, metres, grams) one of each is."""


def _require_int(value: StepValue) -> int:
    if isinstance(value, int):
        return value
    raise TypeError(f"not a quantity: {value!r}")


def _base_unit_transform(*units: str) -> Transform:
    def convert(value: StepValue) -> StepValue:
        if not isinstance(value, str):
            raise TypeError(f"not a quantity with a unit: {value!r}")
        number, unit = value.split()
        if unit not in units:
            raise ValueError(f"not a unit of this kind: {unit}")
        return int(number) * UNIT_FACTORS[unit]

    return convert


def _unit_shift_kind(
    name: str, words: tuple[str, ...], by: int, most: int, *, other: str
) -> StepKind:
    return StepKind(
        name=name,
        skill="calendar",
        phrases=words,
        apply=lambda v, n: _require_int(v) + by * n,
        ranges=((2, most),),
        confusable_with=(other,),
    )


_CONVERT_PHRASES = ("express it in", "convert it to", "write it in", "turn it into", "say it in")


def _conversion_kind(unit: str, *units: str) -> StepKind:
    words = tuple(f"{verb} {unit}" for verb in _CONVERT_PHRASES)
    return StepKind(
        name=f"to {unit}", skill="calendar", phrases=words, apply=_base_unit_transform(*units)
    )


UNIT_KINDS = (
    _conversion_kind("minutes", "hours", "days"),
    _conversion_kind("metres", "kilometres"),
    _conversion_kind("grams", "kilograms", "tonnes"),
    _unit_shift_kind(
        "hours more",
        (
            "add # hours",
            "lengthen it by # hours",
            "extend it by # hours",
            "plus # hours",
            "put # hours on top",
        ),
        by=60,
        most=30,
        other="hours less",
    ),
    _unit_shift_kind(
        "hours less",
        (
            "subtract # hours",
            "shorten it by # hours",
            "cut it by # hours",
            "minus # hours",
            "take # hours off",
        ),
        by=-60,
        most=30,
        other="hours more",
    ),
    _unit_shift_kind(
        "minutes more",
        (
            "add # minutes",
            "lengthen it by # minutes",
            "extend it by # minutes",
            "plus # minutes",
            "put # minutes on top",
        ),
        by=1,
        most=300,
        other="hours more",
    ),
    _unit_shift_kind(
        "kilometres more",
        (
            "add # kilometres",
            "lengthen it by # kilometres",
            "extend it by # kilometres",
            "plus # kilometres",
            "put # kilometres on top",
        ),
        by=1000,
        most=30,
        other="metres more",
    ),
    _unit_shift_kind(
        "metres more",
        (
            "add # metres",
            "lengthen it by # metres",
            "extend it by # metres",
            "plus # metres",
            "put # metres on top",
        ),
        by=1,
        most=900,
        other="metres less",
    ),
    _unit_shift_kind(
        "metres less",
        (
            "subtract # metres",
            "shorten it by # metres",
            "cut it by # metres",
            "minus # metres",
            "take # metres off",
        ),
        by=-1,
        most=900,
        other="metres more",
    ),
    _unit_shift_kind(
        "kilograms more",
        (
            "add # kilograms",
            "load # kilograms more",
            "add a load of # kilograms",
            "plus # kilograms",
            "put # kilograms on top",
        ),
        by=1000,
        most=30,
        other="grams more",
    ),
    _unit_shift_kind(
        "grams more",
        (
            "add # grams",
            "load # grams more",
            "add a load of # grams",
            "plus # grams",
            "put # grams on top",
        ),
        by=1,
        most=900,
        other="grams less",
    ),
    _unit_shift_kind(
        "grams less",
        (
            "subtract # grams",
            "unload # grams",
            "remove # grams",
            "minus # grams",
            "take # grams off",
        ),
        by=-1,
        most=900,
        other="grams more",
    ),
    StepKind(
        name="legs",
        skill="calendar",
        phrases=(
            "count that amount # times",
            "let it happen # times",
            "do it # times",
            "multiply the amount by #",
            "repeat the whole amount # times",
        ),
        apply=lambda v, n: _require_int(v) * n,
        ranges=((2, 6),),
        confusable_with=("minutes more",),
    ),
)

UNIT_LADDERS = (
    ("minutes", ("hours", "days"), ("hours more", "hours less", "minutes more", "legs")),
    ("metres", ("kilometres",), ("kilometres more", "metres more", "metres less", "legs")),
    ("grams", ("kilograms", "tonnes"), ("kilograms more", "grams more", "grams less", "legs")),
)
"""A base unit, the units that questions start from, and the steps on what it counts."""


def _require_date(value: StepValue) -> date:
    if isinstance(value, date):
        return value
    raise TypeError(f"not a date: {value!r}")


def _first_of_next_month(value: StepValue) -> date:
    day = _require_date(value)
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


def _next_monday(value: StepValue) -> date:
    day = _require_date(value)
    return day + timedelta(days=7 - day.weekday())


def _date_shift_kind(
    name: str, words: tuple[str, ...], days: int, most: int, *, other: str
) -> StepKind:
    return StepKind(
        name=name,
        skill="calendar",
        phrases=words,
        apply=lambda v, n: _require_date(v) + timedelta(days=days * n),
        ranges=((2, most),),
        confusable_with=(other,),
    )


_DATE_KINDS = (
    _date_shift_kind(
        "days on",
        (
            "go # days forward",
            "add # days to the date",
            "move # days ahead",
            "advance by # days",
            "let # days pass",
        ),
        days=1,
        most=90,
        other="days back",
    ),
    _date_shift_kind(
        "days back",
        (
            "go # days back",
            "take # days from the date",
            "move # days earlier",
            "go back by # days",
            "return by # days",
        ),
        days=-1,
        most=90,
        other="days on",
    ),
    _date_shift_kind(
        "weeks on",
        (
            "go # weeks forward",
            "add # weeks to the date",
            "move # weeks ahead",
            "advance by # weeks",
            "let # weeks pass",
        ),
        days=7,
        most=15,
        other="weeks back",
    ),
    _date_shift_kind(
        "weeks back",
        (
            "go # weeks back",
            "take # weeks from the date",
            "move # weeks earlier",
            "go back by # weeks",
            "return by # weeks",
        ),
        days=-7,
        most=15,
        other="weeks on",
    ),
    StepKind(
        name="next month",
        skill="calendar",
        phrases=(
            "go to the first day of the next month",
            "move to the start of the following month",
            "jump to day one of the next month",
            "take the first of the month after",
            "wait until a new month begins",
        ),
        apply=_first_of_next_month,
        ranges=(),
        confusable_with=("next Monday",),
    ),
    StepKind(
        name="next Monday",
        skill="calendar",
        phrases=(
            "go to the next Monday",
            "move to the Monday that follows",
            "jump to the coming Monday",
            "take the first Monday after it",
            "wait until a Monday comes",
        ),
        apply=_next_monday,
        ranges=(),
        confusable_with=("next month",),
    ),
    StepKind(
        name="weekday",
        skill="calendar",
        phrases=(
            "name the weekday",
            "tell which day of the week it is",
            "say the weekday",
            "find the day of the week",
            "give the name of that day",
        ),
        apply=lambda v: WEEKDAYS[_require_date(v).weekday()],
        ranges=(),
        confusable_with=(),
        is_final=True,
    ),
)

register_kinds(_DATE_KINDS)
register_kinds(UNIT_KINDS)


def _draw_calendar(rng: Random, difficulty: int) -> Problem:
    if rng.random() < 0.5:  # noqa: PLR2004  (half dates, half units)
        start = date(rng.randint(1990, 2035), rng.randint(1, 12), rng.randint(1, 28))
        ends = rng.random() < 0.6  # noqa: PLR2004  (most end in a weekday)
        ops = draw_steps(
            rng, [kind.name for kind in _DATE_KINDS if not kind.is_final], difficulty - ends
        )
        return Problem("calendar", start, ops + draw_steps(rng, ["weekday"], int(ends)))
    base, units, names = rng.choice(UNIT_LADDERS)
    ops = draw_steps(rng, [f"to {base}"], 1) + draw_steps(rng, names, difficulty - 1)
    return Problem("calendar", f"{rng.randint(2, 40)} {rng.choice(units)}", ops)


def _read_start(text: str) -> StepValue | None:
    value = read_value(text)
    if isinstance(value, date):
        return value
    found = re.fullmatch(r"\d{1,6} ([a-z]+)", text)
    return text if found and found[1] in UNIT_FACTORS else None


CALENDAR_FAMILY = register_family(
    QuestionFamily(
        name="calendar",
        skill="calendar",
        styles=(
            QuestionStyle("Start from {start}. {steps} What do you get?"),
            QuestionStyle("Take {start} and {steps}. What comes out?", StepLayout.THEN),
            QuestionStyle(
                "Here is a question of dates and units. We have {start}; {steps}. "
                "What is the result?",
                StepLayout.SEMICOLONS,
            ),
            QuestionStyle(
                "The diary says {start}. Work through these lines:\n{steps}\nWhat is the outcome?",
                StepLayout.LINES,
            ),
            QuestionStyle("It is about {start}: {steps}. What is the answer?", StepLayout.ARROWS),
            QuestionStyle("Consider {start}. {steps} Where does that lead?", StepLayout.SENTENCES),
            QuestionStyle("Given {start}, {steps}. Say the result.", StepLayout.THEN),
            QuestionStyle("Note: {start}.\n{steps}\nWhat must be noted last?", StepLayout.LINES),
            QuestionStyle(
                "The planner holds {start}; {steps}. What does it hold then?", StepLayout.SEMICOLONS
            ),
            QuestionStyle("Somebody mentions {start}: {steps}. What is meant?", StepLayout.ARROWS),
            QuestionStyle(
                "On the form stands {start}, followed by: {steps}. Fill in the last field.",
                StepLayout.ARROWS,
            ),
            QuestionStyle(
                "Think of {start}. {steps} What is in your mind now?", StepLayout.SENTENCES
            ),
        ),
        draw=_draw_calendar,
        read_start=_read_start,
        grader=lambda _, value: "integer" if isinstance(value, int) else "exact",
    )
)
