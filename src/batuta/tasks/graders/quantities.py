"""Quantities in short answers: a number with its unit, its currency, or what is counted."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from batuta.tasks.graders import units
from batuta.tasks.graders.latex import normalize_latex
from batuta.tasks.graders.number_words import parse_number_words
from batuta.tasks.graders.numbers import is_same_number, leading_number, parse_number

TOLERANCE = 0.01
"""Relative, of a measured number; counts and years are exact."""

_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_CURRENCIES = {"$": "dollars", "us$": "dollars", "usd": "dollars", "dollar": "dollars",
    "dollars": "dollars", "cent": "dollars", "cents": "dollars", "¢": "dollars", "€": "euros",
    "eur": "euros", "euro": "euros", "euros": "euros", "£": "pounds", "gbp": "pounds", "¥": "yen",
    "yen": "yen", "₹": "rupees", "rupees": "rupees"}  # fmt: skip
_MONEY = re.compile(
    r"(?P<sign>(?:US)?\\?\$|[€£¥₹]|USD|EUR|GBP)?\s*(?P<value>\d[\d,]*(?:\.\d+)?)\s*"
    r"(?(sign)|(?P<name>USD|EUR|GBP|dollars?|cents?|euros?|yen|rupees|[€£¥₹¢]))(?!\w)\$?",
    re.IGNORECASE,
)
_PER_MILLE = re.compile(r"(\d+(?:\.\d+)?)\s*‰")
_MOST_WORDS = 12
_ABOUT = re.compile(
    r"^(?:\\approx|\\sim|≈|~|about|approximately|around|roughly|=)\s*", re.IGNORECASE
)
_NAME = re.compile(r"^[A-Za-z](?:_\w+)?\s*=\s*")
_COUNTED_NOUN = re.compile(r"[a-zA-Z]+(?: [a-zA-Z]+)*")
_PLURAL = re.compile(r"[a-z]{2,}s")
_LINKS = frozenset({"or", "and", "to", "plus", "minus"})


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and its unit."""

    value: Fraction
    unit: str = ""
    measured: bool = False
    """Written with a decimal point or a power of ten."""


def parse_quantity(text: str) -> Quantity | None:
    """The number and unit that `text` is; None if it is more, or something else."""
    if money := _MONEY.fullmatch(text.strip(" .")):
        return _parse_money(money)
    text = _PER_MILLE.sub(lambda found: f"{Fraction(found[1]) / 10}%", text)
    text = _NAME.sub("", _ABOUT.sub("", normalize_latex(write_digits(text)).strip()))
    text = _ABOUT.sub("", text)
    found = leading_number(text)
    if found is None:
        return None
    value, rest = found
    number = text[: len(text) - len(rest)]
    scale, rest = _split_scale(rest)
    if not _is_unit(rest):
        return None
    measured = "." in number or "10^" in number or "e" in number.casefold()
    return Quantity(value * scale, rest, measured)


def _parse_money(found: re.Match[str]) -> Quantity | None:
    value = parse_number(found["value"])
    name = (found["sign"] or found["name"]).casefold().replace("\\", "")
    cents = name in {"cent", "cents", "¢"}
    unit = _CURRENCIES.get(name, name)
    if value is None:
        return None
    return Quantity(value / 100 if cents else value, unit, "." in found["value"])


def write_digits(text: str) -> str:
    """`text` with a number in words at its start written in digits: `five km` as `5 km`."""
    words = text.strip().split()
    if len(words) > _MOST_WORDS or not words or not words[0][0].isalpha():
        return text
    for count in range(len(words), 0, -1):
        value = parse_number_words(" ".join(words[:count]))
        rest = " ".join(words[count:])
        if value is not None and (
            not rest
            or rest in {"%", "percent", *_SCALES}
            or units.is_known_unit(rest)
            or _PLURAL.fullmatch(rest)
        ):
            digits = str(value) if value.denominator == 1 else str(float(value))
            return " ".join((digits, *words[count:]))
    return text


def _is_unit(rest: str) -> bool:
    """Whether what follows a number is nothing, a unit of measure, or what is counted."""
    if rest in {"", "%"} or units.is_known_unit(rest):
        return True
    counted = _COUNTED_NOUN.fullmatch(units.pint_spelling(rest))
    return counted is not None and _LINKS.isdisjoint(counted[0].casefold().split())


def _split_scale(rest: str) -> tuple[int, str]:
    word, _, after = rest.removeprefix(r"\text{").partition(" ")
    scale = _SCALES.get(word.strip("}").casefold())
    return (1, rest) if scale is None else (scale, after)


def is_same_quantity(wanted: Quantity, given: Quantity) -> bool | None:
    """Whether two quantities are the same; None where a unit is not known."""
    money = {wanted.unit, given.unit} & set(_CURRENCIES.values())
    if money and wanted.unit and given.unit and wanted.unit != given.unit:
        return False
    if "%" in {wanted.unit, given.unit} and wanted.unit != given.unit:
        counted = not wanted.measured and wanted.unit != "%" and abs(wanted.value) > 1
        same = _is_near(wanted, given.value)
        return same or (not counted and _is_near(wanted, _convert_percent(wanted, given)))
    if not wanted.unit or not given.unit or wanted.unit == given.unit:
        return _is_near(wanted, given.value)
    value = units.convert_value(given.value, given.unit, wanted.unit)
    if value is None:
        return (
            _is_near(wanted, given.value)
            if units.is_same_unit_name(wanted.unit, given.unit)
            else None
        )
    return False if math.isnan(value) else _is_near(wanted, Fraction(value))


def _convert_percent(wanted: Quantity, given: Quantity) -> Fraction:
    return given.value * 100 if wanted.unit == "%" else given.value / 100


def _is_near(wanted: Quantity, value: Fraction) -> bool:
    """Whether `value` is near enough: counts are exact, what is measured has a tolerance."""
    if not wanted.measured and not units.is_known_unit(wanted.unit):
        return is_same_number(wanted.value, value)
    if abs(value - wanted.value) <= Fraction(TOLERANCE) * abs(wanted.value):
        return True
    return value.denominator % 3 == 0 and round(value, 2) == wanted.value  # a third as 0.33
