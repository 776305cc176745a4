r"""What kind of thing an answer is: a value, a point, a set, an interval, an equation, a matrix.

A symbolic comparer is asked about values only; which brackets stand around them, whether their
order counts and what is a solution set is decided here. Texts are in `latex.plain`'s spelling.
"""

from __future__ import annotations

import re

from batuta.tasks.graders.brackets import OPENING, outer_tokens, split_outside
from batuta.tasks.graders.latex import unwrapped
from batuta.tasks.graders.moments import several_units
from batuta.tasks.graders.numbers import number
from batuta.tasks.graders.ratios import is_scaled, may_be_time, share_of
from batuta.tasks.graders.shapes import EMPTY, INFINITY, Equation, Form, Row, Same, Value

_REALS = Row((Value("-" + INFINITY), Value(INFINITY)), "(", ")")

_JOINT = re.compile(
    r"(?<![a-zA-Z\\])\s*,?\s*(?:and|or)\s*(?![a-zA-Z])|,?\\text\{\s*(?:and|or)\s*\}"
)
_NAME = re.compile(
    r"(?:\\(?!text|frac|sqrt)[a-zA-Z]+ ?)*[a-zA-Z]*(?:_(?:\w|\{[^{}]*\}))?'*(?:\([^()]*\))?"
    r"|\\text\{[^{}]*\}|\(\w(?:,\w)+\)|(?:m ?)?\\angle ?\{?[a-zA-Z]+\}?"
)
_VARIABLE = re.compile(r"[a-zA-Z](?:_\w)?|\\(?:alpha|beta|gamma|theta|lambda|mu|phi)")
_WORDED_REALS = re.compile(r"(?:\\text\{)?all ?real(?: ?numbers?)?\}?", re.IGNORECASE)
_SIGN = re.compile(r"\\[pm][mp](?![a-zA-Z]) ?")
_LEADING_PLUS = re.compile(r"(?<![0-9a-zA-Z)}\]|!'])\+")
_OF_X = re.compile(r"[fgh]\(x\)")
_NOTHING = re.compile(
    r"(?:\\text\{)?\s*(?:there (?:are|is) )?(?:no(?: real)? ?solutions?|none)\s*\}?", re.IGNORECASE
)
_SET_OF = re.compile(r"\\\{[a-zA-Z](?:\\in\\mathbb\{R\})?[:|](.+)\\\}")
_OUTWARD = re.compile(r"([\[\]])([^\[\](),]+),([^\[\](),]+)([\[\]])")
_CONGRUENT = re.compile(r"(?:[a-zA-Z]\\equiv ?)?(-?\d+)\(?\\mod ?\{?(\d+)\}?\)?")
_BOTH = re.compile(r"(?<![a-zA-Z\\])and(?![a-zA-Z])|,?\\text\{\s*and\s*\}")
PAIR = 2
_INTRODUCED = re.compile(r"\\text\{[^{}]*\b(?:is|are|:)\s*\}|[a-zA-Z]\s*\\in(?![a-zA-Z])")
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[lcr|]+\})?(.*)\\end\{\1\}", re.DOTALL)
_COMPARING = frozenset({"<", ">", r"\le", r"\ge", r"\ne"})
_TURNED = {">": "<", r"\ge": r"\le"}


def read(text: str) -> Form:
    """The form that `text` has."""
    text = unwrapped(_INTRODUCED.sub("", text.strip(), count=1) if "\\" in text else text.strip())
    if number(text) is not None or several_units(text) is not None:
        return Value(text)
    for reader in (
        _special,
        _otherwise,
        _both,
        _list,
        _ratio,
        _relation,
        _equation,
        _bracketed,
        _matrix,
        _signs,
    ):
        form = reader(text)
        if form is not None:
            return form
    return Value(text)


