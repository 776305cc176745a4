"""Finds units of measure after numbers, and converts values with pint."""

from __future__ import annotations

import importlib
import re
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

MAX_VALUE = 200
"""Maximum length of a value with a unit, in characters."""

_BEHIND = re.compile(
    r"(?P<value>.*?)(?P<unit>\^\\circ ?[CFK]?|%|°[CF]?"
    r"|(?:(?:/|\\cdot)?\\text\{[^{}]*\}(?:\^(?:\d|\{-?\d\}))?)+"
    r"|(?<=[\d)}])\s*[a-zA-Z]{2,}(?:[ /][a-zA-Z]+)*(?:\^\d)?)",
    re.DOTALL,
)
_WORD_LIST = """
    square cubic sq cu per unit units mm cm km in inch inches ft foot feet yard yards mile miles
    meter meters metre metres centimeter centimeters centimetre centimetres kilometers kilometres
    kg gram grams pound pounds ounce ounces liter liters litre litres gallon gallons sec second
    seconds min minute minutes hr hour hours day days week weeks month months year years mph
    degree degrees rad radians cent cents dollar dollars euros people students ways times
"""
_WORDS = frozenset(_WORD_LIST.split())
"""Units that may follow a number as plain words; other letters are variables."""

_SPELLING = (
    (re.compile(r"\\text\{([^{}]*)\}"), r" \1"),
    (re.compile(r"(?:(?<!\s)\s++)?\\Omega"), "ohm"),
    (re.compile(r"\\mu\s*"), "µ"),
    (re.compile(r"\\cdot|·"), "*"),
    (re.compile(r"(?:\^\\circ ?|°|\bdeg(?:rees?)? ?)\s*(?:Celsius|celsius|centigrade)"), "degC"),
    (re.compile(r"(?:\^\\circ ?|°|\bdeg(?:rees?)? ?)\s*(?:Fahrenheit|fahrenheit)"), "degF"),
    (re.compile(r"\^\\circ ?|°(?=[CF])"), "deg"),
    (re.compile(r"°"), "degree"),
    (re.compile(r"[{}]"), ""),
    (re.compile(r"(?<![a-zA-Z])([a-zA-Z]++) squared\b"), r"\1^2"),
    (re.compile(r"(?<![a-zA-Z])([a-zA-Z]++) cubed\b"), r"\1^3"),
    (re.compile(r"\b(?:square|sq\.?)\s*([a-zA-Z]+)"), r"\1^2"),
    (re.compile(r"\b(?:cubic|cu\.?)\s*([a-zA-Z]+)"), r"\1^3"),
    (re.compile(r"([a-zA-Z])(-?\d)"), r"\1^\2"),
    (re.compile(r"\bunits?\b"), ""),
    (re.compile(r"\bper\b"), "/"),
    (re.compile(r"^\s*deg\s*$"), "degree"),
)
_OTHER_VALUE = re.compile(
    r"\b(?:or|not|if|unless|maybe|at (?:least|most)|and a half|hundred|factorial)\b", re.IGNORECASE
)
"""Words after a number that are no unit, but change the value or make it a bound."""
_ANGLE_OF = re.compile(r"\\(?:a?sin|a?cos|a?tan|cot|sec|csc)(?![a-zA-Z])")
_ANGLES = ("degree", "radian", "turn", "arcminute", "arcsecond")
_SAFE = re.compile(r"[a-zA-ZµμΩ%Å][a-zA-ZµμΩ%Å/*^ ()\d.-]{0,60}")
_COSTLY = re.compile(r"\d{3,}|\d\s*\^|\^\s*[-\d]{3,}|\^\s*\(|\*\s*\*")
"""Powers of numbers, which pint would compute."""


class OtherKindError(Exception):
    """Two units measure different things."""


def split_unit(text: str) -> tuple[str, str]:
    """Split a text from `normalize_latex` into a value and its unit; "" stands for no unit."""
    found = _BEHIND.fullmatch(text) if len(text) <= MAX_VALUE else None
    if found is None or not found["value"] or _ANGLE_OF.search(found["value"]):
        return text, ""
    unit = found["unit"].strip()
    if _OTHER_VALUE.search(unit):
        return text, ""
    words = re.findall(r"[a-zA-Z]+", unit)
    if unit[0].isalpha() and not _WORDS.issuperset(word.casefold() for word in words):
        return text, ""
    return found["value"].strip(), unit


def is_same_unit_name(unit: str, other: str) -> bool:
    """Return whether the words in the name of one unit include the words in the other's name."""
    one, another = _unit_words(unit), _unit_words(other)
    return bool(one & another) and (one <= another or another <= one)


def _unit_words(unit: str) -> set[str]:
    words = (re.sub(r"[^\w%/^]", "", word) for word in pint_spelling(unit).casefold().split())
    return {word.removesuffix("s") for word in words}


def pint_spelling(unit: str) -> str:
    """Return a unit in pint's notation."""
    for pattern, replacement in _SPELLING:
        unit = pattern.sub(replacement, unit)
    return unit.strip()


def is_known_unit(unit: str) -> bool:
    """Return whether pint knows the unit; the names of counted things are unknown."""
    return _parse_unit(unit) is not None if unit else False


def convert_value(value: Fraction | int, source: str, target: str) -> Fraction | None:
    """Return `value` in another unit, exactly except for angles; None if a unit is unknown.

    Raises:
        OtherKindError: the units measure different things, or one is logarithmic.
    """
    here, there = _parse_unit(source), _parse_unit(target)
    if here is None or there is None:
        return None
    if here.dimensionality != there.dimensionality or _dimensionless_kind(
        here
    ) != _dimensionless_kind(there):
        raise OtherKindError
    try:
        return Fraction(_pint_registry().Quantity(Fraction(value), here).to(there).magnitude)
    except (OverflowError, ValueError):  # a logarithmic unit
        raise OtherKindError from None


def _dimensionless_kind(unit: Any) -> str:
    """Return the kind of a dimensionless unit; pint alone would convert bits into degrees."""
    if not unit.dimensionless:
        return ""
    try:
        name = str(unit)
    except TypeError:  # pint 0.25 cannot write powers that are fractions, such as degrees squared
        return "product"
    if name.endswith(("bit", "byte")):
        return "information"
    return "angle" if name.endswith(_ANGLES) else name


@lru_cache(maxsize=1024)
def _parse_unit(unit: str) -> Any:
    """Return pint's unit; None if it is unknown or unsafe to parse, or pint is not installed."""
    name = pint_spelling(unit)
    if not _SAFE.fullmatch(name) or _COSTLY.search(name):
        return None
    try:
        return _pint_registry().parse_units(name)
    except Exception:  # noqa: BLE001 - pint evaluates what it reads, so any error may occur
        return None


@cache
def _pint_registry() -> Any:
    pint: Any = importlib.import_module("pint")  # an extra, and slow to load
    return pint.UnitRegistry(non_int_type=Fraction)
