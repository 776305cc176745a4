r"""Parses expressions, as `normalize_latex` spells them, into functions that compute their values.

Only unambiguous expressions are read. An expression that could be read in two ways, as `1/2x`, or
that is unknown is left to math-verify, which takes a hundred times as long.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false
# mpmath has no types

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from batuta.lab.tasks.graders.evaluation import (
    OPERATIONS,
    UnreadableError,
    Value,
    mpmath_context,
    require_bounded,
)

MAX_TOKENS = 400

Point = Mapping[str, Value]
"""The values of variables."""
Node = Callable[[Point], Value]

_TOKEN = re.compile(
    r"(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d*)?|\.\d+)"
    r"|(?P<command>\\[a-zA-Z]+|\\[{}|])"
    r"|(?P<word>(?:arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|exp|log|ln)(?![a-zA-Z]))"
    r"|(?P<letter>[a-zA-Zα-ωΑ-Ω])|(?P<sign>[-+/^_!()\[\]{}|]'*)|(?P<space>\s+)"
)
_GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|(?:var)?epsilon|[zb]?eta|(?:var)?theta|kappa|lambda|mu|nu|xi|rho|sigma|tau"
    r"|(?:var)?phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Phi|Psi|Omega|Sigma|ell)"
)
_FUNCTION = re.compile(
    r"\\?(?P<arc>arc)?(?P<name>sin|cos|tan|(?(arc)(?!))(?:cot|sec|csc|sinh|cosh|tanh|exp|ln|log))"
)
_CLOSING = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_ENDS = frozenset(
    {"", ")", "]", "}", "+", "-", "/", r"\cdot", r"\times", r"\div", *_CLOSING.values()}
)


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression, as a function of the values of its variables."""

    value: Node
    names: frozenset[str]
    """The variables; an expression without any has a single value."""
    kinds: frozenset[str]
    """`log` without a base, `i` and rounding functions, if they occur in it."""


@lru_cache(maxsize=2048)
def parse_expression(text: str) -> Expression | None:
    """Return the expression that a text is; None if it is not read here."""
    try:
        parser = _Parser(_split_tokens(text))
        value = parser.sum()
    except (UnreadableError, RecursionError):
        return None
    return (
        None if parser.next else Expression(value, frozenset(parser.names), frozenset(parser.kinds))
    )


def _apply_operation(name: str, *parts: Node) -> Node:
    work = OPERATIONS[name]
    return lambda point: require_bounded(work(*(part(point) for part in parts)))


def _return_two(_: Point) -> Value:
    return 2


def _split_tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or len(tokens) > MAX_TOKENS:
            raise UnreadableError
        at = found.end()
        if not found["space"]:
            tokens.append(found[0])
        elif (
            tokens
            and tokens[-1][0].isdigit()
            and text[at : at + 1].isdigit()
            and tokens[-3:-1] != [r"\log", "_"]
        ):
            raise UnreadableError
    return tokens


