"""Compares expressions by their values, a hundred times faster than simplifying their difference.

Values are computed to so many digits, and kept so close to one, that two expressions are the same
if their values agree in half of the digits, and different otherwise.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false
# mpmath has no types

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any
from zlib import crc32

from batuta.lab.tasks.graders.evaluation import NO_VALUE, SAME, Value, is_complex, mpmath_context
from batuta.lab.tasks.graders.expression import Expression, parse_expression

ROUNDED = 1e-6
"""The relative difference between a decimal and the number that it rounds: six right digits."""

SETTLED = 1e-12
"""The relative error of a bound."""
RANGES = (
    *((1, 2), (2, 3), (0, 1), (-1, 0), (-3, 3), (-2, -1)),
    *((3, 12), (-12, -3), (500, 5000), (-99, -12)),
)
"""The ranges of the variables' values, point by point."""
MIN_POINTS = 3
"""The number of points at which two expressions with variables have to agree."""

_OTHER_KIND = re.compile(
    r"[<>?€£]|\\(?:le|ge|ne|infty)(?![a-zA-Z])|dots|\d \d"
    r"|\\text\{[^{}]{0,200}[a-zA-Z]{2}[^{}]{0,200}[( }]"
    r"|(?<![\\a-zA-Z])[a-zA-Z]{3,}+[^\\]*?(?<![\\a-zA-Z])[a-zA-Z]{3,}"
)
"""Signs that no expression has: comparisons, two numbers side by side, words."""
_INFINITE = frozenset({r"\infty", r"-\infty"})
_DECIMAL = re.compile(r"(?<!\d)\d*+\.(\d+)")


def compare_values(target: str, answer: str, near: float = 0.0) -> bool | None:
    """Compare two expressions or two equations by their values; None if it is unclear.

    Args:
        target: the right answer, as `normalize_latex` spells it.
        answer: the answer to compare, in the same spelling.
        near: the relative distance up to which two numbers without variables count as the same.
    """
    if "=" in target and "=" in answer:
        return _is_same_equation(target, answer)
    wanted, given = parse_expression(target), parse_expression(answer)
    if {target, answer} <= _INFINITE or (
        (wanted is None) != (given is None)
        and _OTHER_KIND.search(target if wanted is None else answer)
    ):
        return target == answer
    if wanted is None or given is None or ("log" in wanted.kinds) != ("log" in given.kinds):
        return None
    return _is_same_at_points(wanted, given, near, _rounded_texts(target, answer))


def _rounded_texts(target: str, answer: str) -> tuple[str, ...]:
    """Return the only text with decimals, and variants with one more in a last digit."""
    if ("." in target) == ("." in answer):
        return ()
    text = target if "." in target else answer
    changed = (
        f"{text[: found.start()]}{Decimal(found[0]) + Decimal(1).scaleb(-len(found[1])):f}{text[found.end() :]}"
        for found in _DECIMAL.finditer(text)
    )
    return (text, *changed)


def _is_same_at_points(
    wanted: Expression, given: Expression, near: float, decimals: tuple[str, ...]
) -> bool | None:
    names, kinds = wanted.names | given.names, wanted.kinds | given.kinds
    agreed = 0
    for place in range(len(RANGES) if names else 1):
        try:
            one, other = (_value_at(each, names, place) for each in (wanted, given))
        except NO_VALUE:
            continue
        imaginary = is_complex(one) + is_complex(other)
        if imaginary and "i" not in kinds:
            if imaginary == 1:
                return None
            continue
        distance, size = abs(one - other), max(abs(one), abs(other))
        if distance > mpmath_context().mpf(SAME) * size:
            if not names and near and distance <= near * size:
                return True
            rounded = decimals and distance <= ROUNDED * (1 + SETTLED) * size
            return _is_rounded(distance, decimals, names, place) if rounded else False
        agreed += 1
    if agreed < (MIN_POINTS if names else 1) or (names and kinds & {"floor", "ceil"}):
        return None
    return True


def _is_rounded(
    distance: Value, texts: tuple[str, ...], names: frozenset[str], place: int
) -> bool | None:
    """Tell whether a difference is smaller than the last digits of the decimals account for."""
    read = [parse_expression(text) for text in texts]
    try:
        values = [_value_at(each, names, place) for each in read if each is not None]
    except NO_VALUE:
        return None
    allowed = sum(abs(value - values[0]) for value in values[1:])
    return bool(distance < allowed * (1 - SETTLED))


def _is_same_equation(target: str, answer: str) -> bool | None:
    """Return True if one equation is a multiple of the other at all points; None if it is not."""
    sides = [parse_expression(side) for text in (target, answer) for side in text.split("=")]
    if len(sides) != 4:  # noqa: PLR2004 - two equations
        return None
    known = [side for side in sides if side is not None and not side.kinds]
    names = frozenset[str]().union(*(side.names for side in known))
    if len(known) != len(sides) or not names:
        return None
    ratios: list[Any] = []
    try:
        for place in range(len(RANGES)):
            left, right, other_left, other_right = (_value_at(side, names, place) for side in known)
            ratios.append((left - right) / (other_left - other_right))
    except NO_VALUE:
        return None
    same = ratios[0] and all(
        abs(one / ratios[0] - 1) < mpmath_context().mpf(SAME) for one in ratios
    )
    return True if same else None


def _value_at(expression: Expression, names: frozenset[str], place: int) -> Value:
    """Return the value at a point that depends only on the names and the place."""
    low, high = RANGES[place]
    context = mpmath_context()
    share = {name: context.mpf(crc32(f"{name}{place}".encode()) + 1) / 2**32 for name in names}
    return expression.value({name: low + (high - low) * value for name, value in share.items()})
