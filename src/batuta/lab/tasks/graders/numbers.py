"""Reads numbers in normalised LaTeX as exact fractions."""

from __future__ import annotations

import re
from fractions import Fraction

ROUNDING_DISTANCE = Fraction(1, 10**6)
"""Maximum relative error of a decimal that counts as rounded."""

MAX_EXPONENT = 400
"""Maximum absolute value of an exponent."""

_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,2}(?:,\d{2})+,\d{3}(?!\d)|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(
    rf"(?P<sign>-?)(?:"
    rf"(?P<whole>\d+)?\s*\\frac\{{(?P<above>-?(?:{_DECIMAL}))\}}\{{(?P<below>-?(?:{_DECIMAL}))\}}"
    rf"|(?:(?P<and>\d+)\s+)?(?P<over>{_DECIMAL})/(?P<under>-?(?:{_DECIMAL}))"
    rf"|(?P<head>\d*\.\d*)\\overline\{{(?P<cycle>\d+)\}}"
    rf"|(?P<decimal>{_DECIMAL})(?:(?:(?:\\times|\\cdot)\s*10\^|[eE])(?P<ten>\{{?[+-]?\d+\}}?))?"
    rf"|(?P<base>\d+)\^(?P<power>\{{-?\d+\}}|\d)"
    rf")\.?"
)

_COMMA = re.compile(r"-?0,\d+")
"""Matches a number with a decimal comma: no number with thousands begins with a lone zero."""


_MAX_LENGTH = 1000
"""Maximum length of a text read as a number; Python rejects integers of over 4,300 digits."""


def parse_number(text: str) -> Fraction | None:
    r"""Read `text`, in the form that `normalize_latex` returns, as a number.

    The function reads integers with thousands separators, decimals, repeating decimals, fractions,
    mixed numbers, powers of integers, and `3\times10^8`. It returns None for other texts, for a
    division by zero, and if the text or an exponent exceeds its limit.
    """
    if len(text) > _MAX_LENGTH:
        return None
    if _COMMA.fullmatch(text):
        text = text.replace(",", ".")
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    try:
        value = _matched_value(found)
    except ZeroDivisionError:
        return None
    return -value if value is not None and found["sign"] else value


def leading_number(text: str) -> tuple[Fraction, str] | None:
    """Return the number that `text` begins with, and the text after it; None if there is none."""
    found = _NUMBER.match(text)
    value = parse_number(found[0]) if found else None
    return None if found is None or value is None else (value, text[found.end() :].strip())


def _matched_value(found: re.Match[str]) -> Fraction | None:
    if found["above"]:
        return _mixed_number(
            found["whole"], _parse_decimal(found["above"]) / _parse_decimal(found["below"])
        )
    if found["over"]:
        return _mixed_number(
            found["and"], _parse_decimal(found["over"]) / _parse_decimal(found["under"])
        )
    if found["cycle"]:
        return _repeating_decimal(found["head"], found["cycle"])
    if found["base"]:
        return _bounded_power(Fraction(found["base"]), found["power"])
    scale = _bounded_power(Fraction(10), found["ten"]) if found["ten"] else Fraction(1)
    return None if scale is None else _parse_decimal(found["decimal"]) * scale


def _parse_decimal(digits: str) -> Fraction:
    return Fraction(digits.replace(",", ""))


def _mixed_number(whole: str | None, part: Fraction) -> Fraction | None:
    """Return the sum of a mixed number; None if the part is not a proper fraction."""
    if whole is None:
        return part
    return Fraction(whole) + part if 0 <= part < 1 else None


def _bounded_power(base: Fraction, exponent: str) -> Fraction | None:
    power = int(exponent.strip("{}"))
    return base**power if abs(power) <= MAX_EXPONENT else None


def _repeating_decimal(head: str, cycle: str) -> Fraction:
    """Return the number 0.1666… for `0.1` and `6`."""
    after = len(head.partition(".")[2])
    start = Fraction(head) if head.strip(".") else Fraction(0)
    return start + Fraction(int(cycle), 10**after * (10 ** len(cycle) - 1))


def is_same_number(target: Fraction, answer: Fraction) -> bool:
    """Return whether the answer is the target.

    If only one of the two is a finite decimal, they may differ by `ROUNDING_DISTANCE` times the
    target, but by less than one unit in the decimal's last place.
    """
    if target == answer:
        return True
    if is_terminating(target) == is_terminating(answer):
        return False
    decimal = target if is_terminating(target) else answer
    distance = abs(target - answer)
    return distance <= ROUNDING_DISTANCE * abs(target) and distance < last_place(decimal)


def last_place(value: Fraction) -> Fraction:
    """Return one unit in the last nonzero digit of a finite decimal: 1/100 for 0.25, 10 for 30."""
    places, rest = 0, value
    while rest.denominator != 1:
        places, rest = places + 1, rest * 10
    if places or not rest:
        return Fraction(1, 10**places)
    zeros = len(str(abs(rest.numerator))) - len(str(abs(rest.numerator)).rstrip("0"))
    return Fraction(10**zeros)


def is_terminating(value: Fraction) -> bool:
    """Return whether `value` has finitely many decimals."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1
