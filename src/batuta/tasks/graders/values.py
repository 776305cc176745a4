"""Whether two values are the same: as texts, words and numbers first, and only then as symbols."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

from batuta.tasks.graders import units
from batuta.tasks.graders.forms import Value
from batuta.tasks.graders.numbers import equal, number

Symbolic = Callable[[str, str], bool]
"""Whether two LaTeX expressions, the target's and the answer's, are the same."""

_WORD = re.compile(r"\(?\\text\{[^{}]*\}\)?|(?=.*[a-zA-Z]{4})[a-zA-Z]+(?:[ ,.']+[a-zA-Z]+)*")
_BASED = re.compile(r"(\d[0-9A-Z]*)_\{?(\d+)\}?")


def same_value(target: Value, answer: Value, symbolic: Symbolic) -> bool:
    """Whether the answer's value is the target's; `symbolic` is asked only where all else fails."""
    if target == answer:
        return True
    if _WORD.fullmatch(target.text) or _WORD.fullmatch(answer.text):
        return _letters(target.text) == _letters(answer.text)
    if _BASED.fullmatch(target.text) or _BASED.fullmatch(answer.text):
        return _same_based(target.text, answer.text)
    (wanted, unit), (given, other) = units.split(target.text), units.split(answer.text)
    if "%" in {unit, other}:
        return _same_share(wanted, unit, given, other)
    if not unit or not other or unit == other:
        return _same_magnitude(wanted, given, symbolic)
    return _same_quantity(wanted, unit, given, other, symbolic)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.replace(r"\text", "").casefold()))


def _same_based(target: str, answer: str) -> bool:
    """Digits with a base below them; an answer may leave the target's base out, not change it."""
    wanted, given = _BASED.fullmatch(target), _BASED.fullmatch(answer)
    if wanted is None:
        return False
    return answer == wanted[1] if given is None else wanted.groups() == given.groups()


def _same_magnitude(target: str, answer: str, symbolic: Symbolic) -> bool:
    if target == answer:
        return True
    wanted, given = number(target), number(answer)
    if wanted is not None and given is not None:
        return equal(wanted, given)
    return symbolic(target, answer)


def _same_share(target: str, unit: str, answer: str, other: str) -> bool:
    """Per cent: its sign may be left out, but not put behind a number below one."""
    wanted, given = number(target), number(answer)
    if wanted is None or given is None or (unit == other):
        return target == answer or (None not in (wanted, given) and wanted == given)
    if unit == "%":
        return equal(wanted, given) or equal(wanted / 100, given)
    return equal(wanted, given / 100) or (abs(given) > 1 and equal(wanted, given))


def _same_quantity(wanted: str, unit: str, given: str, other: str, symbolic: Symbolic) -> bool:
    """Values of two units: one converted into the other, or both of the same name."""
    amount = units.converted(1.0, other, unit)
    if amount is None:
        return units.same_name(unit, other) and _same_magnitude(wanted, given, symbolic)
    if amount == 1:
        return _same_magnitude(wanted, given, symbolic)
    here, there = number(wanted), number(given)
    if here is None or there is None or math.isnan(amount):
        return False
    there = Fraction(units.converted(float(there), other, unit) or 0)
    return abs(there - here) <= abs(here) / 10**9
