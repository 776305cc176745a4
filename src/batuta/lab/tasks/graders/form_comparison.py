"""Compares the forms of two answers; a function of the caller compares the values in them.

This module decides whether the order of the values counts, which brackets mean the same, and
whether repetitions matter.
"""

from __future__ import annotations

import re
from fractions import Fraction

from batuta.lab.tasks.graders.forms import (
    EMPTY,
    PAIR,
    EquationForm,
    Form,
    SequenceForm,
    ValueComparison,
    ValueForm,
)
from batuta.lab.tasks.graders.numbers import parse_number


def ratio_quotient(ratio: SequenceForm) -> Fraction | None:
    """Return the quotient of a ratio of two numbers; None for another ratio or a division by 0."""
    terms = _ratio_terms(ratio)
    return terms[0] / terms[1] if len(terms) == PAIR and terms[1] else None


def _ratio_terms(ratio: SequenceForm) -> list[Fraction]:
    """Return the numbers of a ratio; empty if a term is not a number."""
    read_as = [
        parse_number(item.text) if isinstance(item, ValueForm) else None for item in ratio.items
    ]
    known = [value for value in read_as if value is not None]
    return known if len(known) == len(read_as) else []


def may_be_time(ratio: SequenceForm) -> bool:
    """Return whether a ratio may be a time of day: its last term has two digits and is below 60."""
    last = ratio.items[-1]
    return isinstance(last, ValueForm) and re.fullmatch(r"[0-5]\d", last.text) is not None


def is_scaled(target: SequenceForm, answer: SequenceForm) -> bool:
    """Return whether one ratio of numbers is a multiple of the other, unless both may be times."""
    wanted, given = _ratio_terms(target), _ratio_terms(answer)
    if not wanted or not given or 0 in wanted or (may_be_time(target) and may_be_time(answer)):
        return False
    scale = given[0] / wanted[0]
    return scale != 0 and all(w * scale == g for w, g in zip(wanted, given, strict=True))


_FUNCTION_OF_X = re.compile(r"[fgh]\(x\)")


def is_same_form(target: Form, answer: Form, equal: ValueComparison) -> bool:
    """Return whether two forms are the same; `equal` compares the values in them."""
    target, answer = _unwrap_single(_flatten_form(target)), _unwrap_single(_flatten_form(answer))
    if isinstance(target, EquationForm) or isinstance(answer, EquationForm):
        return _is_same_equation(target, answer, equal)
    if isinstance(target, ValueForm) and isinstance(answer, ValueForm):
        return equal(target, answer)
    if isinstance(target, ValueForm) != isinstance(answer, ValueForm):
        return _is_same_shape(target, answer, equal)
    return _is_same_row(target, answer, equal)


def without_order(form: SequenceForm) -> SequenceForm:
    """Return a form, and the forms in it, as sets: neither order nor brackets count."""
    items = (without_order(item) if isinstance(item, SequenceForm) else item for item in form.items)
    return SequenceForm(tuple(items), "{", "}")


def _is_same_shape(target: Form, answer: Form, equal: ValueComparison) -> bool:
    """Return whether a value and another form are the same.

    The other form is a ratio, a list of forms that all equal the value, or the numbers that the
    value has between its commas.
    """
    if not isinstance(answer, ValueForm) and isinstance(target, ValueForm):
        items = answer.items if isinstance(answer, SequenceForm) and answer.opening == "" else ()
        if len(items) > 1 and all(is_same_form(target, item, equal) for item in items):
            return True
    ratio, value = (target, answer) if isinstance(answer, ValueForm) else (answer, target)
    if isinstance(ratio, SequenceForm) and ratio.opening == ":" and isinstance(value, ValueForm):
        quotient, number = ratio_quotient(ratio), parse_number(value.text)
        is_number = number is not None and quotient is not None
        return is_number and not may_be_time(ratio) and number == quotient
    return _is_same_row(target, answer, equal)


def _flatten_form(form: Form) -> Form:
    r"""Return a list or set without repetitions, with the items of nested lists, as from `\pm`."""
    if not isinstance(form, SequenceForm) or form.is_ordered:
        return form
    items: list[Form] = []
    for item in form.items:
        inner = _flatten_form(item)
        parts = inner.items if isinstance(inner, SequenceForm) and inner.opening == "" else (inner,)
        items.extend(part for part in parts if part not in items)
    return SequenceForm(tuple(items), form.opening, form.closing)


def _is_same_equation(target: Form, answer: Form, equal: ValueComparison) -> bool:
    if not isinstance(answer, EquationForm):
        return (
            isinstance(target, EquationForm)
            and target.is_named
            and is_same_form(target.right, answer, equal)
        )
    if not isinstance(target, EquationForm):
        solved = answer.is_named or answer.right != ValueForm("0")
        return solved and is_same_form(target, answer.right, equal)
    sides = {target.left, answer.left}
    function = len(sides) == PAIR and "y" in sides and any(map(_FUNCTION_OF_X.fullmatch, sides))
    if target.is_named and answer.is_named and (target.left == answer.left or function):
        return is_same_form(target.right, answer.right, equal)
    return equal(ValueForm(target.text), ValueForm(answer.text))


def _is_same_row(target: Form, answer: Form, equal: ValueComparison) -> bool:
    target, answer = _split_thousands(target), _split_thousands(answer)
    if not isinstance(target, SequenceForm) or not isinstance(answer, SequenceForm):
        return False
    if len(target.items) != len(answer.items):
        return False
    if not target.is_ordered and not answer.is_ordered:
        return _match_unordered(target.items, answer.items, equal)
    if target.opening == answer.opening == ":" and is_scaled(target, answer):
        return True
    target, answer = _as_matrix(target, answer), _as_matrix(answer, target)
    if not _has_same_brackets(target, answer):
        return False
    return all(is_same_form(t, a, equal) for t, a in zip(target.items, answer.items, strict=True))


def _as_matrix(form: SequenceForm, other: SequenceForm) -> SequenceForm:
    """Return a point or a list of rows in plain brackets as the matrix to compare with `other`."""
    if other.opening != "&" or form.opening not in {"(", "["}:
        return form
    if form.opening == "(":
        return SequenceForm(tuple(SequenceForm((item,), "&", "&") for item in form.items), "&", "&")
    rows = tuple(
        SequenceForm(item.items, "&", "&")
        for item in form.items
        if isinstance(item, SequenceForm) and item.is_ordered
    )
    return SequenceForm(rows, "&", "&") if len(rows) == len(form.items) else form


def _has_same_brackets(target: SequenceForm, answer: SequenceForm) -> bool:
    """Return whether the brackets mean the same; a list may omit the brackets of a point."""
    pairs = {(target.opening, target.closing), (answer.opening, answer.closing)}
    return len(pairs) == 1 or pairs == {("", ""), ("(", ")")}


def _match_unordered(
    targets: tuple[Form, ...], answers: tuple[Form, ...], equal: ValueComparison
) -> bool:
    left = list(answers)
    for target in targets:
        found = next((answer for answer in left if is_same_form(target, answer, equal)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _unwrap_single(form: Form) -> Form:
    """Return the only item of a list or set, unless that is the empty set; else the form."""
    while isinstance(form, SequenceForm) and not form.is_ordered and len(form.items) == 1:
        if form.items[0] == EMPTY:
            return form
        form = form.items[0]
    return form


def _split_thousands(form: Form) -> Form:
    """Return a number with thousands separators, such as `45,135`, as a list; else the form."""
    parts = form.text.split(",") if isinstance(form, ValueForm) else []
    return SequenceForm(tuple(map(ValueForm, parts))) if len(parts) > 1 else form
