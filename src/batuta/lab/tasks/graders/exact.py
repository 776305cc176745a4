"""Grades answers to reasoning-gym, and answers with one correct wording, number or literal."""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from fractions import Fraction
from typing import Any, cast, final

from batuta.core import Grade, Task
from batuta.lab.tasks.datasets.reasoning_gym import score_answer
from batuta.lab.tasks.graders.latex import normalize_latex
from batuta.lab.tasks.graders.numbers import parse_number
from batuta.lab.tasks.literals import UNREADABLE, read_literal
from batuta.lab.tasks.plain_numbers import read_plain_number
from batuta.language import answer_extraction


@final
class ReasoningGymGrader:
    """Scores the marked answer or the last line, in [0, 1], with the task generator's scorer."""

    def __init__(self, task: Task) -> None:
        self._task = task

    async def grade(self, answer: str, target: str) -> Grade:
        """Return the grade of `answer`.

        Raises:
            SourceError: the generator's package is not installed.
        """
        found = answer_extraction.final_answer(answer)
        return Grade(0.0, None, "no answer") if found is None else score_answer(self._task, found)


_MONEY = re.compile(r"(-?)\\?\$\s?(?=[\d.])|\s?\\?\$\Z")
_PRICE = re.compile(r"([-−]?)\\?([$€£¥₹])\s?([\d.].*)")
_FORMULA = re.compile(r"\s*\$([^$]+)\$\s*")
"""Matches a target that is enclosed in the dollar signs of a formula."""
_TEXT = re.compile(r"\s*\\(?:text(?:bf|it|rm|tt)?|math(?:bf|rm|sf|tt))\s*\{([^{}]*)\}\s*")


@final
class ExactGrader:
    """Scores 1 if the marked answer or the last line is the target, else 0.

    Case, blank lines and the amount of white space in a line do not count. If the target is a
    number, the answer must be that number in any notation, also with a dollar sign or as LaTeX; a
    price must have its currency and amount; a Python literal must have its value: `[1,2]` for
    `[1, 2]`, but not `'A'` for `'a'`. Markdown or a LaTeX text command around an answer and a final
    full stop are ignored; other marks count.
    """

    async def grade(self, answer: str, target: str) -> Grade:
        """Return the grade of `answer`."""
        found = answer_extraction.answer_readings(answer)
        if not found:
            return Grade(0.0, None, "no answer")
        right = next((reading for reading in found if _is_same_answer(reading, target)), None)
        shown = found[-1] if right is None else right
        return Grade(
            float(right is not None), shown, f"expected {target}" if right is None else "right"
        )


def _is_same_answer(found: str, target: str) -> bool:
    if found == target:
        return True
    text = _TEXT.fullmatch(found)
    spellings = {found, _without_stop(found), *([text[1]] if text else ())}
    if (formula := _FORMULA.fullmatch(target)) is not None:
        target = formula[1]
    if (number := read_plain_number(target)) is not None:
        given = map(_read_number, spellings)
        return any(one is not None and _is_same_number(number, one) for one in given)
    if (price := _read_price(target)) is not None:
        return price in map(_read_price, spellings)
    wanted = read_literal(target)
    if wanted is not UNREADABLE and type(wanted) is not int:  # `0xff` is compared as text
        return any(_is_same_literal(wanted, read_literal(text)) for text in spellings)
    return _normalize_text(_without_stop(target)) in map(_normalize_text, spellings)


def _read_number(text: str) -> Fraction | None:
    """Read a number, an amount of dollars, a fraction or LaTeX; None for other texts."""
    number = read_plain_number(_MONEY.sub(r"\1", text))
    if number is None and ("\\" in text or "/" in text):
        return parse_number(normalize_latex(text))
    return number


def _read_price(text: str) -> tuple[str, Fraction] | None:
    """Return the currency and the amount of a price such as `-$1,234.50`; None for other texts."""
    found = _PRICE.fullmatch(text)
    amount = None if found is None else read_plain_number(found[3])
    return None if found is None or amount is None else (found[2], -amount if found[1] else amount)


def _is_same_number(wanted: Fraction, given: Fraction) -> bool:
    """Return whether two numbers are equal, or two fractions within half a float's precision."""
    if wanted == given or 1 in {wanted.denominator, given.denominator}:
        return wanted == given
    distance = abs(wanted - given)
    return distance <= abs(wanted) * Fraction(sys.float_info.epsilon) / 2


def _without_stop(text: str) -> str:
    """Return the text without its final full stop, if letters or digits are left."""
    shorter = text.strip().removesuffix(".")
    return shorter if any(map(str.isalnum, shorter)) else text


def _is_same_literal(wanted: Any, given: Any) -> bool:
    """Return whether two values are equal with equal types, recursively; `1.0` equals `1`."""
    if isinstance(wanted, int | float) and isinstance(given, int | float):
        alike = isinstance(wanted, bool) == isinstance(given, bool)
        return alike and wanted == given and abs(wanted) != math.inf  # a literal too large
    if type(wanted) is not type(given):
        return False
    if isinstance(wanted, list | tuple):
        pairs = cast("tuple[list[Any], list[Any]]", (wanted, given))
        return len(pairs[0]) == len(pairs[1]) and all(map(_is_same_literal, *pairs))
    if isinstance(wanted, dict):
        one, other = cast("tuple[dict[Any, Any], dict[Any, Any]]", (wanted, given))
        return one.keys() == other.keys() and all(
            _is_same_literal(value, other[key]) for key, value in one.items()
        )
    return wanted == given


def _normalize_text(text: str) -> str:
    """Return the text without case and needless white space; line breaks stay, as in a grid."""
    lines = unicodedata.normalize("NFC", text).casefold().splitlines()
    return "\n".join(" ".join(line.split()) for line in lines if line.strip())
