"""Asks math-verify whether two expressions are the same. Runs in a process that may be killed."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false
# sympy and what is built on it have no types

from __future__ import annotations

import math
import re
import sys
from functools import lru_cache
from typing import Any
from zlib import crc32

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify

from batuta.tasks.graders.numbers import ROUNDING_DISTANCE

MAX_DIGITS = 10_000
"""Of an integer that is worked out to be compared."""

CLEAR_DIFFERENCE = 1e-5
"""Relative difference that no rounding makes."""

CANCELLATION_ERROR = 1e-30
"""What subtracting equal numbers may leave."""

_DEGREES = re.compile(r"(?<=\d)\^\\circ ?")

_EXTRACTION_CONFIG = LatexExtractionConfig(
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
    )
)


def is_same_expression(target: str, answer: str, near: float = 0.0) -> bool:
    """Whether the two LaTeX expressions are the same; False if one cannot be read.

    Args:
        target: what is right.
        answer: what was answered.
        near: relative distance at which two numbers count as the same.
    """
    expected, given = _parse_latex(target), _parse_latex(answer)
    if expected is None or given is None or not _is_comparable_in_size(expected, given):
        return False
    distance = _relative_distance(expected, given)
    if near and distance is not None and not (expected.free_symbols or given.free_symbols):
        return distance <= near
    if distance is not None and distance > CLEAR_DIFFERENCE:
        return False
    if not verify([expected], [given], timeout_seconds=None):
        return False
    return (
        distance is None
        or distance <= ROUNDING_DISTANCE
        or not (_has_float(expected) or _has_float(given))
    )


@lru_cache(maxsize=1024)
def _parse_latex(text: str) -> Any:
    """Text as a sympy expression; None if it cannot be read."""
    text = _DEGREES.sub(r"\\cdot\\frac{\\pi}{180}", text)
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
    """A root written as `x^{0.5}`: exactly a root."""
    base, exponent = power.args
    return base ** sympy.Rational(str(exponent))


def _is_comparable_in_size(expected: Any, given: Any) -> bool:
    """Whether working out the answer is no more than working out the target could be."""
    return _count_digits(given) <= MAX_DIGITS or _count_digits(given) == _count_digits(expected)


def _count_digits(expression: Any) -> float:
    """About how many digits the largest number in it has; infinite where that is out of reach."""
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


def _relative_distance(expected: Any, given: Any) -> float | None:
    """The relative distance of two expressions at one point of their variables; None: unknown.

    It spares a wrong answer the attempt to simplify a difference that is not zero.
    """
    try:
        one, other = _at_one_point(expected), _at_one_point(given)
    except (AttributeError, TypeError, ValueError):
        return None
    apart = abs(one - other)
    return 0.0 if apart <= CANCELLATION_ERROR else apart / max(abs(one), abs(other))


def _at_one_point(expression: Any) -> complex:
    """Its value where every variable has a value that follows from its name."""
    point = {symbol: _value_of(symbol.name) for symbol in expression.free_symbols}
    return complex(expression.evalf(15, subs=point))


def _value_of(name: str) -> Any:
    """An exact number between 1 and 2, so that no digit is lost to rounding."""
    return 1 + sympy.Rational(crc32(name.encode()), 2**32)


def _has_float(expression: Any) -> bool:
    return isinstance(expression, sympy.Basic) and expression.has(sympy.Float)
