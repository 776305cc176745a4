r"""Expressions in `latex.plain`'s spelling, read into trees.

It reads what has one meaning. What two people could read in two ways, as `1/2x`, is refused, and
so is what it does not know; another comparer is asked then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

MAX_TOKENS = 400


class UnreadableError(Exception):
    """The text is no expression that is known here, or has more than one meaning."""


@dataclass(frozen=True, slots=True)
class Node:
    """A number, a name, or an operation with its operands."""

    kind: str
    """`number`, `name`, `+`, `*`, `/`, `^`, `-` (one operand), or a function's name."""
    text: str = ""
    parts: tuple[Node, ...] = ()


_TOKEN = re.compile(
    r"(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d*)?|\.\d+)"
    r"|(?P<command>\\[a-zA-Z]+|\\[{}|])"
    r"|(?P<word>(?:arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|exp|log|ln)(?![a-zA-Z]))"
    r"|(?P<letter>[a-zA-Zα-ωΑ-Ω])|(?P<sign>[-+/^_!()\[\]{}|]'*)|(?P<space>\s+)"
)
_NAMES = frozenset(
    [
        r"\alpha",
        r"\beta",
        r"\gamma",
        r"\delta",
        r"\epsilon",
        r"\varepsilon",
        r"\zeta",
        r"\eta",
        r"\theta",
        r"\kappa",
        r"\lambda",
        r"\mu",
        r"\nu",
        r"\xi",
        r"\rho",
        r"\sigma",
        r"\tau",
        r"\phi",
        r"\varphi",
        r"\chi",
        r"\psi",
        r"\omega",
        r"\Gamma",
        r"\Delta",
        r"\Theta",
        r"\Lambda",
        r"\Phi",
        r"\Psi",
        r"\Omega",
        r"\Sigma",
        r"\ell",
    ]
)
_FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "exp",
        "ln",
        "log",
    ]
)
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_CLOSED_BY = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_APPLIED = frozenset("fgh")
_ENDS = frozenset(
    {")", "]", "}", "+", "-", "/", r"\cdot", r"\times", r"\div", r"\rfloor", r"\rceil", ""}
)
TWO, MINUS_ONE = Node("number", "2"), Node("number", "-1")


@lru_cache(maxsize=2048)
def read_expression(text: str) -> Node | None:
    """The tree of an expression; None if it is not read here."""
    try:
        parser = _Parser(_tokens(text))
        tree = parser.sum()
    except (UnreadableError, RecursionError):
        return None
    return tree if parser.ahead == "" else None


def names_in(node: Node) -> frozenset[str]:
    """The names in a tree: an expression without any has one value."""
    if node.kind == "name":
        return frozenset({node.text})
    names: frozenset[str] = frozenset()
    return names.union(*map(names_in, node.parts))


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or len(tokens) > MAX_TOKENS:
            raise UnreadableError
        if not found["space"]:
            tokens.append(found[0])
        elif tokens and tokens[-1][0].isdigit() and text[found.end() : found.end() + 1].isdigit():
            _require(tokens[-3:-1] == [r"\log", "_"])
        at = found.end()
    return tokens


def _require(holds: bool) -> None:  # noqa: FBT001 - it is what is required
    if not holds:
        raise UnreadableError


