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
class ExpressionNode:
    """A number, a name, or an operation with its operands."""

    kind: str
    """`number`, `name`, `+`, `*`, `/`, `^`, `-` (one operand), or a function's name."""
    text: str = ""
    parts: tuple[ExpressionNode, ...] = ()


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
_CLOSING_OF = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_FUNCTION_LETTERS = frozenset("fgh")
_ENDS = frozenset(
    {")", "]", "}", "+", "-", "/", r"\cdot", r"\times", r"\div", r"\rfloor", r"\rceil", ""}
)
TWO, MINUS_ONE = ExpressionNode("number", "2"), ExpressionNode("number", "-1")


@lru_cache(maxsize=2048)
def parse_expression(text: str) -> ExpressionNode | None:
    """The tree of an expression; None if it is not read here."""
    try:
        parser = _Parser(_tokenize_expression(text))
        tree = parser.sum()
    except (UnreadableError, RecursionError):
        return None
    return tree if parser.next_token == "" else None


def variables_in(node: ExpressionNode) -> frozenset[str]:
    """The names in a tree: an expression without any has one value."""
    if node.kind == "name":
        return frozenset({node.text})
    names: frozenset[str] = frozenset()
    return names.union(*map(variables_in, node.parts))


def _tokenize_expression(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or len(tokens) > MAX_TOKENS:
            raise UnreadableError
        if not found["space"]:
            tokens.append(found[0])
        elif tokens and tokens[-1][0].isdigit() and text[found.end() : found.end() + 1].isdigit():
            _require_readable(tokens[-3:-1] == [r"\log", "_"])
        at = found.end()
    return tokens


def _require_readable(holds: bool) -> None:  # noqa: FBT001 - it is what is required
    if not holds:
        raise UnreadableError


class _Parser:
    """A parser by recursive descent."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._bars = 0

    @property
    def next_token(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take_token(self, wanted: str = "") -> str:
        sign = self.next_token
        if not sign or (wanted and sign != wanted):
            raise UnreadableError
        self._at += 1
        return sign

    def sum(self) -> ExpressionNode:
        negative = False
        while self.next_token in {"+", "-"}:
            negative ^= self._take_token() == "-"
        terms = [_negate_node(self._product()) if negative else self._product()]
        while self.next_token in {"+", "-"}:
            minus = self._take_token() == "-"
            while self.next_token in {"+", "-"}:
                minus ^= self._take_token() == "-"
            term = self._product()
            terms.append(_negate_node(term) if minus else term)
        return terms[0] if len(terms) == 1 else ExpressionNode("+", "", tuple(terms))

    def _product(self) -> ExpressionNode:
        result = self._implied_product()
        while self.next_token in {r"\cdot", r"\times", "/", r"\div"}:
            divides = self._take_token() in {"/", r"\div"}
            negative = False
            while self.next_token in {"+", "-"}:
                negative ^= self._take_token() == "-"
            factor = self._power() if divides else self._implied_product()
            if divides and not self._is_at_end():
                raise UnreadableError
            factor = _negate_node(factor) if negative else factor
            result = ExpressionNode("/" if divides else "*", "", (result, factor))
        return result

    def _is_at_end(self) -> bool:
        return self.next_token in _ENDS or (self.next_token == "|" and self._bars > 0)

    def _implied_product(self) -> ExpressionNode:
        """Factors side by side."""
        result = self._power()
        while not self._is_at_end():
            digits = self.next_token[0].isdigit() or self.next_token[0] == "."
            if digits and result.kind != "factorial":
                raise UnreadableError
            result = ExpressionNode("*", "", (result, self._power()))
        return result

    def _power(self) -> ExpressionNode:
        base = self._postfix(self._atom())
        if self.next_token != "^":
            return base
        self._take_token()
        if self._is_circle():
            self._take_token()
            return ExpressionNode("degrees", "", (base,))
        return self._postfix(ExpressionNode("^", "", (base, self._argument())))

    def _is_circle(self) -> bool:
        return self.next_token == r"\circ"

    def _postfix(self, base: ExpressionNode) -> ExpressionNode:
        while self.next_token == "!":
            self._take_token()
            base = ExpressionNode("factorial", "", (base,))
        return base

    def _argument(self) -> ExpressionNode:
        """What TeX takes for an argument: a group, or one token."""
        if self.next_token == "{":
            return self._group("{")
        if self.next_token == "-":
            self._take_token()
            return _negate_node(self._argument())
        sign = self.next_token
        if sign[:1].isdigit():
            self._take_token()
            return ExpressionNode("number", sign)
        return self._atom()

    def _group(self, opening: str) -> ExpressionNode:
        self._take_token(opening)
        bars, self._bars = self._bars, 0
        inner = self.sum()
        self._bars = bars
        self._take_token(_CLOSING_OF[opening])
        return inner

    def _atom(self) -> ExpressionNode:
        sign = self.next_token
        if sign in {"(", "[", "{"}:
            return self._group(sign)
        if sign == "|":
            return self._absolute()
        if sign in {r"\lfloor", r"\lceil"}:
            return ExpressionNode(sign[1:], "", (self._group(sign),))
        self._take_token()
        if sign[0].isdigit() or sign[0] == ".":
            return ExpressionNode("number", sign.replace(",", ""))
        if (sign.isalpha() and len(sign) == 1) or sign in _NAMES:
            return self._name(sign)
        if sign.lstrip("\\") in _FUNCTIONS:
            return self._function(sign.lstrip("\\"))
        return self._command(sign)

    def _absolute(self) -> ExpressionNode:
        self._take_token("|")
        self._bars += 1
        inner = self.sum()
        self._bars -= 1
        self._take_token("|")
        return ExpressionNode("abs", "", (inner,))

    def _name(self, letter: str) -> ExpressionNode:
        if self.next_token == "_":
            self._take_token()
            start = self._at
            self._argument()
            return ExpressionNode(
                "name", letter + "_" + "".join(self._tokens[start : self._at]).strip("{}")
            )
        if letter in _FUNCTION_LETTERS and self.next_token == "(":
            raise UnreadableError
        if letter == "e":
            return ExpressionNode("e")
        return ExpressionNode("i") if letter == "i" else ExpressionNode("name", letter)

    def _command(self, command: str) -> ExpressionNode:
        if command == r"\pi":
            return ExpressionNode("pi")
        if command == r"\frac":
            above = self._group("{")
            return ExpressionNode("/", "", (above, self._group("{")))
        if command == r"\binom":
            above = self._group("{")
            return ExpressionNode("binomial", "", (above, self._group("{")))
        if command == r"\sqrt":
            index = self._group("[") if self.next_token == "[" else TWO
            return ExpressionNode("root", "", (self._group("{"), index))
        raise UnreadableError

    def _function(self, name: str) -> ExpressionNode:
        base = power = None
        if name == "log" and self.next_token == "_":
            self._take_token()
            if self.next_token.isdigit() and len(self.next_token) > 1:
                raise UnreadableError  # TeX takes one digit for the base, people do not
            base = self._argument()
        if self.next_token == "^":
            self._take_token()
            power = self._argument()
        if power == ExpressionNode("-", "", (ExpressionNode("number", "1"),)):
            if name not in _INVERSE:
                raise UnreadableError
            name, power = _INVERSE[name], None
        if base is not None:
            name = "log_"  # a bare log may be to any base
        applied = ExpressionNode(name, "", (self._function_argument(), *((base,) if base else ())))
        return applied if power is None else ExpressionNode("^", "", (applied, power))

    def _function_argument(self) -> ExpressionNode:
        """A function's argument: what is in brackets, or the factors up to the next sign."""
        if self.next_token in {"(", "{", "["}:
            return self._group(self.next_token)
        negative = self.next_token == "-"
        if negative:
            self._take_token()
        result = self._power()
        while not self._is_at_end() and self.next_token.lstrip("\\") not in _FUNCTIONS:
            if self.next_token in {"(", "["} or self.next_token[0].isdigit():
                raise UnreadableError
            result = ExpressionNode("*", "", (result, self._power()))
        return _negate_node(result) if negative else result


def _negate_node(node: ExpressionNode) -> ExpressionNode:
    return ExpressionNode("-", "", (node,))
