"""Compares two values: first as text, words and numbers, then symbolically."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from batuta.lab.tasks.graders import units
from batuta.lab.tasks.graders.forms import ValueForm
from batuta.lab.tasks.graders.number_words import parse_number_words
from batuta.lab.tasks.graders.numbers import is_same_number, is_terminating, parse_number
from batuta.lab.tasks.graders.times import parse_measure

SymbolicComparison = Callable[[str, str, float], bool]
"""Returns whether the LaTeX expressions of target and answer are the same, or are numbers within
the relative distance in the third argument."""

_WORD = re.compile(r"\(?\\text\{[^{}]*\}\)?|(?=.*[a-zA-Z]{4})[a-zA-Z]+(?:[ ,.']+[a-zA-Z]+)*")
_CONSTANT = re.compile(r"\+(?:[cKk]|[cC]_1)\Z")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_DEGREE = re.compile(r"\^\\circ|°|(?:\\text\{)?\s*deg(?:rees?)?\s*\}?")
_RADIAN = re.compile(r"(?:\\text\{)?\s*rad(?:ians?)?\s*\}?")
_DECIMAL = re.compile(r"-?\d*\.(\d+)")
_SHORT_NUMBERS = frozenset({"one", "two", "six", "ten"})
MIN_ROUNDED_FROM_EXACT, MIN_ROUNDED_FROM_DECIMAL = 3, 6
"""Minimum number of characters of a decimal that counts as a rounded exact number, and of digits
of a decimal that counts as a rounded longer decimal."""
_WHOLE = re.compile(r"-?\d[\d,]*")
_OTHER_KIND = re.compile(
    r"[<>?€£]|\\(?:le|ge|ne|infty)(?![a-zA-Z])|dots|(?<!_)\d \d"
    r"|\\text\{[^{}]{0,200}[a-zA-Z]{2}[^{}]{0,200}[( }]"
    r"|(?<![\\a-zA-Z])[a-zA-Z]{3,}+[^\\]*?(?<![\\a-zA-Z])[a-zA-Z]{3,}"
)
"""Signs that no expression has: comparisons, two numbers side by side, words."""
_BASED_DIGITS = re.compile(r"(\d[0-9A-Z]*)_\{?(\d+)\}?")


def is_same_value(target: ValueForm, answer: ValueForm, symbolic: SymbolicComparison) -> bool:
    """Return whether the values are the same; `symbolic` is called only if nothing else decides."""
    if _CONSTANT.search(answer.text) and target.text.endswith("+C"):
        answer = ValueForm(_CONSTANT.sub("+C", answer.text))
    if target == answer:
        return True
    if (same := _is_same_spelling(target.text, answer.text)) is not None:
        return same
    (wanted, unit), (given, other) = units.split_unit(target.text), units.split_unit(answer.text)
    if _is_angle(unit) or _is_angle(other):
        return _is_same_angle((wanted, unit), (given, other), symbolic)
    if "%" in {unit, other}:
        return _is_same_share(wanted, unit, given, other)
    if not unit or not other or unit == other:
        return _is_same_magnitude(wanted, given, symbolic)
    return _is_same_quantity(wanted, unit, given=given, other=other, symbolic=symbolic)


def _is_same_spelling(target: str, answer: str) -> bool | None:
    """Return whether words, based digits or quantities are the same; None for expressions."""
    if (measured := _is_same_measure(target, answer)) is not None:
        return measured
    if _WORD.fullmatch(target) or _WORD.fullmatch(answer):
        return _letters_only(target) == _letters_only(answer) or _is_same_spoken(target, answer)
    if answer in _SHORT_NUMBERS:
        return _is_same_spoken(target, answer)
    if target.endswith("'") != answer.endswith("'"):
        return False
    if _BASED_DIGITS.fullmatch(target) or _BASED_DIGITS.fullmatch(answer):
        return _is_same_based(target, answer)
    return None


def _is_same_measure(target: str, answer: str) -> bool | None:
    """Return whether quantities in several units, or money, are the same; None for others."""
    wanted, given = parse_measure(target), parse_measure(answer)
    kinds = {found[0] for found in (wanted, given) if found}
    if not kinds or (kinds != {"money"} and max(m[2] for m in (wanted, given) if m) == 1):
        return None
    if wanted is None or given is None:
        return None if kinds == {"money"} else False
    return wanted[:2] == given[:2]


def _is_same_spoken(target: str, answer: str) -> bool:
    """Return whether both are the same number, in digits or in words."""
    one, other = _parse_number_or_words(target), _parse_number_or_words(answer)
    return one is not None and one == other


def _parse_number_or_words(text: str) -> Fraction | None:
    value = parse_number(text)
    return parse_number_words(_TEXT.sub(r"\1", text)) if value is None else value


def _is_angle(unit: str) -> bool:
    return _DEGREE.fullmatch(unit.strip()) is not None


def _is_same_angle(
    target: tuple[str, str], answer: tuple[str, str], symbolic: SymbolicComparison
) -> bool:
    """Return whether two angles are the same, each in degrees, in radians or without a unit.

    A bare number is in degrees, a bare multiple of pi in radians.
    """
    (wanted, unit), (given, other) = target, answer
    if (_is_angle(unit) or not unit) and (_is_angle(other) or not other):
        bare = given if _is_angle(unit) else wanted
        if (_is_angle(unit) and _is_angle(other)) or r"\pi" not in bare:
            return _is_same_magnitude(wanted, given, symbolic)
    elif not all(_is_angle(one) or _RADIAN.fullmatch(one.strip()) for one in (unit, other)):
        return False
    expected, found = (
        f"({value})^\\circ" if _is_angle(one) else value for value, one in (target, answer)
    )
    return symbolic(expected, found, 0.0)


def _letters_only(text: str) -> str:
    return "".join(filter(str.isalnum, text.replace(r"\text", "").casefold()))


def _is_same_based(target: str, answer: str) -> bool:
    """Return whether digits with a base as index are the same; an answer may omit the base."""
    wanted, given = _BASED_DIGITS.fullmatch(target), _BASED_DIGITS.fullmatch(answer)
    if wanted is None:
        return False
    return answer == wanted[1] if given is None else wanted.groups() == given.groups()


def _is_rounding(
    target: str, answer: str, given: Fraction | None, symbolic: SymbolicComparison
) -> bool:
    """Return whether a decimal target rounds the answer: an exact number, or a longer decimal."""
    decimal = _DECIMAL.fullmatch(target)
    if decimal is None or len(decimal[0].strip("-0.")) < MIN_ROUNDED_FROM_EXACT:
        return False
    half = Fraction(1, 2 * 10 ** len(decimal[1]))
    if given is None:
        size = abs(Fraction(target))
        exact = "." not in answer and size > 0
        return (
            exact and _is_same_kind(target, answer) and symbolic(target, answer, float(half / size))
        )
    digits = len(decimal[0].replace(".", "").strip("-0"))
    close = abs(given - Fraction(target)) <= half
    if _DECIMAL.fullmatch(answer):
        return close and digits >= MIN_ROUNDED_FROM_DECIMAL and len(answer) > len(target)
    return close and not is_terminating(given)


def _is_same_magnitude(target: str, answer: str, symbolic: SymbolicComparison) -> bool:
    if target == answer:
        return True
    wanted, given = parse_number(target), parse_number(answer)
    if wanted is not None and given is not None:
        return _is_same_written(target, answer, wanted, given) or _is_rounding(
            target, answer, given, symbolic
        )
    if wanted is not None and _is_rounding(target, answer, given, symbolic):
        return True
    return _is_same_kind(target, answer) and symbolic(target, answer, 0.0)


def _is_same_kind(target: str, answer: str) -> bool:
    """Return whether both may be expressions, or neither is one."""
    return (_OTHER_KIND.search(target) is None) == (_OTHER_KIND.search(answer) is None)


def _is_same_written(target: str, answer: str, wanted: Fraction, given: Fraction) -> bool:
    """Return whether two numbers are the same, or neither is whole and one rounds the other."""
    if _WHOLE.fullmatch(target) or _WHOLE.fullmatch(answer):
        return wanted == given
    return is_same_number(wanted, given)


def _is_same_share(target: str, unit: str, answer: str, other: str) -> bool:
    """Return whether percentages are the same.

    The sign may be omitted, but not added to a number of at most 1.
    """
    wanted, given = parse_number(target), parse_number(answer)
    if wanted is None or given is None or (unit == other):
        return target == answer or (None not in (wanted, given) and wanted == given)
    if unit == "%":
        return is_same_number(wanted, given) or is_same_number(wanted / 100, given)
    return is_same_number(wanted, given / 100) or (abs(given) > 1 and is_same_number(wanted, given))


def _is_same_quantity(
    wanted: str, unit: str, given: str, other: str, *, symbolic: SymbolicComparison
) -> bool:
    """Return whether two values are the same after conversion; unknown units are compared by name."""
    try:
        amount = units.convert_value(1, other, unit)
    except units.OtherKindError:
        return False
    if amount is None:
        return units.is_same_unit_name(unit, other) and _is_same_magnitude(wanted, given, symbolic)
    if amount == 1:
        return _is_same_magnitude(wanted, given, symbolic)
    here, there = parse_number(wanted), parse_number(given)
    converted = None if there is None else units.convert_value(there, other, unit)
    return here is not None and converted is not None and is_same_number(here, converted)
