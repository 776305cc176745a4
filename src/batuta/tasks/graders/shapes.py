"""The kinds of answers: values, rows of them, equations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """A number, an expression or a word."""

    text: str


@dataclass(frozen=True, slots=True)
class Row:
    r"""Several forms; those without brackets and those in braces have no order."""

    items: tuple[Form, ...]
    opening: str = ""
    """`(`, `[`, `{`, `:` for a ratio, `&` for the rows of a matrix, nothing for a list."""
    closing: str = ""

    @property
    def ordered(self) -> bool:
        """Whether the order counts."""
        return self.opening not in {"", "{"}


@dataclass(frozen=True, slots=True)
class Equation:
    """Two sides; a name on the left makes it a named value."""

    left: str
    right: Form
    text: str
    named: bool


Form = Value | Row | Equation
Same = Callable[[Value, Value], bool]
"""Whether a target's value and an answer's are the same."""

EMPTY = Row((), "{", "}")
INFINITY = r"\infty"
