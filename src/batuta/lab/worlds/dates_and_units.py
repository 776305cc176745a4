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
    read_value,
    register_kinds,
)
from batuta.lab.worlds.unit_kinds import UNIT_FACTORS, UNIT_KINDS, UNIT_LADDERS


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
