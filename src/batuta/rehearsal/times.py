"""Family: dates and units."""

from __future__ import annotations

import re
from datetime import date, timedelta
from random import Random

from batuta.rehearsal.grammar import Family, Layout, Style, chain, enroll
from batuta.rehearsal.problem import WEEKDAYS, Kind, Problem, Transform, Value, read_value, register

_FACTORS = {"hours": 60, "days": 1440, "kilometres": 1000, "kilograms": 1000, "tonnes": 1_000_000}


def _date(value: Value) -> date:
    if isinstance(value, date):
        return value
    raise TypeError(f"not a date: {value!r}")


def _int(value: Value) -> int:
    if isinstance(value, int):
        return value
    raise TypeError(f"not a quantity: {value!r}")


def _first_of_next_month(value: Value) -> date:
    day = _date(value)
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


def _next_monday(value: Value) -> date:
    day = _date(value)
    return day + timedelta(days=7 - day.weekday())


def _base(*units: str) -> Transform:
    def convert(value: Value) -> Value:
        if not isinstance(value, str):
            raise TypeError(f"not a quantity with a unit: {value!r}")
        number, unit = value.split()
        if unit not in units:
            raise ValueError(f"not a unit of this kind: {unit}")
        return int(number) * _FACTORS[unit]

    return convert


def _moved(name: str, words: tuple[str, ...], days: int, most: int, other: str) -> Kind:
    return Kind(
        name,
        "calendar",
        words,
        lambda v, n: _date(v) + timedelta(days=days * n),
        ((2, most),),
        (other,),
    )


def _scaled(name: str, words: tuple[str, ...], by: int, most: int, other: str) -> Kind:
    return Kind(name, "calendar", words, lambda v, n: _int(v) + by * n, ((2, most),), (other,))


_CONVERT = ("express it in", "convert it to", "write it in", "turn it into", "say it in")


def _converted(unit: str, *units: str) -> Kind:
    words = tuple(f"{verb} {unit}" for verb in _CONVERT)
    return Kind(f"to {unit}", "calendar", words, _base(*units))


_DATES = (
    _moved(
        "days on",
        (
            "go # days forward",
            "add # days to the date",
            "move # days ahead",
            "advance by # days",
            "let # days pass",
        ),
        1,
        90,
        "days back",
    ),
    _moved(
        "days back",
        (
            "go # days back",
            "take # days from the date",
            "move # days earlier",
            "go back by # days",
            "return by # days",
        ),
        -1,
        90,
        "days on",
    ),
    _moved(
        "weeks on",
        (
            "go # weeks forward",
            "add # weeks to the date",
            "move # weeks ahead",
            "advance by # weeks",
            "let # weeks pass",
        ),
        7,
        15,
        "weeks back",
    ),
    _moved(
        "weeks back",
        (
            "go # weeks back",
            "take # weeks from the date",
            "move # weeks earlier",
            "go back by # weeks",
            "return by # weeks",
        ),
        -7,
        15,
        "weeks on",
    ),
    Kind(
        "next month",
        "calendar",
        (
            "go to the first day of the next month",
            "move to the start of the following month",
            "jump to day one of the next month",
            "take the first of the month after",
            "wait until a new month begins",
        ),
        _first_of_next_month,
        (),
        ("next Monday",),
    ),
    Kind(
        "next Monday",
        "calendar",
        (
            "go to the next Monday",
            "move to the Monday that follows",
            "jump to the coming Monday",
            "take the first Monday after it",
            "wait until a Monday comes",
        ),
        _next_monday,
        (),
        ("next month",),
    ),
    Kind(
        "weekday",
        "calendar",
        (
            "name the weekday",
            "tell which day of the week it is",
            "say the weekday",
            "find the day of the week",
            "give the name of that day",
        ),
        lambda v: WEEKDAYS[_date(v).weekday()],
        (),
        (),
        final=True,
    ),
)

