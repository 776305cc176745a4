"""Short answers in words, numbers or formulas; what cannot be decided here is left undecided."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import final

from batuta.core import Grade
from batuta.tasks.graders import answer_extraction, forms, statements, units
from batuta.tasks.graders.bounds import is_same_bound
from batuta.tasks.graders.comparison_pool import UNDECIDED, ComparisonResult, MathsPool
from batuta.tasks.graders.expression import parse_expression, variables_in
from batuta.tasks.graders.latex import normalize_latex
from batuta.tasks.graders.letters import without_invisible
from batuta.tasks.graders.limits import MAX_SHOWN, limit_violation
from batuta.tasks.graders.maths import compare_without_algebra
from batuta.tasks.graders.numbers import parse_number
from batuta.tasks.graders.quantities import (
    TOLERANCE,
    Quantity,
    is_same_quantity,
    parse_quantity,
)
from batuta.tasks.graders.structured_data import (
    NO_OBJECT,
    as_text,
    is_same_object,
    structured_answer,
)
from batuta.tasks.graders.times import (
    SMALLEST_UNITS,
    is_same_time,
    parse_dates,
    parse_measure,
    time_in_sentence,
)
from batuta.tasks.graders.words import (
    denies_target,
    is_infinite,
    is_same_items,
    is_same_person,
    is_same_truth,
    is_same_words,
    is_sentence_with,
    join_bullets,
    lacks_items,
    normal_words,
)

ROUNDING_TOLERANCE = 5e-5
"""Relative, of an exact expression that is answered as a decimal."""

OTHER_WORDS = "other words, which may mean the same"

_ORDINALS = {
    word: place + 1
    for place, word in enumerate(
        [
            "first",
            "second",
            "third",
            "fourth",
            "fifth",
            "sixth",
            "seventh",
            "eighth",
            "ninth",
            "tenth",
            "eleventh",
            "twelfth",
            "thirteenth",
        ]
    )
}
_SUFFIXES = {"M": "million", "B": "billion", "bn": "billion", "k": "thousand"}
_DIGITS = re.compile(r"-?\d*\.\d{3,}")
_AMOUNT = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")
_LABEL = re.compile(
    r"^(?:in|the|year|total|sum|value|result|count|number|in the year)(?: year)?(?: is)?:?\s+"
    r"(?=[\d-])",
    re.IGNORECASE,
)
_DATED_YEAR = re.compile(
    r"(?:(?:in|on) )?(?:\d{1,2}(?:st|nd|rd|th)? )?"
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?(?: \d{1,2}(?:st|nd|rd|th)?)?,? (?=[12]\d{3}\W*\Z)",
    re.IGNORECASE,
)
"""The day and month before a year, where only the year is asked for."""
_VALUE_SENTENCE = re.compile(
    r"(?:the|its|his|her|their) [a-z]+(?: of (?:the )?[a-z]+)? (?:is|was|are|were) (-?\d[^,;:()?]*?)\.?",
    re.IGNORECASE,
)
_TARGET_LABEL = re.compile(r"^\s*(?:the )?(?:final )?answer\s*(?:is|[:=])\s*(?=\S)", re.IGNORECASE)
_REMARK = re.compile(r"(?P<answer>[^()]+?)\s*\((?P<remark>[^()]*)\)\.?")
_UNSURE = re.compile(
    r"\b(?:or|not|no|maybe|possibly|perhaps|and|if|unless|neither|nor)\b|\d", re.IGNORECASE
)
_HEDGES = re.compile(r"\b(?:maybe|possibly|perhaps|either|probably)\b", re.IGNORECASE)
_BEFORE_CHRIST = re.compile(r"\bB\.?\s?C\.?(?:E\.?)?(?!\w)")
_GROUPED_DIGITS = re.compile(r"\d{1,3}(?: \d{3})+(?: ?[a-zA-Z][^\d]*)?")
_UNKNOWNS = frozenset("nxyz")
"""Names that are no unit."""
_MATHS = re.compile(r"\\(?!text)[a-zA-Z]|[\^=+\d]")
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")


@final
class FreeFormGrader:
    """Judges the marked answer or the last line: as words, yes or no, a quantity, a formula.

    1 for right, 0 for wrong, undecided (None) where other words might mean the same.
    """

    def __init__(self, pool: MathsPool) -> None:
        self._pool = pool

    async def grade(self, answer: str, target: str) -> Grade:
        """The grade of `answer`."""
        shown = answer_extraction.visible_text(answer)
        if (same := is_same_object(shown, target)) is not None:
            return Grade(float(same), shown.strip(), "right" if same else f"expected {target}")
        found = find_short_answer(answer)
        if found is None:
            return Grade(0.0, None, "no answer, or its box is cut")
        if reason := limit_violation(found):
            return Grade(0.0, found[:MAX_SHOWN], reason)
        right = compare_short_answers(found, target)
        if right is None and (aside := _without_aside(found)):
            right = compare_short_answers(aside, target) or None
        if (
            right is None
            and _MATHS.search(normalize_latex(target))
            and _MATHS.search(normalize_latex(found))
        ):
            return await self._grade_as_maths(found, target)
        if right is None:
            return Grade(None, found, OTHER_WORDS)
        return Grade(float(right), found, "right" if right else f"expected {target}")

    async def _grade_as_maths(self, found: str, target: str) -> Grade:
        """The grade of an expression; wrong only if a number was asked for and one is given."""
        wanted = parse_quantity(target)
        near = TOLERANCE if wanted and wanted.measured else 0.0
        if wanted is None and _DIGITS.fullmatch(found.strip(" .$")):
            near = ROUNDING_TOLERANCE
        verdict = await self._compare(normalize_latex(target), normalize_latex(found), near)
        if verdict is ComparisonResult.SAME:
            return Grade(1.0, found, "right")
        if verdict in UNDECIDED:
            return Grade(None, found, verdict.value)
        numbers = _is_numeric(forms.parse_form(normalize_latex(target))) and _is_numeric(
            _unhedged_form(found)
        )
        single = wanted is not None and not wanted.unit and not _PROSE.search(found)
        if single or numbers or _is_other_expression(found, target):
            return Grade(0.0, found, f"expected {target}")
        return Grade(None, found, OTHER_WORDS)

    async def _compare(self, target: str, found: str, near: float) -> ComparisonResult:
        quick = compare_without_algebra(target, found, near)
        if quick is None:
            return await self._pool.compare(target, found, near)
        return ComparisonResult.SAME if quick else ComparisonResult.DIFFERENT


def find_short_answer(text: str) -> str | None:
    """What `text` gives as its answer: data, a list, what is marked, or its last line."""
    shown = without_invisible(answer_extraction.visible_text(text))
    data = structured_answer(shown)
    if data is not NO_OBJECT:
        return as_text(data)
    if listed := join_bullets(shown):
        return listed
    found = answer_extraction.final_answer(text)
    if found is None or answer_extraction.has_box(shown) or answer_extraction.tagged_answer(shown):
        return found
    after = shown[shown.rfind(found) :]
    taken = statements.RETRACTION.search(after)
    if taken is None:
        return re.sub(r"\. I hope it is correct\.?$|^The final answer is:? ", "", found)
    put = _AMOUNT.findall(after[taken.end() :])
    return put[0] if len(put) == 1 else after[taken.end() :].strip() or None


def _without_aside(found: str) -> str | None:
    """An answer without the remark in brackets behind it; None where that may change it."""
    remark = _REMARK.fullmatch(found.strip())
    if remark is None or _UNSURE.search(remark["remark"]) or _UNSURE.search(remark["answer"]):
        return None
    return remark["answer"].strip()


def _unhedged_form(found: str) -> forms.Form:
    """An answer's form, with the words left out that join two guesses."""
    return forms.parse_form(normalize_latex(_HEDGES.sub(" ", found).strip()))


