r"""Parses an answer's form: a value, a point, a set, an interval, an equation or a matrix.

This module reads brackets and solution sets; `form_comparison` compares two forms. Every text is in
the form that `normalize_latex` returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from batuta.lab.tasks.graders.latex import strip_outer_braces
from batuta.lab.tasks.graders.numbers import parse_number
from batuta.lab.tasks.graders.times import several_units

_TOKEN = re.compile(r"\\(?:begin|end)\{[a-zA-Z]+\}|\\[a-zA-Z]+|\\.|.", re.DOTALL)
OPENING = frozenset({"(", "[", "{", r"\{", r"\langle", r"\lfloor", r"\lceil"})
CLOSING = frozenset({")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil"})


def outer_tokens(text: str) -> Iterator[tuple[int, str]]:
    """Yield the tokens outside brackets and the outermost brackets, each with its position."""
    depth = 0
    for found in _TOKEN.finditer(text):
        token = found[0]
        opens = token in OPENING or token.startswith(r"\begin")
        closes = token in CLOSING or token.startswith(r"\end")
        depth -= closes
        if depth <= 0:
            yield found.start(), token
        depth += opens


def split_outside(text: str, separators: AbstractSet[str]) -> list[str]:
    """Return the parts of `text` between the separators that are outside brackets."""
    found = [(at, at + len(token)) for at, token in outer_tokens(text) if token in separators]
    starts = [0, *(end for _, end in found)]
    ends = [*(at for at, _ in found), len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class ValueForm:
    """A number, an expression or a word."""

    text: str


@dataclass(frozen=True, slots=True)
class SequenceForm:
    """Several forms; their order counts, except in braces and without brackets."""

    items: tuple[Form, ...]
    opening: str = ""
    """`(`, `[` or `{`; `:` for a ratio, `&` for a matrix and its rows, `mod` for a congruence, empty
    for a list."""
    closing: str = ""

    @property
    def is_ordered(self) -> bool:
        """Whether the order counts."""
        return self.opening not in {"", "{"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EquationForm:
    """An equation; with a name on the left it is a named value."""

    left: str
    right: Form
    text: str
    is_named: bool


Form = ValueForm | SequenceForm | EquationForm
ValueComparison = Callable[[ValueForm, ValueForm], bool]
"""Returns whether the target's value and the answer's are the same."""

EMPTY = SequenceForm((), "{", "}")
INFINITY = r"\infty"
PAIR = 2
"""The number of items of a pair: the ends of an interval, the sides of an equation."""


_REALS = SequenceForm((ValueForm("-" + INFINITY), ValueForm(INFINITY)), "(", ")")

_JOINT = re.compile(
    r"(?<![a-zA-Z\\])(?:,\s*+|(?<!\s)\s++(?:,\s*+)?)?(?:and|or)\s*(?![a-zA-Z])|,?\\text\{\s*(?:and|or)\s*\}"
)
# A name that may stand left of "=": x_1, f(x), \text{area}, (x,y), m\angle ABC, \vec{v}.
_NAME = re.compile(
    r"(?:\\(?!text|frac|sqrt)[a-zA-Z]+ ?)*[a-zA-Z]*(?:_(?:\w|\{[^{}]*\}))?'*(?:\([^()]*\))?"
    r"|\\text\{[^{}]*\}|\(\w(?:,\w)+\)|(?:m ?)?\\angle ?\{?[a-zA-Z]+\}?"
    r"|\\(?:vec|overrightarrow|hat)\{[a-zA-Z]+\}"
)
_INDEXED_NAME = re.compile(r"([a-zA-Z])_\{?\w+\}?")
_VARIABLE = re.compile(r"[a-zA-Z](?:_\w)?|\\(?:alpha|beta|gamma|theta|lambda|mu|phi)")
_WORDED_REALS = re.compile(r"(?:\\text\{)?all ?real(?: ?numbers?)?\}?", re.IGNORECASE)
_SIGN = re.compile(r"\\[pm][mp](?![a-zA-Z]) ?")
_LEADING_PLUS = re.compile(r"(?<![0-9a-zA-Z)}\]|!'])\+")
_NOTHING = re.compile(
    r"(?:\\text\{)?\s*(?:there (?:are|is) )?(?:no(?: real)? ?solutions?|none)\s*\}?", re.IGNORECASE
)
_SET_OF = re.compile(r"\\\{[a-zA-Z](?:\\in\\mathbb\{R\})?[:|](.+)\\\}")
_OUTWARD = re.compile(r"([\[\]])([^\[\](),]+),([^\[\](),]+)([\[\]])")
_CONGRUENT = re.compile(r"(?:[a-zA-Z]\\equiv ?)?(-?\d+)\(?\\mod ?\{?(\d+)\}?\)?")
_DISTANCE = re.compile(
    r"(?:\\left)?\|([a-zA-Z])(?:\\right)?\|\s*(<|>|\\le|\\ge)\s*([0-9./]+|\\frac\{\d+\}\{\d+\})"
)
_BOTH = re.compile(r"(?<![a-zA-Z\\])and(?![a-zA-Z])|,?\\text\{\s*and\s*\}")
_INTRODUCTION = re.compile(r"\\text\{[^{}]*\b(?:is|are|:)\s*\}|[a-zA-Z]\s*\\in(?![a-zA-Z])")
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[lcr|]+\})?(.*)\\end\{\1\}", re.DOTALL)
_COMPARISON_SIGNS = frozenset({"<", ">", r"\le", r"\ge", r"\ne"})
_FLIPPED_SIGN = {">": "<", r"\ge": r"\le"}


def parse_form(text: str) -> Form:
    """Return the form of `text`."""
    text = strip_outer_braces(
        _INTRODUCTION.sub("", text.strip(), count=1) if "\\" in text else text.strip()
    )
    if parse_number(text) is not None or several_units(text) is not None:
        return ValueForm(text)
    for reader in (
        _parse_special,
        _parse_other_notation,
        _parse_both_bounds,
        _parse_distance,
        _parse_list,
        _parse_ratio,
        _parse_inequality,
        _parse_equation,
        _parse_brackets,
        _parse_matrix,
        _parse_plus_minus,
    ):
        form = reader(text)
        if form is not None:
            return form
    return ValueForm(text)


# -- the parsers: each reads one form and returns None for any other ---------------------------


def _parse_special(text: str) -> Form | None:
    if text in {r"\emptyset", r"\{\}"} or _NOTHING.fullmatch(text):
        return EMPTY
    if text == r"\mathbb{R}" or _WORDED_REALS.fullmatch(text):
        return _REALS
    for sign in (r"\mathbb{R}\setminus", r"\mathbb{R}-", r"\mathbb{R}\backslash"):
        if text.startswith(sign):
            return _reals_without(parse_form(text.removeprefix(sign)))
    return None


def _parse_other_notation(text: str) -> Form | None:
    """Parse other notations: `{x : x<5}`, `[2,5[`, a congruence."""
    if found := _SET_OF.fullmatch(text):
        return _parse_inequality(found[1])
    if found := _CONGRUENT.fullmatch(text):
        return SequenceForm((ValueForm(found[1]), ValueForm(found[2])), "mod", "mod")
    if (found := _OUTWARD.fullmatch(text)) and (found[1], found[4]) != ("[", "]"):
        opening, closing = "[" if found[1] == "[" else "(", "]" if found[4] == "]" else ")"
        return SequenceForm((parse_form(found[2]), parse_form(found[3])), opening, closing)
    return None


def _parse_both_bounds(text: str) -> Form | None:
    """Return two inequalities that hold together as one interval."""
    parts = _BOTH.split(text)
    forms = [_parse_inequality(part.strip()) for part in parts] if len(parts) == PAIR else []
    rows = [form for form in forms if isinstance(form, SequenceForm) and len(form.items) == PAIR]
    above = [row for row in rows if row.items[1] == ValueForm(INFINITY)]
    below = [row for row in rows if row.items[0] == ValueForm("-" + INFINITY)]
    if len(rows) != PAIR or len(above) != 1 or len(below) != 1:
        return None
    ends = (above[0].items[0], below[0].items[1])
    return SequenceForm(ends, above[0].opening, below[0].closing)


def _reals_without(form: Form) -> Form | None:
    """Return the reals without some numbers, or without an interval, as intervals."""
    if isinstance(form, SequenceForm) and len(form.items) == PAIR and form.opening in {"(", "["}:
        return _outside_interval(form)
    items = form.items if isinstance(form, SequenceForm) and not form.is_ordered else (form,)
    known = [(parse_number(item.text), item) for item in items if isinstance(item, ValueForm)]
    if len(known) != len(items) or any(value is None for value, _ in known):
        return None
    ends = [
        *(item for _, item in sorted(known, key=lambda pair: pair[0] or 0)),
        ValueForm(INFINITY),
    ]
    starts = [ValueForm("-" + INFINITY), *ends[:-1]]
    return SequenceForm(
        tuple(SequenceForm(pair, "(", ")") for pair in zip(starts, ends, strict=True))
    )


def _outside_interval(form: SequenceForm) -> Form:
    low, high = form.items
    below = SequenceForm((ValueForm("-" + INFINITY), low), "(", ")" if form.opening == "[" else "]")
    above = SequenceForm((high, ValueForm(INFINITY)), "(" if form.closing == "]" else "[", ")")
    parts = tuple(part for part in (below, above) if part.items[0] != part.items[1])
    return SequenceForm(parts) if len(parts) > 1 else parts[0] if parts else EMPTY


def _parse_distance(text: str) -> Form | None:
    r"""Parse a bound on the absolute value of a variable: `|x|>1`, `|x|\le 2`."""
    found = _DISTANCE.fullmatch(text)
    value = parse_number(found[3]) if found else None
    if found is None or value is None or value <= 0:
        return None
    closed = found[2] in {r"\le", r"\ge"}
    ends = (ValueForm(f"-{found[3]}"), ValueForm(found[3]))
    if found[2] in {"<", r"\le"}:
        return SequenceForm(ends, *(("[", "]") if closed else ("(", ")")))
    return _outside_interval(SequenceForm(ends, *(("(", ")") if closed else ("[", "]"))))


def _parse_list(text: str) -> Form | None:
    """Parse a list.

    A name before the first value only ("x=1,2") is dropped. Values of one name are a list
    ("x=1,x=2"), and values of different names ("y=2,x=1") a point in the order of the names.
    """
    first, *others = split_outside(_JOINT.sub(",", text), {",", ";", r"\cup"})
    if not others:
        return None
    parts = (first, *others)
    items = tuple(parse_form(part) for part in parts if part)
    if not items:
        return None
    head, rest = items[0], items[1:]
    if (
        isinstance(head, EquationForm)
        and head.is_named
        and not any(isinstance(i, EquationForm) for i in rest)
    ):
        items = (head.right, *rest)
    if not all(isinstance(item, EquationForm) and item.is_named for item in items):
        return SequenceForm(items)
    named = [item for item in items if isinstance(item, EquationForm)]
    if len({item.left for item in named}) < len(named):
        return SequenceForm(tuple(item.right for item in named))
    return SequenceForm(
        tuple(item.right for item in sorted(named, key=lambda item: item.left)), "(", ")"
    )


def _parse_ratio(text: str) -> Form | None:
    parts = split_outside(text, {":"})
    return SequenceForm(tuple(map(parse_form, parts)), ":", ":") if len(parts) > 1 else None


def _parse_inequality(text: str) -> Form | None:
    r"""Parse an inequality in one variable, `x>3` or `2\le x<5`, as an interval; `x\ne 3` as two."""
    signs = [token for _, token in outer_tokens(text) if token in _COMPARISON_SIGNS]
    sides = split_outside(text, _COMPARISON_SIGNS)
    if all(sign in _FLIPPED_SIGN for sign in signs):
        signs, sides = [_FLIPPED_SIGN[sign] for sign in reversed(signs)], sides[::-1]
    if len(signs) == 1 and "" in sides:
        return _parse_bare_inequality(signs[0], *sides)
    match signs, sides:
        case [r"\ne"], [left, right] if _VARIABLE.fullmatch(left):
            return _reals_without(parse_form(right))
        case [sign], [left, right] if _VARIABLE.fullmatch(left):
            return _make_interval("-" + INFINITY, "<", sign, right)
        case [sign], [left, right] if _VARIABLE.fullmatch(right):
            return _make_interval(left, sign, "<", INFINITY)
        case [sign, other], [left, middle, right] if _VARIABLE.fullmatch(middle):
            return _make_interval(left, sign, other, right)
        case _:
            return None


def _parse_bare_inequality(sign: str, left: str, right: str) -> Form | None:
    r"""Parse an inequality without its variable: `\ge 5`."""
    if sign == r"\ne":
        return _reals_without(parse_form(right)) if right else None
    if left:
        return _make_interval(left, sign, "<", INFINITY)
    return _make_interval("-" + INFINITY, "<", sign, right) if right else None


def _make_interval(left: str, sign: str, other: str, right: str) -> Form | None:
    """Return an interval, closed beside a sign that allows equality; None for other signs."""
    if {sign, other} - {"<", r"\le"}:
        return None
    opening, closing = "[" if sign == r"\le" else "(", "]" if other == r"\le" else ")"
    return SequenceForm((parse_form(left), parse_form(right)), opening, closing)


def _parse_equation(text: str) -> Form | None:
    r"""Parse an equation, with a lone variable moved to the left, or `exact\approx rounded`.

    The form of the latter is that of its exact side, or of its rounded side if the exact one is a
    name, or a list of both sides if they are numbers that differ by more than 5 %.
    """
    exact, *rounded = split_outside(text, {r"\approx", r"\simeq"})
    if rounded:
        one, other = parse_number(exact), parse_number(rounded[-1])
        if one is not None and other is not None and abs(one - other) > abs(one) / 20:
            return SequenceForm((parse_form(exact), parse_form(rounded[-1])))
        return parse_form(rounded[-1] if _NAME.fullmatch(exact) else exact)
    left, *others = split_outside(text, {"="})
    if not others:
        return None
    right = others[-1]
    left = _name_of_all(left, *others[:-1])
    if _VARIABLE.fullmatch(right) and not _NAME.fullmatch(left):
        left, right = right, left
    return EquationForm(
        left=left,
        right=parse_form(right),
        text=f"{left}={right}",
        is_named=_NAME.fullmatch(left) is not None,
    )


def _name_of_all(first: str, *others: str) -> str:
    """Return the name without its index if several values are the same: `x` of `x_1=x_2=5`."""
    names = [_INDEXED_NAME.fullmatch(name) for name in (first, *others)]
    bases = {found[1] if found else "" for found in names}
    return bases.pop() if others and len(bases) == 1 and all(names) else first


def _parse_brackets(text: str) -> Form | None:
    opening, *others = [token for _, token in outer_tokens(text)] or [""]
    if opening not in OPENING or len(others) != 1:
        return None
    closing = others[0]
    parts = split_outside(text[len(opening) : -len(closing)], {",", ";"})
    items = tuple(map(parse_form, parts))
    if opening == r"\{":
        return SequenceForm(items, "{", "}")
    if opening == r"\langle":
        return SequenceForm(items, "(", ")")
    if opening not in {"(", "["}:
        return None
    first, *more = items
    return SequenceForm(items, opening, closing) if more else first


def _parse_matrix(text: str) -> Form | None:
    found = _MATRIX.fullmatch(text)
    if found is None or r"\begin" in found[2]:
        return None
    rows = [row for row in split_outside(found[2], {r"\\"}) if row]
    return SequenceForm(
        tuple(
            SequenceForm(tuple(map(parse_form, split_outside(row, {"&"}))), "&", "&")
            for row in rows
        ),
        "&",
        "&",
    )


def _parse_plus_minus(text: str) -> Form | None:
    r"""Return `a \pm b` as a list of two values, wherever the sign is."""
    if not _SIGN.search(text):
        return None
    plus = _SIGN.sub(lambda found: "+" if found[0].startswith(r"\pm") else "-", text)
    minus = _SIGN.sub(lambda found: "-" if found[0].startswith(r"\pm") else "+", text)
    return SequenceForm(
        (parse_form(_LEADING_PLUS.sub("", plus)), parse_form(_LEADING_PLUS.sub("", minus)))
    )
