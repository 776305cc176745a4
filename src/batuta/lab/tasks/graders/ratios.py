"""Ratios, and times of day that look like them."""

from __future__ import annotations

import re
from fractions import Fraction

from batuta.lab.tasks.graders.form_types import SequenceForm, ValueForm
from batuta.lab.tasks.graders.numbers import parse_number

PAIR = 2


def ratio_quotient(ratio: SequenceForm) -> Fraction | None:
    """Return the quotient of a ratio of two numbers; None if it is not one."""
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
    """Tell whether a ratio may be a time of day: its last term has two digits and is below 60."""
    last = ratio.items[-1]
    return isinstance(last, ValueForm) and re.fullmatch(r"[0-5]\d", last.text) is not None


def is_scaled(target: SequenceForm, answer: SequenceForm) -> bool:
    """Tell whether one ratio is a multiple of the other."""
    wanted, given = _ratio_terms(target), _ratio_terms(answer)
    if not wanted or not given or 0 in wanted or (may_be_time(target) and may_be_time(answer)):
        return False
    scale = given[0] / wanted[0]
    return scale != 0 and all(w * scale == g for w, g in zip(wanted, given, strict=True))