_UNITS = (
    _converted("minutes", "hours", "days"),
    _converted("metres", "kilometres"),
    _converted("grams", "kilograms", "tonnes"),
    _scaled(
        "hours more",
        (
            "add # hours",
            "lengthen it by # hours",
            "extend it by # hours",
            "plus # hours",
            "put # hours on top",
        ),
        60,
        30,
        "hours less",
    ),
    _scaled(
        "hours less",
        (
            "subtract # hours",
            "shorten it by # hours",
            "cut it by # hours",
            "minus # hours",
            "take # hours off",
        ),
        -60,
        30,
        "hours more",
    ),
    _scaled(
        "minutes more",
        (
            "add # minutes",
            "lengthen it by # minutes",
            "extend it by # minutes",
            "plus # minutes",
            "put # minutes on top",
        ),
        1,
        300,
        "hours more",
    ),
    _scaled(
        "kilometres more",
        (
            "add # kilometres",
            "lengthen it by # kilometres",
            "extend it by # kilometres",
            "plus # kilometres",
            "put # kilometres on top",
        ),
        1000,
        30,
        "metres more",
    ),
    _scaled(
        "metres more",
        (
            "add # metres",
            "lengthen it by # metres",
            "extend it by # metres",
            "plus # metres",
            "put # metres on top",
        ),
        1,
        900,
        "metres less",
    ),
    _scaled(
        "metres less",
        (
            "subtract # metres",
            "shorten it by # metres",
            "cut it by # metres",
            "minus # metres",
            "take # metres off",
        ),
        -1,
        900,
        "metres more",
    ),
    _scaled(
        "kilograms more",
        (
            "add # kilograms",
            "load # kilograms more",
            "add a load of # kilograms",
            "plus # kilograms",
            "put # kilograms on top",
        ),
        1000,
        30,
        "grams more",
    ),
    _scaled(
        "grams more",
        (
            "add # grams",
            "load # grams more",
            "add a load of # grams",
            "plus # grams",
            "put # grams on top",
        ),
        1,
        900,
        "grams less",
    ),
    _scaled(
        "grams less",
        (
            "subtract # grams",
            "unload # grams",
            "remove # grams",
            "minus # grams",
            "take # grams off",
        ),
        -1,
        900,
        "grams more",
    ),
    Kind(
        "legs",
        "calendar",
        (
            "count that amount # times",
            "let it happen # times",
            "do it # times",
            "multiply the amount by #",
            "repeat the whole amount # times",
        ),
        lambda v, n: _int(v) * n,
        ((2, 6),),
        ("minutes more",),
    ),
)

register(_DATES)
register(_UNITS)

_LADDERS = (
    ("minutes", ("hours", "days"), ("hours more", "hours less", "minutes more", "legs")),
    ("metres", ("kilometres",), ("kilometres more", "metres more", "metres less", "legs")),
    ("grams", ("kilograms", "tonnes"), ("kilograms more", "grams more", "grams less", "legs")),
)


def _draw(rng: Random, difficulty: int) -> Problem:
    if rng.random() < 0.5:  # noqa: PLR2004  (half dates, half units)
        start = date(rng.randint(1990, 2035), rng.randint(1, 12), rng.randint(1, 28))
        ends = rng.random() < 0.6  # noqa: PLR2004  (most end in a weekday)
        ops = chain(rng, [kind.name for kind in _DATES if not kind.final], difficulty - ends)
        return Problem("calendar", start, ops + chain(rng, ["weekday"], int(ends)))
    base, units, names = rng.choice(_LADDERS)
    ops = chain(rng, [f"to {base}"], 1) + chain(rng, names, difficulty - 1)
    return Problem("calendar", f"{rng.randint(2, 40)} {rng.choice(units)}", ops)


def _read(text: str) -> Value | None:
    value = read_value(text)
    if isinstance(value, date):
        return value
    found = re.fullmatch(r"\d{1,6} ([a-z]+)", text)
    return text if found and found[1] in _FACTORS else None


CALENDAR = enroll(
    Family(
        "calendar",
        "calendar",
        (
            Style("Start from {start}. {steps} What do you get?"),
            Style("Take {start} and {steps}. What comes out?", Layout.THEN),
            Style(
                "Here is a question of dates and units. We have {start}; {steps}. "
                "What is the result?",
                Layout.SEMICOLONS,
            ),
            Style(
                "The diary says {start}. Work through these lines:\n{steps}\nWhat is the outcome?",
                Layout.LINES,
            ),
            Style("It is about {start}: {steps}. What is the answer?", Layout.ARROWS),
            Style("Consider {start}. {steps} Where does that lead?", Layout.SENTENCES),
            Style("Given {start}, {steps}. Say the result.", Layout.THEN),
            Style("Note: {start}.\n{steps}\nWhat must be noted last?", Layout.LINES),
            Style("The planner holds {start}; {steps}. What does it hold then?", Layout.SEMICOLONS),
            Style("Somebody mentions {start}: {steps}. What is meant?", Layout.ARROWS),
            Style(
                "On the form stands {start}, followed by: {steps}. Fill in the last field.",
                Layout.ARROWS,
            ),
            Style("Think of {start}. {steps} What is in your mind now?", Layout.SENTENCES),
        ),
        _draw,
        _read,
        lambda _, value: "integer" if isinstance(value, int) else "exact",
    )
)
