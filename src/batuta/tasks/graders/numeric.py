"""Compares expressions by their values, a hundred times faster than simplifying their difference.

Two expressions whose values agree to forty digits at points that nobody chose are the same; two
that differ at one are not. Where a value leaves the reals at some points only, and where an
expression is not read, nothing is decided.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false
# mpmath has no types

from __future__ import annotations

import importlib
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from zlib import crc32

from batuta.tasks.graders.expression import (
    ExpressionNode,
    UnreadableError,
    parse_expression,
    variables_in,
)
from batuta.tasks.graders.numbers import ROUNDING_DISTANCE

DIGITS = 45
"""Digits that are worked out, besides those of the longest number."""

SPARE_DIGITS = 15
"""Digits that rounding may spoil."""

MAX_BITS = 20_000
"""Of a power: more is not worked out."""

MAX_FACTORIAL = 2_000
SAMPLE_RANGES = (
    (1, 2), (2, 3), (0, 1), (0.25, 0.75), (-2, -1), (-1, 0), (-3, 3),
    (3, 12), (-12, -3), (12, 99), (-99, -12),
    (500, 5_000), (-5_000, -500), (10**6, 10**7), (-(10**7), -(10**6)),
)  # fmt: skip
"""Where the values of variables are, point by point."""

STEP_FUNCTIONS = ("lfloor", "lceil")
"""What is the same at many points without being the same everywhere."""

MIN_POINTS = 3
"""Points at which two expressions with variables have to agree."""

_DIGIT_RUN = re.compile(r"\d+")
_OTHER_KIND = re.compile(
    r"[<>?€£]|\\(?:le|ge|ne)(?![a-zA-Z])|\d \d|\\text\{[^{}]*[a-zA-Z]{2}[^{}]*[( }]"
    r"|(?<![\\a-zA-Z])[a-zA-Z]{3,}[^\\]*?(?<![\\a-zA-Z])[a-zA-Z]{3,}"
)
"""Of two signs that compare, two numbers, words in `\\text` or in plain prose."""
_DECIMAL = re.compile(r"\d\.\d|(?<!\d)\.\d")


def compare_values(target: str, answer: str, near: float = 0.0) -> bool | None:
    """Whether two expressions or two equations are the same, by their values; None: unclear."""
    if "=" in target and "=" in answer:
        return is_same_equation(target, answer)
    same = is_same_numerically(target, answer, near)
    return False if same is None and _differ_in_kind(target, answer) else same


def _differ_in_kind(target: str, answer: str) -> bool:
    """Whether one is an expression, and the other infinite, prose or an inequality."""
    if ("dots" in target) != ("dots" in answer):
        return True
    if r"\infty" in target or r"\infty" in answer:
        bare = {target, answer} <= {r"\infty", r"-\infty"}
        return bare or _is_number(target) or _is_number(answer) or r"\pm" in target + answer
    for one, other in ((target, answer), (answer, target)):
        if parse_expression(one) is not None and _OTHER_KIND.search(other):
            return True
    return False


def _is_number(text: str) -> bool:
    tree = parse_expression(text)
    return tree is not None and not variables_in(tree)


def is_same_numerically(target: str, answer: str, near: float = 0.0) -> bool | None:
    """Whether two expressions in `latex.plain`'s spelling have the same values; None: unclear.

    Args:
        target: what is right.
        answer: what was answered.
        near: relative distance at which two numbers without variables count as the same.
    """
    expected, given = parse_expression(target), parse_expression(answer)
    if expected is not None and expected == given:
        return True
    if expected is None or given is None or _has_kind(expected, "log") != _has_kind(given, "log"):
        return None
    rounded = (_DECIMAL.search(target) is None) != (_DECIMAL.search(answer) is None)
    context = _mpmath_context()
    context.dps = DIGITS + max(map(len, _DIGIT_RUN.findall(target + " " + answer)), default=0)
    names = sorted(variables_in(expected) | variables_in(given))
    close = float(ROUNDING_DISTANCE) if rounded else 10.0 ** (SPARE_DIGITS - context.dps)
    if not names:
        return _is_same_at_point(expected, given, {}, max(near, close))
    return _is_same_at_points(expected, given, tuple(names), close)


def is_same_equation(target: str, answer: str) -> bool | None:
    """Whether one equation is a multiple of the other; None where that is unclear."""
    trees = [_difference_of_sides(text) for text in (target, answer)]
    if None in trees:
        return None
    expected, given = (tree for tree in trees if tree is not None)
    context = _mpmath_context()
    context.dps = DIGITS
    names = sorted(variables_in(expected) | variables_in(given))
    ratios: list[Any] = []
    for place in range(len(SAMPLE_RANGES)):
        point = _sample_point(tuple(names), place)
        try:
            one, other = _evaluate_node(expected, point), _evaluate_node(given, point)
        except (UnreadableError, ArithmeticError, ValueError):
            return None
        if not one or not other:
            return None
        ratios.append(one / other)
    apart = max(abs(ratio - ratios[0]) for ratio in ratios)
    if names and apart <= abs(ratios[0]) * 10.0 ** (SPARE_DIGITS - context.dps):
        return True
    return False if _is_polynomial(expected) and _is_polynomial(given) else None


def _is_polynomial(node: ExpressionNode) -> bool:
    """Whether a tree has sums, products and whole powers alone."""
    if node.kind == "^":
        base, exponent = node.parts
        return exponent.kind == "number" and exponent.text.isdigit() and _is_polynomial(base)
    if node.kind == "/":
        return node.parts[1].kind == "number" and _is_polynomial(node.parts[0])
    return node.kind in {"+", "-", "*", "number", "name", "pi"} and all(
        map(_is_polynomial, node.parts)
    )


def _difference_of_sides(text: str) -> ExpressionNode | None:
    left, equals, right = text.partition("=")
    one, other = parse_expression(left), parse_expression(right)
    if not equals or one is None or other is None:
        return None
    return ExpressionNode("+", "", (one, ExpressionNode("-", "", (other,))))


def _is_same_at_points(
    expected: ExpressionNode, given: ExpressionNode, names: tuple[str, ...], close: float
) -> bool | None:
    compared = 0
    with_i = _has_kind(expected, "i") or _has_kind(given, "i")
    for place in range(len(SAMPLE_RANGES)):
        point = _sample_point(names, place)
        try:
            one, other = _evaluate_node(expected, point), _evaluate_node(given, point)
        except (UnreadableError, ArithmeticError, ValueError):
            continue
        if not with_i and (_is_complex(one) or _is_complex(other)):
            if _is_complex(one) != _is_complex(other):
                return None
            continue
        if not _is_near(one, other, close):
            return False
        compared += 1
    if compared < MIN_POINTS or any(
        _has_kind(tree, step) for tree in (expected, given) for step in STEP_FUNCTIONS
    ):
        return None
    return True


def _is_same_at_point(
    expected: ExpressionNode, given: ExpressionNode, point: Mapping[str, Any], close: float
) -> bool | None:
    try:
        return _is_near(_evaluate_node(expected, point), _evaluate_node(given, point), close)
    except (UnreadableError, ArithmeticError, ValueError):
        return None


def _is_near(one: Any, other: Any, close: float) -> bool:
    context = _mpmath_context()
    apart = abs(one - other)
    if not context.isfinite(apart):
        raise UnreadableError
    return apart <= close * max(abs(one), abs(other)) or apart <= 10.0 ** (
        SPARE_DIGITS - context.dps
    )


def _is_complex(value: Any) -> bool:
    return abs(getattr(value, "imag", 0)) > abs(value) * 10.0 ** (
        SPARE_DIGITS - _mpmath_context().dps
    )


@cache
def _mpmath_context() -> Any:
    mpmath: Any = importlib.import_module("mpmath")  # an extra, and slow to load
    return mpmath.MPContext()


def _has_kind(node: ExpressionNode, kind: str) -> bool:
    return node.kind == kind or any(_has_kind(part, kind) for part in node.parts)


def _sample_point(names: tuple[str, ...], place: int) -> dict[str, Any]:
    """Values that follow from the names, so that the same question has the same answer."""
    context = _mpmath_context()
    low, high = SAMPLE_RANGES[place]
    share = {name: context.mpf(crc32(f"{name}{place}".encode()) + 1) / 2**32 for name in names}
    return {name: low + (high - low) * value for name, value in share.items()}


def _evaluate_node(node: ExpressionNode, point: Mapping[str, Any]) -> Any:
    if node.kind == "number":
        return _mpmath_context().mpf(node.text)
    if node.kind == "name":
        return point[node.text]
    return _OPERATIONS[node.kind](*(_evaluate_node(part, point) for part in node.parts))


def _evaluate_power(base: Any, exponent: Any) -> Any:
    context = _mpmath_context()
    if not base and not exponent:
        raise UnreadableError
    if base:
        bits = abs(exponent) * abs(context.log(abs(base), 2)) if abs(base) != 1 else 0
        if bits > MAX_BITS:
            raise UnreadableError
    return context.power(base, exponent)


def _evaluate_root(base: Any, index: Any) -> Any:
    context = _mpmath_context()
    if not index:
        raise UnreadableError
    if index == 2:  # noqa: PLR2004 - a square root
        return context.sqrt(base)
    odd = context.isint(index) and int(index) % 2
    if odd and not _is_complex(base) and context.re(base) < 0:
        return -_evaluate_power(-base, 1 / index)
    return _evaluate_power(base, 1 / index)


def _evaluate_factorial(value: Any) -> Any:
    if _is_complex(value) or not 0 <= value <= MAX_FACTORIAL:
        raise UnreadableError
    return _mpmath_context().factorial(value)


def _evaluate_binomial(above: Any, below: Any) -> Any:
    if max(abs(above), abs(below)) > MAX_FACTORIAL:
        raise UnreadableError
    return _mpmath_context().binomial(above, below)


def _evaluate_logarithm(value: Any, base: Any = None) -> Any:
    if not value or base == 1:
        raise UnreadableError
    context = _mpmath_context()
    return context.log(value) if base is None else context.log(value) / context.log(base)


def _rounding_function(name: str) -> Callable[[Any], Any]:
    def work(value: Any) -> Any:
        context = _mpmath_context()
        whole = context.nint(context.re(value))
        if abs(value - whole) <= 10.0 ** (SPARE_DIGITS - context.dps):
            return whole
        return getattr(context, name)(context.re(value))

    return work


def _mpmath_function(name: str) -> Callable[[Any], Any]:
    def work(value: Any) -> Any:
        if abs(value) > MAX_BITS:
            raise UnreadableError
        return getattr(_mpmath_context(), name)(value)

    return work


def _degrees_to_radians(value: Any) -> Any:
    return value * _mpmath_context().pi / 180


def _sum_terms(*terms: Any) -> Any:
    return sum(terms[1:], terms[0])


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "+": _sum_terms,
    "-": operator.neg,
    "*": operator.mul,
    "/": operator.truediv,
    "^": _evaluate_power,
    "root": _evaluate_root,
    "abs": abs,
    "pi": lambda: +_mpmath_context().pi,
    "e": lambda: +_mpmath_context().e,
    "i": lambda: _mpmath_context().mpc(0, 1),
    "degrees": _degrees_to_radians,
    "factorial": _evaluate_factorial,
    "binomial": _evaluate_binomial,
    "lfloor": _rounding_function("floor"),
    "lceil": _rounding_function("ceil"),
    "ln": _evaluate_logarithm,
    "log": _evaluate_logarithm,
    "log_": _evaluate_logarithm,
    "arcsin": _mpmath_function("asin"),
    "arccos": _mpmath_function("acos"),
    "arctan": _mpmath_function("atan"),
    **{
        name: _mpmath_function(name)
        for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp")
    },
}