def same(target: Form, answer: Form, equal: Same) -> bool:
    """Whether the answer is the target, values being compared by `equal`."""
    target, answer = _single(_flat(target)), _single(_flat(answer))
    if isinstance(target, Equation) or isinstance(answer, Equation):
        return _same_equation(target, answer, equal)
    if isinstance(target, Value) and isinstance(answer, Value):
        return equal(target, answer)
    if isinstance(target, Value) != isinstance(answer, Value):
        return _same_shape(target, answer, equal)
    target, answer = _opened(target), _opened(answer)
    return isinstance(target, Row) and isinstance(answer, Row) and _same_row(target, answer, equal)


def without_order(form: Row) -> Row:
    """A tuple or a list of tuples as a set: neither order nor brackets count."""
    items = (without_order(item) if isinstance(item, Row) else item for item in form.items)
    return Row(tuple(items), "{", "}")


def _same_shape(target: Form, answer: Form, equal: Same) -> bool:
    """Whether a value is the same as a ratio, as all of several forms, or as two numbers."""
    if not isinstance(answer, Value) and isinstance(target, Value):
        items = answer.items if isinstance(answer, Row) and answer.opening == "" else ()
        if len(items) > 1 and all(same(target, item, equal) for item in items):
            return True
    ratio, value = (target, answer) if isinstance(answer, Value) else (answer, target)
    if isinstance(ratio, Row) and ratio.opening == ":" and isinstance(value, Value):
        share = share_of(ratio)
        is_share = number(value.text) is not None and share is not None
        return is_share and not may_be_time(ratio) and number(value.text) == share
    target, answer = _opened(target), _opened(answer)
    return isinstance(target, Row) and isinstance(answer, Row) and _same_row(target, answer, equal)


def _flat(form: Form) -> Form:
    r"""A list or set with the lists in it, as of `\pm`, taken apart, and without repetitions."""
    if not isinstance(form, Row) or form.ordered:
        return form
    items: list[Form] = []
    for item in form.items:
        inner = _flat(item)
        parts = inner.items if isinstance(inner, Row) and inner.opening == "" else (inner,)
        items.extend(part for part in parts if part not in items)
    return Row(tuple(items), form.opening, form.closing)


def _same_equation(target: Form, answer: Form, equal: Same) -> bool:
    if not isinstance(answer, Equation):
        return isinstance(target, Equation) and target.named and same(target.right, answer, equal)
    if not isinstance(target, Equation):
        solved = answer.named or answer.right != Value("0")
        return solved and same(target, answer.right, equal)
    sides = {target.left, answer.left}
    function = len(sides) == PAIR and "y" in sides and any(map(_OF_X.fullmatch, sides))
    if target.named and answer.named and (target.left == answer.left or function):
        return same(target.right, answer.right, equal)
    return equal(Value(target.text), Value(answer.text))


def _same_row(target: Row, answer: Row, equal: Same) -> bool:
    if len(target.items) != len(answer.items):
        return False
    if not target.ordered and not answer.ordered:
        return _matched(target.items, answer.items, equal)
    if target.opening == answer.opening == ":" and is_scaled(target, answer):
        return True
    target, answer = _as_matrix(target, answer), _as_matrix(answer, target)
    if not _agree(target, answer):
        return False
    return all(same(t, a, equal) for t, a in zip(target.items, answer.items, strict=True))


def _as_matrix(form: Row, other: Row) -> Row:
    """A point or a list of rows in plain brackets as the column or the matrix that is compared."""
    if other.opening != "&" or form.opening not in {"(", "["}:
        return form
    if form.opening == "(":
        return Row(tuple(Row((item,), "&", "&") for item in form.items), "&", "&")
    rows = tuple(
        Row(item.items, "&", "&") for item in form.items if isinstance(item, Row) and item.ordered
    )
    return Row(rows, "&", "&") if len(rows) == len(form.items) else form


def _agree(target: Row, answer: Row) -> bool:
    """Whether the brackets mean the same; a list may have left out those of a point."""
    pairs = {(target.opening, target.closing), (answer.opening, answer.closing)}
    return len(pairs) == 1 or pairs == {("", ""), ("(", ")")}


