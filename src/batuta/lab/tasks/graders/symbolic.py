"""Compares two expressions with math-verify, in a process that may be killed."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false
# sympy and the packages that use it have no types

from __future__ import annotations

import math
import re
import sys
from decimal import Decimal
from functools import lru_cache
from typing import Any
from zlib import crc32

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core.evalf import PrecisionExhausted
from sympy.core.relational import Relational

from batuta.lab.tasks.graders.numbers import ROUNDING_DISTANCE

MAX_DIGITS = 10_000
"""Maximum number of digits of an integer that is computed for a comparison."""

CLEAR_DIFFERENCE = 1e-5
"""A relative difference larger than any rounding."""

POINTS = 3
"""The number of points at which the sides of two relations are compared."""

EXACT_DIGITS = 15
WORKING_DIGITS = 400
"""The number of correct digits required of a value, and the maximum number of digits of the
computation. A value that is still below the rounding error with so many digits counts as zero."""

SUBTRACTION_ERROR = 1e-9
"""The relative error of the difference of two nearly equal values of fifteen digits."""

ROUNDING_ERROR = 1e-12
"""The relative error that computing an infinite sum or an integral may leave."""

_SLOW_KINDS = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)
_SPELLINGS = (
    (re.compile(r"(?<=[\d)}])\^\\circ ?"), r"\\cdot\\frac{\\pi}{180}"),
    (re.compile(r"(?<![a-zA-Z\\])(ln|log|exp|(?:arc)?(?:sin|cos|tan))(?![a-zA-Z])"), r"\\\1"),
    (re.compile(r"\\log_e(?![a-zA-Z])"), r"\\ln"),
    (re.compile(r"\\log_(\d) "), r"\\log_{\1}"),
    (re.compile(r"\^-(\d+)"), r"^{-\1}"),
)
"""Notations that latex2sympy2 misreads: degrees, functions without a backslash, bases."""

_DECIMAL = re.compile(r"(?<!\d)\d*+\.(\d+)")
_EXTRACTION_CONFIG = LatexExtractionConfig(
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
    )
)


def is_same_expression(target: str, answer: str, near: float = 0.0) -> bool:
    """Return whether two LaTeX expressions are the same; False if one is unreadable or too large.

    With `near`, two numbers are the same up to this relative distance.
    """
    expected, given = _parse_latex(target), _parse_latex(answer)
    if expected is None or given is None or not _is_comparable_in_size(expected, given):
        return False
    distance = _relative_distance(expected, given)
    if near and distance is not None and not (expected.free_symbols or given.free_symbols):
        return bool(distance <= near)
    if distance is not None and distance > CLEAR_DIFFERENCE:
        return False
    if distance and ("." in target) != ("." in answer):
        return _is_rounded(distance, target if "." in target else answer)
    if not verify([expected], [given], timeout_seconds=None):
        return False
    if distance is None:
        return not _is_only_near(expected, given)
    if _has_float(expected) or _has_float(given):
        return bool(distance <= ROUNDING_DISTANCE)
    return not distance


def _is_rounded(distance: Any, text: str) -> bool:
    """Return whether a distance may come from rounding the decimals of the text."""
    whole = _parse_latex(text)
    changed = (
        f"{text[: found.start()]}{Decimal(found[0]) + Decimal(1).scaleb(-len(found[1])):f}{text[found.end() :]}"
        for found in _DECIMAL.finditer(text)
    )
    allowed = sum(_relative_distance(whole, _parse_latex(each)) or 0.0 for each in changed)
    return bool(distance < allowed and distance <= ROUNDING_DISTANCE * (1 + SUBTRACTION_ERROR))


@lru_cache(maxsize=1024)
def _parse_latex(text: str) -> Any:
    """Return the text as a sympy expression; None if it cannot be read."""
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    found = parse(
        f"${text}$",
        [_EXTRACTION_CONFIG],
        fallback_mode="no_fallback",
        parsing_timeout=None,  # pyright: ignore[reportArgumentType] - None is documented
    )
    if not found:
        return None
    read: Any = found[0]
    if not isinstance(found[0], sympy.Expr) or read.has(sympy.Sum, sympy.Product):
        return read
    unit = {symbol: sympy.I for symbol in read.free_symbols if symbol.name == "i"}
    return read.subs(unit).replace(_has_decimal_power, _with_exact_power)


def _has_decimal_power(expression: Any) -> bool:
    return isinstance(expression, sympy.Pow) and expression.args[1].is_Float


def _with_exact_power(power: Any) -> Any:
    """Return a power such as `x^{0.5}` with an exact exponent."""
    base, exponent = power.args
    return base ** sympy.Rational(str(exponent))


def _is_comparable_in_size(expected: Any, given: Any) -> bool:
    """Return whether the answer's numbers can be computed, or are as large as the target's."""
    return _count_digits(given) <= MAX_DIGITS or _count_digits(given) == _count_digits(expected)


def _count_digits(expression: Any) -> float:
    """Return roughly how many digits the expression's largest number has; infinite if too many."""
    if not isinstance(expression, sympy.Basic):
        return 0.0
    parts = [_count_digits(part) for part in expression.args]
    most = max(parts, default=0.0)
    if isinstance(expression, sympy.Integer):
        return math.log10(abs(int(expression)) + 1)
    if isinstance(expression, sympy.Pow) and not expression.args[1].free_symbols:
        return parts[0] * _power_of_ten(parts[1])
    if isinstance(expression, sympy.factorial | sympy.binomial) and not expression.free_symbols:
        return _power_of_ten(most) * max(most, 1.0)
    return sum(parts) if isinstance(expression, sympy.Mul) else most


