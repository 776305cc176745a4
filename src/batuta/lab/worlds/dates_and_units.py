"""Family: dates and units."""

from __future__ import annotations

import re
from datetime import date, timedelta
from random import Random

from batuta.lab.worlds.grammar import QuestionFamily, draw_steps, register_family
from batuta.lab.worlds.problem import (
    WEEKDAYS,
    Problem,
    StepRule,
    StepValue,
    Transform,
    read_value,
    register_steps,
)

UNIT_FACTORS = {
    "hours": 60,
    "days": 1440,
    "kilometres": 1000,
    "kilograms": 1000,
    "tonnes": 1_000_000,
}
"""How many of its base unit (minutes, metres, grams) one of each is."""


def _convert_units(*units: str) -> Transform:
    """Return the step that says a quantity with one of these units in their base unit."""

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
"""A base unit, the units that questions start from, and the steps on what it counts."""


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
        draw=_draw_calendar,
        read_start=_read_start,
        grader=lambda _, value: "integer" if isinstance(value, int) else "exact",
    )
)
