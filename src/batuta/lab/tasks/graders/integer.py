"""Grades answers that are one integer, as in AIME and GSM8K."""

from __future__ import annotations

import re
from typing import final

from batuta.core import Grade
from batuta.lab.tasks.graders import forms, units
from batuta.lab.tasks.graders.latex import normalize_latex
from batuta.lab.tasks.graders.limits import MAX_SHOWN
from batuta.lab.tasks.graders.number_words import SCALES
from batuta.lab.tasks.graders.numbers import parse_number
from batuta.lab.tasks.graders.statements import RETRACTION, ends_in_doubt
from batuta.lab.tasks.plain_numbers import join_thousands, plain_digits, read_plain_number
from batuta.language import answer_extraction

_AMOUNT = re.compile(
    r"(?<![\w.,/^√∛∜])([-−]|(?:minus|negative)\s|)(?:(?<!\s)\s++)?(?:\\?\$\s*)?(\d[\d,]*(?:\.\d+)?)"
    rf"(?:\s++({'|'.join(SCALES)})s?\b)?(?![\d/^(\\‰⁰¹²³⁴-⁹])",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"[.;:]\s|(?<=\w)\s\((?=[^()]{0,400}\)[\s.]*+\Z)|\b(?:because|since|as|so)\b|,\s"
)
_ALTERNATIVE = re.compile(r"[\s.,;:(]*(?:or|maybe|perhaps|possibly)\b", re.IGNORECASE)
"""Matches a text after a number that offers another number."""
_MARKS = " *_`"
_CALCULATOR = re.compile(r"<<[^<>]*>>")
_DENIED = re.compile(
    # "It is not 12.", "It is more than 12."
    r"(?:(?:\bnot|n['’]t)\s++(?:equal\s++to\s++)?|\b(?:more|less|fewer|greater)\s++than\s++)"
    r"[\s*_`$(]*+[-+−]?\d"
    # "12 (wrong)", "12 is not the answer": behind a sign or a verb, as "12 wrong" may be a count.
    r"|(?:[,.;:(\[–—-]\s*+(?:(?:which|that|it)(?:['’]s)?\s++)?(?:(?:is|was)\s++)?|\s(?:is|was)\s++)"
    r"(?:not\s++(?:the\s++)?(?:answer|correct|right|true)|wrong|incorrect|false)[\s.!*_`)\]]*+\Z",
    re.IGNORECASE,
)


@final
class IntegerGrader:
    """Scores 1 if the marked answer or the last line is the target integer, else 0.

    An answer is marked by a box, `<answer>`, `####` or "the answer is". A sentence counts if its
    only number, or the only one after its last equals sign, is an integer.
    """

    async def grade(self, answer: str, target: str) -> Grade:
        """Return the grade of `answer`."""
        found = answer_extraction.final_answer(answer)
        if found is not None and found.strip(_MARKS) == target:  # of any length
            return Grade(1.0, found[:MAX_SHOWN], "right")
        given = None if found is None or _is_denied(found) else parse_integer(found)
        if given is None:
            return Grade(0.0, found and found[:MAX_SHOWN], "no integer is given as the answer")
        right = given == parse_integer(target)
        return Grade(float(right), str(given), "right" if right else f"expected {target}")


def _is_denied(text: str) -> bool:
    """Return whether the text denies its only number, or ends in doubt.

    A text with several numbers may deny one of them and state another.
    """
    if ends_in_doubt(text):
        return True
    return _DENIED.search(text) is not None and len(_AMOUNT.findall(text)) == 1


def parse_integer(text: str) -> int | None:
    """Return the integer in `text`, such as `1,000`, `x = 18`, `$18 a day`; None if unclear."""
    if len(text) > MAX_SHOWN:
        return None
    if (plain := read_plain_number(text.strip(_MARKS))) is not None:
        return int(plain) if plain.denominator == 1 else None
    form = forms.parse_form(normalize_latex(text))
    while isinstance(form, forms.EquationForm):
        form = form.right
    if isinstance(form, forms.ValueForm):
        value = parse_number(units.split_unit(form.text)[0])
        if value is not None:
            return int(value) if value.denominator == 1 else None
    return _integer_in_sentence(text)


def _integer_in_sentence(text: str) -> int | None:
    """Return the integer that is the only number of a sentence, or after its last `=`; else None.

    Of a sentence that begins with a number, only the first clause counts, if no later clause
    retracts the number or offers another one.
    """
    text = plain_digits(join_thousands(text))
    text = answer_extraction.without_emphasis(text).replace("*", "")
    text = _CALCULATOR.sub("", text)
    clause = _REASON.split(text)[0] if _AMOUNT.match(text) else text
    remark = text[len(clause) :]
    if _ALTERNATIVE.match(remark) or RETRACTION.search(remark):
        return None
    amounts = _AMOUNT.findall(clause.rpartition("=")[2])
    if len(amounts) != 1:
        return None
    sign, digits, scale = amounts[0]
    number = parse_number(digits.rstrip(","))
    value = None if number is None else number * SCALES.get(scale.casefold(), 1)
    if value is None or value.denominator != 1:
        return None
    return -int(value) if sign else int(value)
