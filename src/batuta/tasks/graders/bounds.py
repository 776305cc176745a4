"""Numbers with a bound or two signs, and ranges: `<5`, `at least 5`, `±3`, `12 to 14`."""

from __future__ import annotations

import re
from fractions import Fraction

from batuta.tasks.graders.latex import normalize_latex
from batuta.tasks.graders.numbers import parse_number

_WORDS = (
    (r"less than or equal to|no more than|at most|up to|not more than|maximum of", "≤"),
    (r"greater than or equal to|more than or equal to|no (?:less|fewer) than|at least|minimum of", "≥"),
    (r"(?:strictly )?(?:less|fewer|smaller) than|below|under", "<"),
    (r"(?:strictly )?(?:more|greater|larger) than|over|above|exceeding", ">"),
    (r"plus or minus|plus/minus|\+\s*/\s*-|\+/-|\\pm", "±"),
    (r"not(?: equal to)?|\\ne\b|unequal to|anything but|except", "≠"),
    (r"\\leq?\b|<=|\\leqslant\b", "≤"),
    (r"\\geq?\b|>=|\\geqslant\b", "≥"),
    (r"\\lt\b", "<"),
    (r"\\gt\b", ">"),
)  # fmt: skip
_RULES = tuple(
    (re.compile(rf"(?<![a-zA-Z])(?:{words})\s*", re.IGNORECASE), sign) for words, sign in _WORDS
)
_BOUND = re.compile(r"(?:[a-zA-Z]\s*(?:=\s*(?=±))?)?([<>≤≥±≠])\s*(.+)")
_BEHIND = re.compile(
    r"(.+?)\s*(?:(?P<more>or more|and above|and up|\+)|(?P<less>or less|or fewer|or below))"
)
_RANGE = re.compile(
    r"(?:between|from)?\s*(-?[\d.,]+)\s*(?:[-–—]|--|to|and|until|through)\s*(-?[\d.,]+)",
    re.IGNORECASE,
)
_LONGEST = 80


def read_bound(text: str) -> tuple[str, Fraction] | None:
    """The sign and the number of a bound; None if the text is none."""
    text = text.strip().strip("$ .")
    if len(text) > _LONGEST:
        return None
    if (behind := _BEHIND.fullmatch(text)) and (
        value := parse_number(normalize_latex(behind[1]))
    ) is not None:
        return ("≥" if behind["more"] else "≤"), value
    for pattern, sign in _RULES:
        text = pattern.sub(sign, text)
    found = _BOUND.fullmatch(text)
    value = parse_number(normalize_latex(found[2])) if found else None
    return None if found is None or value is None else (found[1], value)


def read_range(text: str) -> tuple[Fraction, Fraction] | None:
    """The two ends of a range, the lower one first; None if the text is none."""
    text = text.strip(" .$")
    found = _RANGE.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return None
    if " and" in text and not text.casefold().startswith("between"):
        return None
    ends = parse_number(found[1].rstrip(",.")), parse_number(found[2].rstrip(",."))
    if ends[0] is None or ends[1] is None or ends[0] >= ends[1]:
        return None
    return ends[0], ends[1]


def is_same_bound(target: str, answer: str) -> bool | None:
    """Whether two texts are the same bound, signs or range; None where neither is one."""
    wanted, given = read_bound(target), read_bound(answer)
    if wanted is not None or given is not None:
        if wanted is not None and given is None:
            return None if _is_wordy(answer) or _is_two(answer) else False
        if wanted is None:
            return False if parse_number(normalize_latex(target)) is not None else None
        return wanted == given
    ends = read_range(target)
    if ends is None:
        return None
    other = read_range(answer)
    if other is None:
        return False if parse_number(normalize_latex(answer)) is not None else None
    return ends == other


def _is_wordy(text: str) -> bool:
    return (
        parse_number(normalize_latex(text)) is None and re.search(r"[a-zA-Z]{2}", text) is not None
    )


def _is_two(text: str) -> bool:
    """Whether it is a list, as `3, -3` for `±3`."""
    return re.search(r"[,;]|\band\b|\bor\b", text) is not None
