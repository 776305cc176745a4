"""Steps on amounts: a time, a length or a weight is converted to its base unit, then changed."""

from __future__ import annotations

from batuta.lab.worlds.problem import StepKind, StepValue, Transform

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
