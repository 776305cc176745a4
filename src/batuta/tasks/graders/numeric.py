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

from batuta.tasks.graders.expression import Node, UnreadableError, names_in, read_expression
from batuta.tasks.graders.numbers import CLOSE

DIGITS = 45
"""Digits that are worked out, besides those of the longest number."""

SPARE = 15
"""Digits that rounding may spoil."""

MAX_BITS = 20_000
"""Of a power: more is not worked out."""

MAX_FACTORIAL = 2_000
SPANS = (
    (1, 2), (2, 3), (0, 1), (0.25, 0.75), (-2, -1), (-1, 0), (-3, 3),
    (3, 12), (-12, -3), (12, 99), (-99, -12),
    (500, 5_000), (-5_000, -500), (10**6, 10**7), (-(10**7), -(10**6)),
)  # fmt: skip
"""Where the values of variables are, point by point."""

STEPS = ("lfloor", "lceil")
"""What is the same at many points without being the same everywhere."""

ENOUGH = 3
"""Points at which two expressions with variables have to agree."""

_RUN = re.compile(r"\d+")
_OTHER_KIND = re.compile(
    r"[<>?€£]|\\(?:le|ge|ne)(?![a-zA-Z])|\d \d|\\text\{[^{}]*[a-zA-Z]{2}[^{}]*[( }]"
    r"|(?<![\\a-zA-Z])[a-zA-Z]{3,}[^\\]*?(?<![\\a-zA-Z])[a-zA-Z]{3,}"
)
"""Of two signs that compare, two numbers, words in `\\text` or in plain prose."""
_DECIMAL = re.compile(r"\d\.\d|(?<!\d)\.\d")


def compare_values(target: str, answer: str, near: float = 0.0) -> bool | None:
    """Whether two expressions or two equations are the same, by their values; None: unclear."""
    if "=" in target and "=" in answer:
        return same_equation(target, answer)
    same = same_numerically(target, answer, near)
    return False if same is None and _differ_in_kind(target, answer) else same


def _differ_in_kind(target: str, answer: str) -> bool:
    """Whether one is an expression, and the other infinite, prose or an inequality."""
    if ("dots" in target) != ("dots" in answer):
        return True
    if r"\infty" in target or r"\infty" in answer:
        bare = {target, answer} <= {r"\infty", r"-\infty"}
        return bare or _is_number(target) or _is_number(answer) or r"\pm" in target + answer
    for one, other in ((target, answer), (answer, target)):
        if read_expression(one) is not None and _OTHER_KIND.search(other):
            return True
    return False


def _is_number(text: str) -> bool:
    tree = read_expression(text)
    return tree is not None and not names_in(tree)


def same_numerically(target: str, answer: str, near: float = 0.0) -> bool | None:
    """Whether two expressions in `latex.plain`'s spelling have the same values; None: unclear.

    Args:
        target: what is right.
        answer: what was answered.
        near: relative distance at which two numbers without variables count as the same.
    """
    expected, given = read_expression(target), read_expression(answer)
    if expected is not None and expected == given:
        return True
    if expected is None or given is None or _has(expected, "log") != _has(given, "log"):
        return None
    rounded = (_DECIMAL.search(target) is None) != (_DECIMAL.search(answer) is None)
    context = _context()
    context.dps = DIGITS + max(map(len, _RUN.findall(target + " " + answer)), default=0)
    names = sorted(names_in(expected) | names_in(given))
    close = float(CLOSE) if rounded else 10.0 ** (SPARE - context.dps)
    if not names:
        return _alike(expected, given, {}, max(near, close))
    return _alike_everywhere(expected, given, tuple(names), close)


def same_equation(target: str, answer: str) -> bool | None:
    """Whether one equation is a multiple of the other; None where that is unclear."""
    trees = [_difference(text) for text in (target, answer)]
    if None in trees:
        return None
    expected, given = (tree for tree in trees if tree is not None)
    context = _context()
    context.dps = DIGITS
    names = sorted(names_in(expected) | names_in(given))
    ratios: list[Any] = []
    for place in range(len(SPANS)):
        point = _point(tuple(names), place)
        try:
            one, other = _value(expected, point), _value(given, point)
        except (UnreadableError, ArithmeticError, ValueError):
            return None
        if not one or not other:
            return None
        ratios.append(one / other)
    apart = max(abs(ratio - ratios[0]) for ratio in ratios)
    if names and apart <= abs(ratios[0]) * 10.0 ** (SPARE - context.dps):
        return True
    return False if _is_polynomial(expected) and _is_polynomial(given) else None


def _is_polynomial(node: Node) -> bool:
    """Whether a tree has sums, products and whole powers alone."""
    if node.kind == "^":
        base, exponent = node.parts
        return exponent.kind == "number" and exponent.text.isdigit() and _is_polynomial(base)
    if node.kind == "/":
        return node.parts[1].kind == "number" and _is_polynomial(node.parts[0])
    return node.kind in {"+", "-", "*", "number", "name", "pi"} and all(
        map(_is_polynomial, node.parts)
    )