class _Parser:
    """A parser by recursive descent."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._bars = 0

    @property
    def ahead(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        sign = self.ahead
        if not sign or (wanted and sign != wanted):
            raise UnreadableError
        self._at += 1
        return sign

    def sum(self) -> Node:
        negative = False
        while self.ahead in {"+", "-"}:
            negative ^= self._take() == "-"
        terms = [_negated(self._product()) if negative else self._product()]
        while self.ahead in {"+", "-"}:
            minus = self._take() == "-"
            while self.ahead in {"+", "-"}:
                minus ^= self._take() == "-"
            term = self._product()
            terms.append(_negated(term) if minus else term)
        return terms[0] if len(terms) == 1 else Node("+", "", tuple(terms))

    def _product(self) -> Node:
        result = self._implied()
        while self.ahead in {r"\cdot", r"\times", "/", r"\div"}:
            divides = self._take() in {"/", r"\div"}
            negative = False
            while self.ahead in {"+", "-"}:
                negative ^= self._take() == "-"
            factor = self._power() if divides else self._implied()
            if divides and not self._ends():
                raise UnreadableError
            factor = _negated(factor) if negative else factor
            result = Node("/" if divides else "*", "", (result, factor))
        return result

    def _ends(self) -> bool:
        return self.ahead in _ENDS or (self.ahead == "|" and self._bars > 0)

    def _implied(self) -> Node:
        """Factors side by side."""
        result = self._power()
        while not self._ends():
            digits = self.ahead[0].isdigit() or self.ahead[0] == "."
            if digits and result.kind != "factorial":
                raise UnreadableError
            result = Node("*", "", (result, self._power()))
        return result

    def _power(self) -> Node:
        base = self._postfix(self._atom())
        if self.ahead != "^":
            return base
        self._take()
        if self._is_circle():
            self._take()
            return Node("degrees", "", (base,))
        return self._postfix(Node("^", "", (base, self._argument())))

    def _is_circle(self) -> bool:
        return self.ahead == r"\circ"

    def _postfix(self, base: Node) -> Node:
        while self.ahead == "!":
            self._take()
            base = Node("factorial", "", (base,))
        return base

    def _argument(self) -> Node:
        """What TeX takes for an argument: a group, or one token."""
        if self.ahead == "{":
            return self._group("{")
        if self.ahead == "-":
            self._take()
            return _negated(self._argument())
        sign = self.ahead
        if sign[:1].isdigit():
            self._take()
            return Node("number", sign)
        return self._atom()

    def _group(self, opening: str) -> Node:
        self._take(opening)
        bars, self._bars = self._bars, 0
        inner = self.sum()
        self._bars = bars
        self._take(_CLOSED_BY[opening])
        return inner

    def _atom(self) -> Node:
        sign = self.ahead
        if sign in {"(", "[", "{"}:
            return self._group(sign)
        if sign == "|":
            return self._absolute()
        if sign in {r"\lfloor", r"\lceil"}:
            return Node(sign[1:], "", (self._group(sign),))
        self._take()
        if sign[0].isdigit() or sign[0] == ".":
            return Node("number", sign.replace(",", ""))
        if (sign.isalpha() and len(sign) == 1) or sign in _NAMES:
            return self._name(sign)
        if sign.lstrip("\\") in _FUNCTIONS:
            return self._function(sign.lstrip("\\"))
        return self._command(sign)

    def _absolute(self) -> Node:
        self._take("|")
        self._bars += 1
        inner = self.sum()
        self._bars -= 1
        self._take("|")
        return Node("abs", "", (inner,))

    def _name(self, letter: str) -> Node:
        if self.ahead == "_":
            self._take()
            start = self._at
            self._argument()
            return Node("name", letter + "_" + "".join(self._tokens[start : self._at]).strip("{}"))
        if letter in _APPLIED and self.ahead == "(":
            raise UnreadableError
        if letter == "e":
            return Node("e")
        return Node("i") if letter == "i" else Node("name", letter)

    def _command(self, command: str) -> Node:
        if command == r"\pi":
            return Node("pi")
        if command == r"\frac":
            above = self._group("{")
            return Node("/", "", (above, self._group("{")))
        if command == r"\binom":
            above = self._group("{")
            return Node("binomial", "", (above, self._group("{")))
        if command == r"\sqrt":
            index = self._group("[") if self.ahead == "[" else TWO
            return Node("root", "", (self._group("{"), index))
        raise UnreadableError

    def _function(self, name: str) -> Node:
        base = power = None
        if name == "log" and self.ahead == "_":
            self._take()
            if self.ahead.isdigit() and len(self.ahead) > 1:
                raise UnreadableError  # TeX takes one digit for the base, people do not
            base = self._argument()
        if self.ahead == "^":
            self._take()
            power = self._argument()
        if power == Node("-", "", (Node("number", "1"),)):
            if name not in _INVERSE:
                raise UnreadableError
            name, power = _INVERSE[name], None
        if base is not None:
            name = "log_"  # a bare log may be to any base
        applied = Node(name, "", (self._applied(), *((base,) if base else ())))
        return applied if power is None else Node("^", "", (applied, power))

    def _applied(self) -> Node:
        """A function's argument: what is in brackets, or the factors up to the next sign."""
        if self.ahead in {"(", "{", "["}:
            return self._group(self.ahead)
        negative = self.ahead == "-"
        if negative:
            self._take()
        result = self._power()
        while not self._ends() and self.ahead.lstrip("\\") not in _FUNCTIONS:
            if self.ahead in {"(", "["} or self.ahead[0].isdigit():
                raise UnreadableError
            result = Node("*", "", (result, self._power()))
        return _negated(result) if negative else result


def _negated(node: Node) -> Node:
    return Node("-", "", (node,))
