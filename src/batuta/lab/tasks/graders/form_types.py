"""The forms that answers have: values, sequences and equations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValueForm:
    """A number, an expression or a word."""

    text: str


@dataclass(frozen=True, slots=True)
class SequenceForm:
    r"""Several forms; those without brackets or in braces have no order."""

    items: tuple[Form, ...]
    opening: str = ""
    """`(`, `[` or `{`; `:` for a ratio, `&` for the rows of a matrix, empty for a list."""
    closing: str = ""

    @property
    def is_ordered(self) -> bool:
        """Whether the order counts."""
        return self.opening not in {"", "{"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EquationForm:
    """Two sides; a name on the left makes it a named value."""

    left: str
    right: Form
    text: str
    is_named: bool


Form = ValueForm | SequenceForm | EquationForm
ValueComparison = Callable[[ValueForm, ValueForm], bool]
"""Tells whether a target's value and an answer's are the same."""

EMPTY = SequenceForm((), "{", "}")
INFINITY = r"\infty"
PAIR = 2
"""The number of items of a pair: the ends of an interval, the sides of an equation."""
