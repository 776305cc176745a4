"""Operations on high-precision values by mpmath, within bounds beyond which nothing is computed."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false
# mpmath has no types

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

DIGITS = 200
SAME = "1e-100"
"""The relative difference up to which two values are the same."""

MOST_BITS, LEAST_BITS = 240, 400
"""The binary magnitude beyond which no value is computed, and that below which it counts as zero."""

MAX_FACTORIAL = 55
MAX_EXPONENT = 1000

Value = Any


class UnreadableError(Exception):
    """The text is no known expression, is ambiguous, or has no value."""


NO_VALUE = (UnreadableError, ArithmeticError, ValueError)


@cache
def mpmath_context() -> Any:
    """Return a context of our own, whose precision nobody else changes."""
    mpmath: Any = importlib.import_module("mpmath")  # an extra, and slow to load
    context = mpmath.MPContext()
    context.dps = DIGITS
    return context


def is_complex(value: Value) -> bool:
    """Tell whether a value has an imaginary part that exceeds rounding errors."""
    return abs(getattr(value, "imag", 0)) > abs(value) * mpmath_context().mpf(SAME)


def require_bounded(value: Value) -> Value:
    """Return the value, or zero where only a rounding error is left.

    Raises:
        UnreadableError: it is too large or too small, or not a number.
    """
    size = mpmath_context().mag(value) if value else 0
    if size < -LEAST_BITS:
        return 0 * value
    if not abs(size) <= MOST_BITS:  # also if it is not a number
        raise UnreadableError
    return value


def _to_radians(value: Value) -> Value:
    return value * mpmath_context().pi / 180


def _raise_power(base: Value, exponent: Value) -> Value:
    context = mpmath_context()
    if not base and not (context.re(exponent) > 0):
        raise UnreadableError
    if base and abs(exponent) * max(1, abs(context.mag(base))) > MAX_EXPONENT:
        raise UnreadableError
    return context.power(base, exponent)


def _take_root(base: Value, index: Value) -> Value:
    context = mpmath_context()
    odd = context.isint(index) and int(index) % 2
    if odd and not is_complex(base) and context.re(base) < 0:
        return -_raise_power(-base, 1 / index)
    return context.sqrt(base) if index == 2 else _raise_power(base, 1 / index)  # noqa: PLR2004 - a square root


def _take_factorial(value: Value) -> Value:
    if not mpmath_context().isint(value) or not 0 <= value <= MAX_FACTORIAL:
        raise UnreadableError
    return mpmath_context().factorial(value)


def _count_choices(above: Value, below: Value) -> Value:
    if max(abs(above), abs(below)) > MAX_EXPONENT:
        raise UnreadableError
    return mpmath_context().binomial(above, below)


def _take_logarithm(value: Value, base: Value = None) -> Value:
    if not value or base == 1:
        raise UnreadableError
    context = mpmath_context()
    return context.log(value) if base is None else context.log(value) / context.log(base)


def _function_value(name: str, value: Value) -> Value:
    if abs(value) > MAX_EXPONENT:
        raise UnreadableError
    return getattr(mpmath_context(), name)(value)


def _round_value(name: str, value: Value) -> Value:
    context = mpmath_context()
    whole = context.nint(context.re(value))
    return (
        whole
        if abs(value - whole) < context.mpf(SAME)
        else getattr(context, name)(context.re(value))
    )


OPERATIONS: Mapping[str, Callable[..., Value]] = {
    "+": operator.add,
    "*": operator.mul,
    "/": operator.truediv,
    "-": operator.neg,
    "^": _raise_power,
    "!": _take_factorial,
    "|": abs,
    "binom": _count_choices,
    "sqrt": _take_root,
    "degrees": _to_radians,
    "floor": partial(_round_value, "floor"),
    "ceil": partial(_round_value, "ceil"),
    "ln": _take_logarithm,
    "log": _take_logarithm,
    **{
        name: partial(_function_value, name)
        for name in (
            *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan"),
            *("sinh", "cosh", "tanh", "exp"),
        )
    },
}
"""The functions of the operations; a root takes its index last, and a logarithm its base, if
any."""