def _power_of_ten(digits: float) -> float:
    return 10.0**digits if digits < sys.float_info.max_10_exp else math.inf


def _relative_distance(expected: Any, given: Any) -> Any:
    """Return the relative distance of two expressions at one point; None if it is unknown.

    This avoids simplifying the non-zero difference of a wrong answer, and finds differences that
    math-verify takes for rounding. The distance may be smaller than any float.
    """
    try:
        point = _point_for(expected, given)
        if any(one.has(*_SLOW_KINDS) for one in (expected, given)):
            one, other = (each.evalf(EXACT_DIGITS, subs=point) for each in (expected, given))
            apart, size = abs(one - other), max(abs(one), abs(other))
            return apart / size if apart > ROUNDING_ERROR * size else 0.0
        size = max(abs(_number_at(one, point)) for one in (expected, given))
        apart = abs(_number_at(expected - given, point))
    except (AttributeError, TypeError, ValueError):
        return None
    return apart / size if apart and size else apart


def _point_for(*expressions: Any, number: int = 0) -> dict[Any, Any]:
    """Return a value for each variable, which depends only on the variable's name and `number`."""
    names = set().union(*(one.free_symbols for one in expressions))
    return {symbol: _value_of(f"{symbol.name}{number or ''}") for symbol in names}


def _number_at(expression: Any, point: dict[Any, Any]) -> Any:
    """Return the value at a point, correct to its last digit; zero where only rounding is left.

    Raises:
        AttributeError, TypeError, ValueError: the expression has no value there.
    """
    try:
        found = expression.evalf(EXACT_DIGITS, subs=point, strict=True, maxn=WORKING_DIGITS)
    except PrecisionExhausted:
        less, found = (
            expression.evalf(EXACT_DIGITS, subs=point, maxn=digits)
            for digits in (WORKING_DIGITS // 2, WORKING_DIGITS)
        )
        if abs(found - less) > CLEAR_DIFFERENCE * abs(found):
            return sympy.Integer(0)
    if not found.is_number or not found.is_finite:
        raise ValueError(found)
    return found


def _is_only_near(expected: Any, given: Any) -> bool:
    """Return whether two relations, sets or tuples differ by less than math-verify notices."""
    if _has_float(expected) or _has_float(given):
        return False
    if isinstance(expected, Relational) and isinstance(given, Relational):
        return _has_near_sides(expected, given)
    pairs = zip(_items_in(expected), _items_in(given), strict=False)
    distances = (_relative_distance(one, other) for one, other in pairs)
    return any(found and found <= CLEAR_DIFFERENCE for found in distances)


def _items_in(expression: Any) -> list[Any]:
    items: Any = ()
    if isinstance(expression, sympy.MatrixBase):
        items = expression.flat()
    elif isinstance(expression, sympy.Basic):
        items = sympy.ordered(expression.args)
    return list(items)


def _has_near_sides(expected: Any, given: Any) -> bool:
    """Return whether one relation is nearly, but not exactly, a multiple of the other."""
    one, other = expected.lhs - expected.rhs, given.lhs - given.rhs
    try:
        points = [_point_for(one, other, number=number) for number in range(POINTS)]
        first, *others = (one.subs(point) / other.subs(point) for point in points)
        apart = [abs(_number_at(ratio - first, {})) for ratio in others]
        size = abs(_number_at(first, {}))
    except (AttributeError, TypeError, ValueError):
        return False
    return any(apart) and max(apart) <= CLEAR_DIFFERENCE * size


def _value_of(name: str) -> Any:
    """Return an exact number between 1 and 2, so that no digit is lost to rounding."""
    return 1 + sympy.Rational(crc32(name.encode()), 2**32)


def _has_float(expression: Any) -> bool:
    return isinstance(expression, sympy.Basic) and expression.has(sympy.Float)