def _is_numeric(form: forms.Form) -> bool:
    """Whether a form is made of numbers alone."""
    if isinstance(form, forms.SequenceForm):
        return bool(form.items) and all(map(_is_numeric, form.items))
    if isinstance(form, forms.EquationForm):
        return form.is_named and _is_numeric(form.right)
    return parse_number(form.text) is not None or has_value(form.text)


def _is_other_expression(found: str, target: str) -> bool:
    """Whether both are expressions in one unknown, which algebra can tell apart."""
    if _PROSE.search(found) or _PROSE.search(target):
        return False
    wanted, given = (parse_expression(normalize_latex(text)) for text in (target, found))
    if wanted is None or given is None:
        return False
    names = variables_in(wanted)
    return len(names) == 1 and names <= _UNKNOWNS and names == variables_in(given)


def has_value(text: str) -> bool:
    """Whether an expression has a value: there are no names in it."""
    tree = parse_expression(text)
    return tree is not None and not variables_in(tree)


def compare_short_answers(found: str, target: str) -> bool | None:
    """Whether an answer is the target, as a quantity, as words, as yes or no; None: unclear."""
    target = _TARGET_LABEL.sub("", target)
    found = time_in_sentence(found, target)
    compared = (
        is_same_bound,
        is_same_time,
        _is_same_day,
        _is_same_measure,
        _is_same_ordinal,
        _is_same_amount,
    )
    for compare in compared:
        same = compare(target, found)
        if same is not None:
            return same
    if is_same_words(found, target):
        return True
    if is_infinite(target) and (
        parse_number(normalize_latex(found)) is not None or is_infinite(found.lstrip("-−"))
    ):
        return False
    if is_same_person(found, target) or is_same_items(found, target, is_same_words):
        return True
    same = is_same_truth(found, target)
    if same is None and is_sentence_with(found, target):
        return True
    other = lacks_items(found, target, is_same_words) or denies_target(found, target)
    return False if same is None and other else same


