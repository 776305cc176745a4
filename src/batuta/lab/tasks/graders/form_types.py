"""The kinds of answers: values, rows of them, equations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValueForm:
    """A number, an expression or a word."""

    text: str


@dataclass(frozen=True, slots=True)
class SequenceForm:
    r"""Several forms; those without brackets and those in braces have no order."""

    items: tuple[Form, ...]
    opening: str = ""
    """`(`, `[`, `{`, `:` for a ratio, `&` for the rows of a matrix, nothing for a list."""
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
"""Whether a target's value and an answer's are the same."""

EMPTY = SequenceForm((), "{", "}")
INFINITY = r"\infty"
PAIR = 2
"""Items of a pair: the ends of an interval, the sides of an equation."""