def _difference(text: str) -> Node | None:
    left, equals, right = text.partition("=")
    one, other = read_expression(left), read_expression(right)
    if not equals or one is None or other is None:
        return None
    return Node("+", "", (one, Node("-", "", (other,))))


def _alike_everywhere(
    expected: Node, given: Node, names: tuple[str, ...], close: float
) -> bool | None:
    compared = 0
    with_i = _has(expected, "i") or _has(given, "i")
    for place in range(len(SPANS)):
        point = _point(names, place)
        try:
            one, other = _value(expected, point), _value(given, point)
        except (UnreadableError, ArithmeticError, ValueError):
            continue
        if not with_i and (_is_complex(one) or _is_complex(other)):
            if _is_complex(one) != _is_complex(other):
                return None
            continue
        if not _near(one, other, close):
            return False
        compared += 1
    if compared < ENOUGH or any(_has(tree, step) for tree in (expected, given) for step in STEPS):
        return None
    return True


def _alike(expected: Node, given: Node, point: Mapping[str, Any], close: float) -> bool | None:
    try:
        return _near(_value(expected, point), _value(given, point), close)
    except (UnreadableError, ArithmeticError, ValueError):
        return None


def _near(one: Any, other: Any, close: float) -> bool:
    context = _context()
    apart = abs(one - other)
    if not context.isfinite(apart):
        raise UnreadableError
    return apart <= close * max(abs(one), abs(other)) or apart <= 10.0 ** (SPARE - context.dps)


def _is_complex(value: Any) -> bool:
    return abs(getattr(value, "imag", 0)) > abs(value) * 10.0 ** (SPARE - _context().dps)


@cache
def _context() -> Any:
    mpmath: Any = importlib.import_module("mpmath")  # an extra, and slow to load
    return mpmath.MPContext()


def _has(node: Node, kind: str) -> bool:
    return node.kind == kind or any(_has(part, kind) for part in node.parts)


def _point(names: tuple[str, ...], place: int) -> dict[str, Any]:
    """Values that follow from the names, so that the same question has the same answer."""
    context = _context()
    low, high = SPANS[place]
    share = {name: context.mpf(crc32(f"{name}{place}".encode()) + 1) / 2**32 for name in names}
    return {name: low + (high - low) * value for name, value in share.items()}


def _value(node: Node, point: Mapping[str, Any]) -> Any:
    if node.kind == "number":
        return _context().mpf(node.text)
    if node.kind == "name":
        return point[node.text]
    return _OPERATIONS[node.kind](*(_value(part, point) for part in node.parts))


def _power(base: Any, exponent: Any) -> Any:
    context = _context()
    if not base and not exponent:
        raise UnreadableError
    if base:
        bits = abs(exponent) * abs(context.log(abs(base), 2)) if abs(base) != 1 else 0
        if bits > MAX_BITS:
            raise UnreadableError
    return context.power(base, exponent)


def _root(base: Any, index: Any) -> Any:
    context = _context()
    if not index:
        raise UnreadableError
    if index == 2:  # noqa: PLR2004 - a square root
        return context.sqrt(base)
    odd = context.isint(index) and int(index) % 2
    if odd and not _is_complex(base) and context.re(base) < 0:
        return -_power(-base, 1 / index)
    return _power(base, 1 / index)


def _factorial(value: Any) -> Any:
    if _is_complex(value) or not 0 <= value <= MAX_FACTORIAL:
        raise UnreadableError
    return _context().factorial(value)


def _binomial(above: Any, below: Any) -> Any:
    if max(abs(above), abs(below)) > MAX_FACTORIAL:
        raise UnreadableError
    return _context().binomial(above, below)


def _logarithm(value: Any, base: Any = None) -> Any:
    if not value or base == 1:
        raise UnreadableError
    context = _context()
    return context.log(value) if base is None else context.log(value) / context.log(base)


def _rounded(name: str) -> Callable[[Any], Any]:
    def work(value: Any) -> Any:
        context = _context()
        whole = context.nint(context.re(value))
        if abs(value - whole) <= 10.0 ** (SPARE - context.dps):
            return whole
        return getattr(context, name)(context.re(value))

    return work


def _applied(name: str) -> Callable[[Any], Any]:
    def work(value: Any) -> Any:
        if abs(value) > MAX_BITS:
            raise UnreadableError
        return getattr(_context(), name)(value)

    return work


def _in_radians(value: Any) -> Any:
    return value * _context().pi / 180


def _total(*terms: Any) -> Any:
    return sum(terms[1:], terms[0])


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "+": _total,
    "-": operator.neg,
    "*": operator.mul,
    "/": operator.truediv,
    "^": _power,
    "root": _root,
    "abs": abs,
    "pi": lambda: +_context().pi,
    "e": lambda: +_context().e,
    "i": lambda: _context().mpc(0, 1),
    "degrees": _in_radians,
    "factorial": _factorial,
    "binomial": _binomial,
    "lfloor": _rounded("floor"),
    "lceil": _rounded("ceil"),
    "ln": _logarithm,
    "log": _logarithm,
    "log_": _logarithm,
    "arcsin": _applied("asin"),
    "arccos": _applied("acos"),
    "arctan": _applied("atan"),
    **{
        name: _applied(name)
        for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp")
    },
}