class _Parser:
    """A recursive-descent parser."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._bars = 0
        self.names: set[str] = set()
        self.kinds: set[str] = set()

    @property
    def next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        sign = self.next
        if not sign or (wanted and sign != wanted):
            raise UnreadableError
        self._at += 1
        return sign

    def _signed(self, part: Callable[[], Node]) -> Node:
        """Parse an operand after any number of signs."""
        negative = False
        while self.next in {"+", "-"}:
            negative ^= self._take() == "-"
        value = part()
        return _apply_operation("-", value) if negative else value

    def sum(self) -> Node:
        result = self._signed(self._product)
        while self.next in {"+", "-"}:
            result = _apply_operation("+", result, self._signed(self._product))
        return result

    def _product(self) -> Node:
        result = self._factors()
        while self.next in {r"\cdot", r"\times", "/", r"\div"}:
            divides = self._take() in {"/", r"\div"}
            factor = self._signed(self._power if divides else self._factors)
            if divides and not self._is_at_end():
                raise UnreadableError
            result = _apply_operation("/" if divides else "*", result, factor)
        return result

    def _is_at_end(self) -> bool:
        return self.next in _ENDS or (self.next == "|" and self._bars > 0)

    def _factors(self) -> Node:
        """Parse factors side by side."""
        result = self._power()
        while not self._is_at_end():
            is_number = self.next[0].isdigit() or self.next[0] == "."
            if is_number and self._tokens[self._at - 1] != "!":
                raise UnreadableError
            result = _apply_operation("*", result, self._power())
        return result

    def _power(self) -> Node:
        base = self._postfix(self._atom())
        if self.next != "^":
            return base
        if self._tokens[self._at + 1 : self._at + 2] == [r"\circ"]:
            self._at += 2
            return _apply_operation("degrees", base)
        self._take()
        return self._postfix(_apply_operation("^", base, self._argument()))

    def _postfix(self, base: Node) -> Node:
        while self.next == "!":
            self._take()
            base = _apply_operation("!", base)
        return base

    def _argument(self) -> Node:
        """Parse what TeX takes as an argument: a group, or one token."""
        if self.next == "{":
            return self._group("{")
        if self.next == "-":
            self._take()
            return _apply_operation("-", self._argument())
        return self._atom()

    def _group(self, opening: str) -> Node:
        self._take(opening)
        bars, self._bars = self._bars, 0
        inner = self.sum()
        self._bars = bars
        self._take(_CLOSING[opening])
        return inner

    def _atom(self) -> Node:
        sign = self.next
        if sign in {"(", "[", "{"}:
            return self._group(sign)
        if sign in {r"\lfloor", r"\lceil"}:
            self.kinds.add(sign[2:])
            return _apply_operation(sign[2:], self._group(sign))
        self._take()
        if sign == "|":
            self._bars += 1
            inner = self.sum()
            self._bars -= 1
            self._take("|")
            return _apply_operation("|", inner)
        if sign[0].isdigit() or sign[0] == ".":
            return lambda _: require_bounded(mpmath_context().mpf(sign.replace(",", "")))
        if (sign.isalpha() and len(sign) == 1) or _GREEK.fullmatch(sign):
            return self._name(sign)
        return self._command(sign.lstrip("\\"))

    def _name(self, letter: str) -> Node:
        if self.next == "_":
            self._take()
            start = self._at
            names = set(self.names)
            self._argument()
            self.names = names
            letter += "_" + "".join(self._tokens[start : self._at]).strip("{}")
        elif letter in "fgh" and self.next == "(":
            raise UnreadableError
        elif letter == "e":
            return lambda _: +mpmath_context().e
        elif letter == "i":
            self.kinds.add("i")
            return lambda _: mpmath_context().mpc(0, 1)
        self.names.add(letter)
        return lambda point: point[letter]

    def _command(self, name: str) -> Node:
        if name == "pi":
            return lambda _: +mpmath_context().pi
        if name in {"frac", "binom"}:
            above = self._group("{")
            return _apply_operation("/" if name == "frac" else name, above, self._group("{"))
        if name == "sqrt":
            index = self._group("[") if self.next == "[" else _return_two
            return _apply_operation(name, self._group("{"), index)
        return self._applied(name)

    def _applied(self, name: str) -> Node:
        """Parse a function's base, power and argument."""
        base = power = None
        if name == "log" and self.next == "_":
            self._take()
            if self.next.isdigit() and len(self.next) > 1:
                raise UnreadableError  # TeX takes one digit as the base, people do not
            base = self._argument()
        if self._tokens[self._at : self._at + 5] == ["^", "{", "-", "1", "}"]:
            self._at += 5
            name = f"arc{name}"
        elif self.next == "^":
            self._take()
            power = self._argument()
        found = _FUNCTION.fullmatch(name)
        if found is None:
            raise UnreadableError
        if name == "log" and base is None:
            self.kinds.add("log")  # it may be to any base
        of = f"a{found['name']}" if found["arc"] else name
        value = _apply_operation(of, self._function_argument(), *((base,) if base else ()))
        return value if power is None else _apply_operation("^", value, power)

    def _function_argument(self) -> Node:
        """Parse a function's argument: a bracketed group, or the factors up to the next sign."""
        if self.next in {"(", "{", "["}:
            return self._group(self.next)
        return self._signed(self._plain_factors)

    def _plain_factors(self) -> Node:
        result = self._power()
        while not self._is_at_end() and not _FUNCTION.fullmatch(self.next):
            if self.next in {"(", "["} or self.next[0].isdigit():
                raise UnreadableError
            result = _apply_operation("*", result, self._power())
        return result