def _matched(targets: tuple[Form, ...], answers: tuple[Form, ...], equal: Same) -> bool:
    left = list(answers)
    for target in targets:
        found = next((answer for answer in left if same(target, answer, equal)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _single(form: Form) -> Form:
    """A list or set of one is its element."""
    while isinstance(form, Row) and not form.ordered and len(form.items) == 1:
        if form.items[0] == EMPTY:
            return form
        form = form.items[0]
    return form


def _opened(form: Form) -> Form:
    """Two numbers that were taken for one with thousands: `45,135`."""
    parts = form.text.split(",") if isinstance(form, Value) else []
    return Row(tuple(map(Value, parts))) if len(parts) > 1 else form


# -- the readers: each knows one form, and answers None for the others ------------------------


def _special(text: str) -> Form | None:
    if text in {r"\emptyset", r"\{\}"} or _NOTHING.fullmatch(text):
        return EMPTY
    if text == r"\mathbb{R}" or _WORDED_REALS.fullmatch(text):
        return _REALS
    for sign in (r"\mathbb{R}\setminus", r"\mathbb{R}-", r"\mathbb{R}\backslash"):
        if text.startswith(sign):
            return _without(read(text.removeprefix(sign)))
    return None


def _otherwise(text: str) -> Form | None:
    """What is written in another way: `{x : x<5}`, `[2,5[`, a congruence."""
    if found := _SET_OF.fullmatch(text):
        return _relation(found[1])
    if found := _CONGRUENT.fullmatch(text):
        return Row((Value(found[1]), Value(found[2])), "mod", "mod")
    if (found := _OUTWARD.fullmatch(text)) and (found[1], found[4]) != ("[", "]"):
        opening, closing = "[" if found[1] == "[" else "(", "]" if found[4] == "]" else ")"
        return Row((read(found[2]), read(found[3])), opening, closing)
    return None


def _both(text: str) -> Form | None:
    """Two inequalities that hold together, as one interval."""
    parts = _BOTH.split(text)
    forms = [_relation(part.strip()) for part in parts] if len(parts) == PAIR else []
    rows = [form for form in forms if isinstance(form, Row) and len(form.items) == PAIR]
    above = [row for row in rows if row.items[1] == Value(INFINITY)]
    below = [row for row in rows if row.items[0] == Value("-" + INFINITY)]
    if len(rows) != PAIR or len(above) != 1 or len(below) != 1:
        return None
    ends = (above[0].items[0], below[0].items[1])
    return Row(ends, above[0].opening, below[0].closing)


def _without(form: Form) -> Form | None:
    """The reals without some numbers, as intervals."""
    items = form.items if isinstance(form, Row) and not form.ordered else (form,)
    known = [(number(item.text), item) for item in items if isinstance(item, Value)]
    if len(known) != len(items) or any(value is None for value, _ in known):
        return None
    ends = [*(item for _, item in sorted(known, key=lambda pair: pair[0] or 0)), Value(INFINITY)]
    starts = [Value("-" + INFINITY), *ends[:-1]]
    return Row(tuple(Row(pair, "(", ")") for pair in zip(starts, ends, strict=True)))


def _list(text: str) -> Form | None:
    first, *others = split_outside(_JOINT.sub(",", text), {",", ";", r"\cup"})
    if not others:
        return None
    parts = (first, *others)
    items = tuple(read(part) for part in parts if part)
    if not items:
        return None
    head, rest = items[0], items[1:]
    if isinstance(head, Equation) and head.named and not any(isinstance(i, Equation) for i in rest):
        items = (head.right, *rest)
    if not all(isinstance(item, Equation) and item.named for item in items):
        return Row(items)
    named = [item for item in items if isinstance(item, Equation)]
    if len({item.left for item in named}) < len(named):
        return Row(tuple(item.right for item in named))
    return Row(tuple(item.right for item in sorted(named, key=lambda item: item.left)), "(", ")")


def _ratio(text: str) -> Form | None:
    parts = split_outside(text, {":"})
    return Row(tuple(map(read, parts)), ":", ":") if len(parts) > 1 else None


def _relation(text: str) -> Form | None:
    r"""An inequality in one variable as an interval: `x>3`, `2\le x<5`."""
    signs = [token for _, token in outer_tokens(text) if token in _COMPARING]
    sides = split_outside(text, _COMPARING)
    if all(sign in _TURNED for sign in signs):
        signs, sides = [_TURNED[sign] for sign in reversed(signs)], sides[::-1]
    if len(signs) == 1 and "" in sides:
        return _bare_relation(signs[0], *sides)
    match signs, sides:
        case [r"\ne"], [left, right] if _VARIABLE.fullmatch(left):
            return _without(read(right))
        case [sign], [left, right] if _VARIABLE.fullmatch(left):
            return _interval("-" + INFINITY, "<", sign, right)
        case [sign], [left, right] if _VARIABLE.fullmatch(right):
            return _interval(left, sign, "<", INFINITY)
        case [sign, other], [left, middle, right] if _VARIABLE.fullmatch(middle):
            return _interval(left, sign, other, right)
        case _:
            return None


def _bare_relation(sign: str, left: str, right: str) -> Form | None:
    r"""An inequality whose variable is left out: `\ge 5`."""
    if sign == r"\ne":
        return _without(read(right)) if right else None
    if left:
        return _interval(left, sign, "<", INFINITY)
    return _interval("-" + INFINITY, "<", sign, right) if right else None


def _interval(left: str, sign: str, other: str, right: str) -> Form | None:
    """What lies between two ends, by the signs behind the first and before the second."""
    if {sign, other} - {"<", r"\le"}:
        return None
    opening, closing = "[" if sign == r"\le" else "(", "]" if other == r"\le" else ")"
    return Row((read(left), read(right)), opening, closing)


def _equation(text: str) -> Form | None:
    exact, *rounded = split_outside(text, {r"\approx", r"\simeq"})
    if rounded:
        one, other = number(exact), number(rounded[-1])
        if one is not None and other is not None and abs(one - other) > abs(one) / 20:
            return Row((read(exact), read(rounded[-1])))
        return read(rounded[-1] if _NAME.fullmatch(exact) else exact)
    left, *others = split_outside(text, {"="})
    if not others:
        return None
    right = others[-1]
    if _VARIABLE.fullmatch(right) and not _NAME.fullmatch(left):
        left, right = right, left
    return Equation(left, read(right), f"{left}={right}", _NAME.fullmatch(left) is not None)


def _bracketed(text: str) -> Form | None:
    opening, *others = [token for _, token in outer_tokens(text)] or [""]
    if opening not in OPENING or len(others) != 1:
        return None
    closing = others[0]
    parts = split_outside(text[len(opening) : -len(closing)], {",", ";"})
    items = tuple(map(read, parts))
    if opening == r"\{":
        return Row(items, "{", "}")
    if opening == r"\langle":
        return Row(items, "(", ")")
    if opening not in {"(", "["}:
        return None
    first, *more = items
    return Row(items, opening, closing) if more else first


def _matrix(text: str) -> Form | None:
    found = _MATRIX.fullmatch(text)
    if found is None or r"\begin" in found[2]:
        return None
    rows = [row for row in split_outside(found[2], {r"\\"}) if row]
    return Row(
        tuple(Row(tuple(map(read, split_outside(row, {"&"}))), "&", "&") for row in rows), "&", "&"
    )


def _signs(text: str) -> Form | None:
    r"""`a \pm b` as a list of two, wherever the sign stands."""
    if not _SIGN.search(text):
        return None
    plus = _SIGN.sub(lambda found: "+" if found[0].startswith(r"\pm") else "-", text)
    minus = _SIGN.sub(lambda found: "-" if found[0].startswith(r"\pm") else "+", text)
    return Row((read(_LEADING_PLUS.sub("", plus)), read(_LEADING_PLUS.sub("", minus))))
