"""Grades short answers in words, numbers or formulas; a different wording is left undecided.

A judge, if there is one, decides the undecided answers. An answer is wrong only if it is missing,
exceeds a limit in `limits`, or differs as a number, a quantity, a yes or no, an expression or a
JSON object, since other words may mean the same.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import date, datetime
from fractions import Fraction
from typing import final

from batuta.core import Grade
from batuta.lab.tasks.graders import forms, statements, units
from batuta.lab.tasks.graders.comparison_pool import UNDECIDED, ComparisonResult, MathsPool
from batuta.lab.tasks.graders.latex import normalize_latex
from batuta.lab.tasks.graders.letters import without_invisible
from batuta.lab.tasks.graders.limits import MAX_SHOWN, limit_violation
from batuta.lab.tasks.graders.maths import compare_without_algebra
from batuta.lab.tasks.graders.number_words import parse_number_words
from batuta.lab.tasks.graders.numbers import is_terminating, leading_number, parse_number
from batuta.lab.tasks.graders.structured_data import (
    NO_OBJECT,
    as_text,
    is_same_object,
    structured_answer,
)
from batuta.lab.tasks.graders.times import parse_measure, several_units
from batuta.lab.tasks.plain_numbers import plain_digits, read_plain_number
from batuta.language import answer_extraction
from batuta.language.answer_extraction import without_decorations

TOLERANCE = 0.01
"""The relative tolerance for a target with decimals or a unit, which was measured or rounded."""

FAR = 10
"""A quantity with a unit that is off by more than this many tolerances is wrong."""

ROUNDING_TOLERANCE = 5e-5
"""The relative tolerance for a decimal where the target is an exact expression."""

OTHER_WORDS = "other words, which may mean the same"

_TARGET_LABEL = re.compile(r"^\s*(?:the )?(?:final )?answer\s*(?:is|[:=])\s*(?=\S)", re.IGNORECASE)
_DIGITS = re.compile(r"-?\d*\.\d{3,}")
_MATHS = re.compile(r"\\(?!text)[a-zA-Z]|[\^=+\d]")
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
_DECIMAL_COMMA = re.compile(r"-?\d+,\d{1,2}")
_CODE = re.compile(r"\d+(?:[-–:]\d+)+|\d+[/.]\d+[/.]\d+")
"""Numbers separated by signs that are not arithmetic: a range, a date, a time of day."""
_CURRENCIES = tuple(
    re.compile(names, re.IGNORECASE)
    for names in (r"\$|USD|dollar|\bcents?\b", "€|EUR|euro", "£|GBP|pounds?", "¥|yen", "₹|rupee")
)
_UNKNOWNS = frozenset("nxyz")
"""Letters that stand for unknowns, and not for units."""
_KNOWN = re.compile(
    r"(?:\\|(?<![a-zA-Z\\]))(?:d?frac|sqrt|binom|pi|circ|cdot|times|div|exp|ln|log|[lr](?:floor|ceil)"
    r"|(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?)(?![a-zA-Z])"
)
"""Names in a formula that are not unknowns."""
_OTHER_SIGNS = re.compile(r"[^\da-zA-Z.\s+*/^_!|(){}\[\]-]|[a-zA-Z]{2}|\d\s+\d")
_COMMAND = re.compile(
    r"\\(?:text(?:bf|rm|it)?|math(?:rm|bf|it|cal)|ce|operatorname)\s*\{([^{}]*)\}"
)
_LETTERS = str.maketrans(
    {"−": "-", "ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ı": "i", "ð": "d",
     "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "þ": "th"}
)  # fmt: skip
_KEPT_SIGNS = frozenset("-.%‰^")
_ORNAMENTS = frozenset("~∴∵⁄∙⋅→⇒")
"""Mathematical symbols that introduce an answer, or separate its parts as a blank does."""
_POWER = re.compile(r"(?:(?<=[\d)\]}])|(?<=\b[k-nx-z]))[⁺⁻]?[⁰¹²³⁴-⁹]+")
_HYPHEN = re.compile(r"(?<=[a-z])-|(?<=[^\s+=^-])-(?!\.?\d)|-(?=\s|\Z)")
"""Matches a hyphen or a dash; a minus stands before a number, or at the start of a word."""
_ARTICLE = re.compile(r"^(?:an?|the)\s+")
_LEAD = re.compile(r"^(?:it|this|that|he|she|they|these) (?:is|was|are|were)\s+(?:the |an? )?")
_FORMULA = re.compile(r"(?:[A-Z][a-z]?\d*|\((?:[A-Z][a-z]?\d*)+\)\d*)+")
_YES, _NO = (
    "yes|yeah|yep|y|true|t|correct|right|affirmative|indeed",
    "no|nope|n|false|f|incorrect|wrong",
)
_TRUTHS = {**dict.fromkeys(_YES.split("|"), True), **dict.fromkeys(_NO.split("|"), False)}
_TRUTH = re.compile(
    rf"(?:(?:it|that|this|the (?:statement|claim|answer)) is )?(?P<said>{_YES}|{_NO})"
    r"(?:\W*\Z|[,.;:!)—–-]\s*(?P<rest>.*))",
    re.DOTALL,
)
_CONCLUDING = re.compile(
    r"(?:therefore|thus|hence|so|consequently|finally|in conclusion)\b,?\s+", re.IGNORECASE
)
_SENTENCE = re.compile(
    r"(?:the|its|his|her|their|it|this|that) (?:[^\W_]+ ){0,6}(?:is|was|are|were) (?:called |named )?(?:an? |the )?"
)
_TURNS = re.compile(
    r"\b(?:not|no|never|nor|or|but|either|neither|maybe|possibly|perhaps|probably|if|unless|except|wrong|incorrect"
    r"|false|unlikely|opposite|former|other|unclear)\b|\?"
)
"""Words with which a sentence does not state that its last words are the answer."""


_HEDGED = re.compile(r"\b(?:or|maybe|possibly|perhaps|probably|unless|unclear)\b|\?")
_ABOUT = re.compile(r"^(?:about|approximately|around|roughly|in|the year|≈|~)\s+", re.IGNORECASE)
_BULLET = re.compile(r"\A[^\S\n]*+(?:[-*•]|\d++[.)])\s+")
_STOPS_BEFORE = re.compile(r"\A(?: |\.(?!\d))++")
_DAY_MARKS = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b|\b(?:of|the|on)\b|[,.]", re.IGNORECASE)
_DAYS = ("%Y-%m-%d", "%Y/%m/%d", "%d %B %Y", "%d %b %Y", "%B %d %Y", "%b %d %Y")
_ITEM = re.compile(r" ?(?:[,;] ?(?:and\b ?)?|\band\b ?)")


@final
class FreeFormGrader:
    """Scores the marked answer or the last line, as words, yes or no, a number, or a formula.

    The score is 1 if it is correct, 0 if it is wrong, and undecided (None) if other words might
    mean the same, or if a comparison took too long or too much memory.
    """

    def __init__(self, pool: MathsPool) -> None:
        self._pool = pool

    async def grade(self, answer: str, target: str) -> Grade:
        """Return the grade of `answer`.

        Raises:
            ProcessFailedError: a comparison ended with an unforeseen error.
        """
        shown, target = answer_extraction.visible_text(answer), _TARGET_LABEL.sub("", target)
        if (same := is_same_object(shown, target)) is not None:
            return Grade(float(same), shown.strip(), "right" if same else f"expected {target}")
        found = find_short_answer(answer)
        if found is None:
            return Grade(0.0, None, "no answer, or its box is incomplete")
        if reason := limit_violation(found):
            return Grade(0.0, found[:MAX_SHOWN], reason)
        if statements.ends_in_doubt(found) and not statements.ends_in_doubt(target):
            return Grade(None, found, OTHER_WORDS)
        right = compare_short_answers(found, target)
        wanted, given = normalize_latex(target), normalize_latex(found)
        if (
            right is None
            and _is_maths(wanted)
            and _is_maths(given)
            and _shares_currency(found, target)
        ):
            return await self._grade_as_maths(found, wanted, given)
        if right is None:
            return Grade(None, found, OTHER_WORDS)
        return Grade(float(right), found, "right" if right else f"expected {target}")

    async def _grade_as_maths(self, found: str, wanted: str, given: str) -> Grade:
        """Return the grade of `found`; wrong only if both are numbers or have the same one unknown."""
        if "%" in given and "%" not in wanted and parse_number(wanted) is not None:
            return Grade(None, found, OTHER_WORDS)
        near = TOLERANCE if parse_number(wanted) is not None and "." in wanted else 0.0
        if parse_number(wanted) is None and _DIGITS.fullmatch(given):
            near = ROUNDING_TOLERANCE
        quick = compare_without_algebra(wanted, given)
        if quick is None and _differs_in_case(given, wanted):
            return Grade(None, found, OTHER_WORDS)
        if quick is None:
            verdict = await self._pool.compare(wanted, given, near)
        else:
            verdict = ComparisonResult.SAME if quick else ComparisonResult.DIFFERENT
        if verdict in UNDECIDED:
            return Grade(None, found, verdict.value)
        if verdict is ComparisonResult.SAME:
            return Grade(1.0, found, "right")
        numbers = _is_numeric(forms.parse_form(wanted)) and _is_numeric(forms.parse_form(given))
        if numbers or _is_other_expression(given, wanted):
            return Grade(0.0, found, f"expected {wanted}")
        return Grade(None, found, OTHER_WORDS)


def find_short_answer(text: str) -> str | None:
    """Return the answer: data, bullet points, the marked text, or the last line.

    Return None if there is none, or if it is unclear or truncated.
    """
    shown = without_invisible(without_decorations(answer_extraction.visible_text(text)))
    data = structured_answer(shown)
    if data is not NO_OBJECT:
        return as_text(data)
    lines = [line for line in shown.splitlines() if line.strip()]
    if len(lines) > 1 and all(map(_BULLET.match, lines)):
        return ", ".join(_BULLET.sub("", line).strip() for line in lines)
    found = answer_extraction.final_answer(text)
    if found is None or answer_extraction.has_box(shown) or answer_extraction.tagged_answer(shown):
        return found
    after = shown[shown.rfind(found) + len(found) :]
    return f"{found} {after}" if statements.RETRACTION.search(after) else found


def compare_short_answers(found: str, target: str) -> bool | None:
    """Return whether the answer is the target as words, list, yes or no, day or number.

    Return None if that is unclear.
    """
    if "." in target and _DECIMAL_COMMA.fullmatch(found):
        found = found.replace(",", ".")
    found = _ABOUT.sub("", found.strip())
    if _differs_in_case(found, target) or not _shares_currency(found, target):
        return None
    wanted, given = normal_words(target), normal_words(found)
    if wanted and wanted in {given, _LEAD.sub("", given)}:
        return True
    if len(wanted) > 1 and wanted in _TRUTHS:  # `n` and `t` are names
        return _compare_truth(found, is_true=_TRUTHS[wanted])
    if _is_same_day(found, target) or _is_same_list(found, target) or _ends_in(found, target):
        return True
    return _is_same_quantity(found, target)


def normal_words(text: str) -> str:
    """Return letters, digits and mathematical signs in one form, without article and accents."""
    text = plain_digits(_COMMAND.sub(r"\1", without_invisible(text))).translate(_LETTERS)
    text = _POWER.sub(
        lambda found: f"^{plain_digits(unicodedata.normalize('NFKD', found[0]))}", text
    )
    text = re.sub(r"[\\_{}](?=\w)|_(?=\{)|[{}$]", "", text).replace("\\", " ")
    text = unicodedata.normalize("NFKD", re.sub(r"(?<=\w)['’](?=s\b)", "", text)).casefold()
    text = re.sub(r"(?<=\d)\s*([/:])\s*(?=\d)", lambda at: "over" if at[1] == "/" else "to", text)
    text = "".join(
        sign if sign.isalnum() or _changes_value(sign) else " "
        for sign in text
        if not unicodedata.combining(sign)
    )
    kept = _HYPHEN.sub(" ", text)
    return _ARTICLE.sub("", " ".join(_without_stops(kept).split()))


def _changes_value(sign: str) -> bool:
    """Return whether a sign is part of the value: a minus or a root, but not a bracket."""
    is_symbol = unicodedata.category(sign) == "Sm" and sign not in _ORNAMENTS
    return sign in _KEPT_SIGNS or is_symbol


def _without_stops(text: str) -> str:
    """Return the text without blanks and full stops at its ends; the point of `.5` stays."""
    return _STOPS_BEFORE.sub("", text.rstrip(" ."))


def _differs_in_case(found: str, target: str) -> bool:
    """Return whether two formulas or quantities differ only in case: CO is not Co."""
    one, other = found.strip(" ."), target.strip()
    counts = all(map(_FORMULA.fullmatch, (one, other))) or any(map(str.isdigit, other))
    return counts and one != other and one.casefold() == other.casefold()


def _shares_currency(found: str, target: str) -> bool:
    """Return whether two texts name a common currency, or at least one of them names none."""
    one, other = ({sign for sign in _CURRENCIES if sign.search(text)} for text in (found, target))
    return not one or not other or bool(one & other)


def _compare_truth(found: str, *, is_true: bool) -> bool | None:
    """Return whether an answer says yes if `is_true`, else no; None if it says neither or both."""
    match = _TRUTH.fullmatch(" ".join(found.casefold().split()).strip(" *_`.!\"'"))
    if match is None:
        return None
    yes, rest = _TRUTHS[match["said"]], match["rest"] or ""
    against = re.search(r"\b(?:no|not|false|wrong)\b" if yes else r"\b(?:yes|true|right)\b", rest)
    return None if against or _HEDGED.search(rest) else yes == is_true


def _parse_quantity(text: str) -> tuple[Fraction, str] | None:
    """Return a number, in digits or words, and the unit after it or ""; None for other texts."""
    plain = _without_stops(_CURRENCIES[0].sub("", text) if "$" in text else text)
    if (words := parse_number_words(plain)) is not None:
        return words, ""
    if (number := read_plain_number(plain)) is not None:
        return number, ""
    found = leading_number(normalize_latex(plain))
    if found is None:
        return None
    value, rest = found
    return (value, rest) if not rest or units.is_known_unit(rest) else None


def _is_same_quantity(found: str, target: str) -> bool | None:
    """Return whether two quantities are the same; None if unclear."""
    measures = [parse_measure(normalize_latex(text)) for text in (target, found)]
    if any(one and one[2] > 1 for one in measures):
        return len({one and one[:2] for one in measures}) == 1 or None
    wanted, given = _parse_quantity(target), _parse_quantity(found)
    if wanted is None or given is None:
        return None
    (one, unit), (two, other) = wanted, given
    try:
        converted = units.convert_value(two, other, unit) if unit and other else two
    except units.OtherKindError:
        return False
    if converted is None:
        return None
    if one == converted:
        return True
    apart, places = abs(one - converted), len(target.partition(".")[2].split(" ")[0])
    if "." not in target and not unit:
        return None
    allowed = Fraction(TOLERANCE) * abs(one)
    rounded = not is_terminating(converted) and round(converted, places) == one  # such as 0.33
    if apart <= allowed or (rounded and apart <= 2 * allowed):
        return True
    # Quantities of one kind that are far apart differ; closer ones may only be rounded differently.
    return False if unit and other and apart > FAR * allowed else None


def _is_same_day(found: str, target: str) -> bool:
    one, other = _parse_day(found), _parse_day(target)
    return one is not None and one == other


def _parse_day(text: str) -> date | None:
    plain = " ".join(_DAY_MARKS.sub(" ", text).split())
    for form in _DAYS:
        try:
            return datetime.strptime(plain, form).date()  # noqa: DTZ007 - a day has no zone
        except ValueError:
            continue
    return None


def _is_same_list(found: str, target: str) -> bool:
    """Return whether two lists without brackets have the same items, in any order."""
    if target[:1] in "([{":
        return False
    wanted, given = (
        sorted(map(normal_words, _ITEM.split(" ".join(text.split())))) for text in (target, found)
    )
    return len(wanted) > 1 and wanted == given


def _ends_in(found: str, target: str) -> bool:
    """Return whether a plain sentence ends in the target: "The capital is Paris"."""
    conclusion = _CONCLUDING.sub("", answer_extraction.without_emphasis(found.strip()), count=1)
    conclusion, wanted = normal_words(conclusion), normal_words(target)
    conclusion = f"the {conclusion}"
    if not wanted or not conclusion.endswith(f" {wanted}"):
        return False
    before = conclusion.removesuffix(wanted)
    return _SENTENCE.fullmatch(before) is not None and not _TURNS.search(before + found[-2:])


def _is_maths(text: str) -> bool:
    """Return whether a text may be a formula, not a range, a date or a quantity in two units."""
    plain = _CODE.fullmatch(text) is None and several_units(text) is None
    return plain and _MATHS.search(text) is not None


def _is_numeric(form: forms.Form) -> bool:
    if isinstance(form, forms.SequenceForm):
        return bool(form.items) and all(map(_is_numeric, form.items))
    if isinstance(form, forms.EquationForm):
        return form.is_named and _is_numeric(form.right)
    return parse_number(form.text) is not None or _find_unknowns(form.text) == frozenset()


def _is_other_expression(found: str, target: str) -> bool:
    """Return whether two expressions have the same one unknown, so that algebra decides."""
    wanted, given = _find_unknowns(target), _find_unknowns(found)
    if wanted is None or _PROSE.search(found + target):
        return False
    return len(wanted) == 1 and wanted <= _UNKNOWNS and wanted == given


def _find_unknowns(text: str) -> frozenset[str] | None:
    """Return the letters that stand for numbers in an expression; None if it is not one."""
    bare = _KNOWN.sub("*", text)
    if not bare or _OTHER_SIGNS.search(bare):
        return None
    return frozenset(filter(str.isalpha, bare)) - {"e", "i"}