def _is_same_amount(target: str, found: str) -> bool | None:
    if plain := _VALUE_SENTENCE.fullmatch(found.strip()):
        found = plain[1]
    if bool(_BEFORE_CHRIST.search(target)) != bool(_BEFORE_CHRIST.search(found)):
        return False if _AMOUNT.search(target) else None
    wanted, given = parse_quantity(target), parse_quantity(_in_notation_of(found, target))
    return None if wanted is None or given is None else is_same_quantity(wanted, given)


def _is_same_day(target: str, found: str) -> bool | None:
    """Whether two dates are one day; the first of two readings of 07/04 is month first."""
    wanted, given = parse_dates(target), parse_dates(found)
    if len(wanted) != 1 or not given:
        return None
    return given[0] == wanted[0] or (None if wanted[0] in given else False)


def _is_same_measure(target: str, found: str) -> bool | None:
    """Whether quantities of which one is in several units are the same."""
    wanted, given = (
        parse_measure(normalize_latex(target)),
        parse_measure(normalize_latex(_in_notation_of(found, target))),
    )
    if wanted is None or given is None or max(wanted[2], given[2]) == 1:
        several = (wanted or given or ("", 0, 1))[2] > 1
        other = parse_quantity(found) if wanted else parse_quantity(target)
        if not several or other is None or not other.unit:
            return None
        return _is_converted(wanted or given, other)
    return wanted[:2] == given[:2]


def _is_converted(measure: tuple[str, Fraction, int] | None, other: Quantity) -> bool:
    """Whether a length or weight in several units is the same in one unit of another system."""
    unit = SMALLEST_UNITS.get(measure[0]) if measure else None
    if measure is None or unit is None:
        return False
    value = units.convert_value(other.value, other.unit, unit)
    return value is not None and math.isclose(value, measure[1], rel_tol=TOLERANCE / 2)


def _is_same_ordinal(target: str, found: str) -> bool | None:
    wanted, given = _parse_ordinal(target), _parse_ordinal(found)
    if wanted is None or (given is None and parse_number(found.strip()) is None):
        return None
    return wanted == (parse_number(found.strip()) if given is None else given)


def _parse_ordinal(text: str) -> int | None:
    words = normal_words(text)
    if digits := re.fullmatch(r"(\d+)(?:st|nd|rd|th)", words):
        return int(digits[1])
    return _ORDINALS.get(words)


def _in_notation_of(found: str, target: str) -> str:
    """An answer in the target's way of writing: `3,14` for a decimal, `25 C` for a temperature."""
    found = found.strip()
    if _GROUPED_DIGITS.fullmatch(found):
        found = re.sub(r"(?<=\d) (?=\d)", "", found)
    if re.fullmatch(r"-?\d+,(?:\d{1,2}|\d{4,})%?", found) and "." in target:
        found = found.replace(",", ".")
    if temperature := re.search(r"°\s*[CF]|deg[CF]", target):
        found = re.sub(r"(?<=\d)\s*([CF])$", r" deg\1", found) if temperature else found
    if re.search(r"\d{4}|illion", target):
        found = re.sub(r"(?<=\d)\s?(M|B|bn|k)$", lambda unit: f" {_SUFFIXES[unit[1]]}", found)
    if re.fullmatch(r"-?[\d.,]+", target.strip()):
        found = _LABEL.sub("", found)
    if re.fullmatch(r"[12]\d{3}", target.strip()):
        found = _DATED_YEAR.sub("", found)
    return found
