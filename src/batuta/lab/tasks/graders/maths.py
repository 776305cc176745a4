"""Grades mathematical answers: compares them as text, as numbers, in form, and symbolically."""

from __future__ import annotations

import re
from typing import NoReturn, final

from batuta.core import Grade
from batuta.lab.tasks.graders import forms, statements, values
from batuta.lab.tasks.graders.comparison_pool import UNDECIDED, ComparisonResult, MathsPool
from batuta.lab.tasks.graders.form_comparison import is_same_form, without_order
from batuta.lab.tasks.graders.latex import normalize_latex
from batuta.lab.tasks.graders.limits import MAX_SHOWN, limit_violation
from batuta.lab.tasks.graders.numbers import parse_number
from batuta.lab.tasks.graders.structured_data import NO_OBJECT, as_text, structured_answer
from batuta.lab.tasks.graders.times import is_same_time
from batuta.language import answer_extraction
from batuta.language.answer_extraction import without_decorations

MAX_VALUE = 200
"""Maximum length of a value, or of a sentence that concludes it, in characters."""

_STATEMENT = re.compile(
    r"\b(?:final\s+)?(?:answer|result)(?![a-z])(?P<gap>[^.:=\n$]{0,60}?)(?:\*\*)?"
    r"(?:\s*+(?::|=|\bis\b|\bequals\b|\bwould be\b)|[^\S\n]*+(?=\n))[\s:*_#]*+",
    re.IGNORECASE,
)
_MATH_OR_BOLD = re.compile(
    r"\$\$(?P<a>.+?)\$\$|\$(?P<b>[^$\n]+)\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\]|\*\*(?P<e>[^*\n]+)\*\*",
    re.DOTALL,
)
_PLAIN = re.compile(
    r"(?P<value>[^\n]{0,400}?)(?P<rest>(?:[.;!]|,(?=\s+[a-z]))?[*_`\s]{0,60}(?:\n|\Z|(?<=[.;!,\s])\s.*))",
    re.DOTALL,
)
_TEXT_OPEN = re.compile(r"\\text(?:bf|rm|it)?\{[^{}]*\Z")
_TEXT_CLOSED = re.compile(r"\s*\}\s*(.+?)\s*(?:\$|\\\]|\\\)|\n|\Z)", re.DOTALL)
_UNIT = re.compile(r"\s*([a-zA-Z][a-zA-Z /]{0,30})[.*_\s]*\Z")
_QUIET = re.compile(r"[^\d$\\]*\Z")
_WORDS = re.compile(
    r"\s*(?:not|about to|less|more|at least|at most|between|fewer|greater|either|neither|up to|over"
    r"|under|below|above|unknown|around|approximately|roughly)\b",
    re.IGNORECASE,
)

_CONCLUDING = (
    r"(?:therefore|thus|hence|so|consequently|finally|in conclusion|we conclude(?: that)?)\b"
    r"[,:]?\s+"
)
_FINDING = r"(?:we (?:have|get|find|obtain|conclude|see)(?: that)?[,:]?\s+)?"
_SUBJECT = r"(?:the|its|there|their|his|her|our|a|an|it|they)\b[a-zA-Z ,'’()-]{0,100}?"
_NUMBER = r"(?>-?\d+(?:,\d{3}(?!\d))*(?:\.\d+)?(?:/\d+)?%?)"
_VALUES = rf"{_NUMBER}(?:(?:,\s*{_NUMBER})*,?\s+and\s+{_NUMBER}|(?:\s+[a-z]{{1,20}}){{0,2}})"
_CONCLUDED = re.compile(
    rf"(?P<lead>{_CONCLUDING})?{_FINDING}"
    rf"(?P<subject>{_SUBJECT}\s(?:is|are|equals|was|were|must be)\s+)?"
    r"(?:\$(?P<a>[^$\n]+)\$|\\\((?P<b>(?:(?!\\\)).)+)\\\)"
    rf"|(?(subject)(?P<c>{_VALUES})|(?!)))\.?",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")

_BOUND = re.compile(
    r"\b(?:less|more|at least|at most|between|fewer|greater|up to|over|under|below|above|about"
    r"|around|approximately|roughly|either|possibly|perhaps|maybe|first|next|remaining)\b",
    re.IGNORECASE,
)
"""These words make a value a bound or a guess, or one of several."""


def concluded_value(text: str) -> str | None:
    """Return the value that ends a text, as in "… Therefore the number of ways is 12".

    Without a concluding word, the sentence must be the whole text. The result is None if no value
    ends the text, or if the sentence has another value, hedges, denies or asks.
    """
    sentences = [each for each in _SENTENCE.split(text.strip()) if each.strip()]
    if not sentences or len(sentences[-1]) > MAX_VALUE:
        return None
    last = sentences[-1].strip(" *_`")
    found = _CONCLUDED.fullmatch(last)
    if found is None or (len(sentences) > 1 and not found["lead"]):
        return None
    group = next(name for name in "abc" if found[name])
    value, before = found[group], last[: found.start(group)]
    doubts = (statements.DOUBT, statements.NEGATION_IN_GAP, _BOUND)
    if any(pattern.search(before) for pattern in doubts) or statements.SURE_HEDGE.search(value):
        return None
    return re.sub(r"(?:,\s|(?<!\s)\s)\s*+and\s+", ", ", value)


def stated_value(text: str) -> str | None:
    """Return the value after the last "the answer is" or the like; None if none, or if unclear."""
    announced = list(_STATEMENT.finditer(text))
    if not announced or _is_doubted(text, announced[-1]):
        return None
    found = announced[-1]
    tail = text[found.end() :]
    if statements.is_question(tail.partition("\n")[0]) or _WORDS.match(tail):
        return None
    inside = _TEXT_CLOSED.match(tail) if _TEXT_OPEN.search(text[: found.start()]) else None
    value, rest = (inside[1], tail[inside.end() :]) if inside else _split_value(tail)
    value = value.strip(" *_`\t")
    if not value or len(value) > MAX_VALUE:
        return None
    return _with_rest(value, rest)


def _is_doubted(text: str, found: re.Match[str]) -> bool:
    clause = re.split(r"[.,;:!?\n]", text[max(0, found.start() - MAX_VALUE) : found.start()])[-1]
    return bool(statements.DOUBT.search(clause) or statements.NEGATION_IN_GAP.search(found["gap"]))


def _split_value(tail: str) -> tuple[str, str]:
    if enclosed := _MATH_OR_BOLD.match(tail):
        inner = next(filter(None, enclosed.groups()))
        return inner, tail[enclosed.end() :]
    plain = _PLAIN.match(tail)
    return (plain["value"], plain["rest"]) if plain else ("", "")


def _with_rest(value: str, rest: str) -> str | None:
    """Return the value with the unit after it; None if the text after it may change the value."""
    if unit := _UNIT.match(rest):
        spoken = unit[1].strip()
        return None if statements.HEDGE.search(spoken) else f"{value} \\text{{ {spoken}}}"
    changes = (statements.RETRACTION, statements.CONDITION, statements.SURE_HEDGE)
    if not _QUIET.match(rest) or any(pattern.search(rest) for pattern in changes):
        return None
    return value if re.match(r"[\s.,;:!*_`)]|\Z", rest) else None


_TEXT_COMMAND = re.compile(r"\\text\{([^{}]*)\}")
_SAME = re.compile(
    r"\s*(?:or|i\.?e\.?,?|that is,?|equivalently|=|\\approx|\\simeq|about|approx(?:imately)?\.?)\s*"
)
_REMARK = re.compile(r"[a-zA-Z]{3,}(?:[ ,'-]+[a-zA-Z]+)*|(?:since|as|because)\b[^()]*")
_UNSAFE = re.compile(
    r"\b(?:or|not|if|unless|and|maybe|possibly|when|no|wrong|incorrect|false)\b|\\text",
    re.IGNORECASE,
)
_MAX_LENGTH = 300
"""Maximum length of an answer with brackets after it, in characters."""


def split_parenthetical(text: str) -> tuple[str, str] | None:
    """Split an answer from brackets after it that repeat it in another form or hold a remark.

    Args:
        text: in the form that `normalize_latex` returns.

    Returns:
        The answer, and its other form or "" for a remark; None if nothing is in brackets, the text
        is too long, or the content may be a factor or change the answer.
    """
    if len(text) > _MAX_LENGTH or not text.endswith((")", ")}")):
        return None
    bare = _TEXT_COMMAND.sub(r" \1 ", text).strip()
    start = _opening_bracket(bare)
    if start is None or start == 0:
        return None
    first, inner = bare[:start].strip(), bare[start + 1 : -1].strip()
    if not first or first[-1] in "+-*/^_,(=":
        return None
    if same := _SAME.match(inner):
        return first, inner[same.end() :].strip()
    if _REMARK.fullmatch(inner) and not _UNSAFE.search(inner):
        return first, ""
    is_value = parse_number(inner.removesuffix("%")) is not None and not first[-1].isalpha()
    return (first, inner) if is_value else None


def _opening_bracket(text: str) -> int | None:
    """Return the index of the opening round bracket that is closed at the end of the text."""
    if not text.endswith(")"):
        return None
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        depth += (text[index] == ")") - (text[index] == "(")
        if depth == 0:
            return index
    return None


ANY_ORDER = re.compile(
    r"\b(?:in (?:any|whatever|no particular) order|order does(?: not|n['’]t) matter"
    r"|regardless of (?:the )?order|the order is (?:irrelevant|not important|unimportant))\b",
    re.IGNORECASE,
)
"""Matches questions that say `(1,2)` may be answered as `(2,1)`."""


_LABELLED_VALUE = re.compile(r"\\text\{\s*\(([A-J])\)[:.]?\s*\}[:.]?(.+)")
_LETTER = re.compile(r"\(?(?:\\text\{)?\s*\(?[A-J]\)?\s*\}?\)?")
"""Match an option's letter before its value, and a letter alone."""


class _NeedsAlgebraError(Exception):
    """Raised if two values can only be compared symbolically."""


@final
class MathsGrader:
    r"""Scores 1 if the answer is the target in any mathematical form, else 0.

    The score is undecided (None) if the comparison took too long or too much memory. The answer is
    read from a JSON object, else from the last `\boxed{}`. Without a box it is read from `<answer>`
    or `####`, or is a value that is announced as the answer or concluded by the last sentence and
    neither hedged nor retracted, or a text of one short line. If the last box is incomplete, the
    answer is wrong.
    """

    def __init__(self, pool: MathsPool, question: str = "") -> None:
        """Read from the question whether the order of a tuple or a list in brackets counts.

        Args:
            pool: compares values that need algebra.
            question: if it says "in any order", order does not count.
        """
        self._pool = pool
        self._any_order = ANY_ORDER.search(question) is not None

    async def grade(self, answer: str, target: str) -> Grade:
        """Return the grade of `answer`; comparisons that need algebra run in another process.

        Raises:
            ProcessFailedError: a comparison ended with an unforeseen error.
        """
        found = find_maths_answer(answer)
        if found is None:
            return Grade(0.0, None, "no clear answer, or the last box is incomplete")
        if reason := limit_violation(found):
            return Grade(0.0, found[:MAX_SHOWN], reason)
        verdict = await self._compare(found, target)
        if verdict in UNDECIDED:
            return Grade(None, found, verdict.value)
        right = verdict is ComparisonResult.SAME
        return Grade(float(right), found, "right" if right else f"expected {target}")

    async def _compare(self, found: str, target: str) -> ComparisonResult:
        wanted, given = normalize_latex(target), normalize_latex(found)
        if labelled := _LABELLED_VALUE.fullmatch(given):
            given = labelled[1 if _LETTER.fullmatch(wanted) else 2]
        quick = compare_without_algebra(wanted, given)
        if not quick and self._any_order and _is_reordered(wanted, given):
            return ComparisonResult.SAME
        if quick is None:
            return await self._pool.compare(wanted, given)
        return ComparisonResult.SAME if quick else ComparisonResult.DIFFERENT


def find_maths_answer(text: str) -> str | None:
    """Return the answer that `text` gives; None if there is none, or if it is unclear."""
    shown = without_decorations(answer_extraction.visible_text(text))
    data = structured_answer(shown)
    if data is not NO_OBJECT:
        return as_text(data)
    if answer_extraction.has_box(shown):
        return answer_extraction.boxed_answer(shown)
    plain = answer_extraction.without_emphasis(shown)
    return (
        answer_extraction.tagged_answer(shown)
        or answer_extraction.answer_after_hashes(shown)
        or stated_value(shown)
        or answer_extraction.concluded_formula(shown)
        or concluded_value(plain)
        or answer_extraction.bare_answer(plain)
    )


def compare_without_algebra(target: str, answer: str) -> bool | None:
    """Return whether the answer is the target as text, number or form; None if it needs algebra."""
    if target == answer:
        return True
    if (timed := is_same_time(target, answer)) is not None:
        return timed
    if (aside := split_parenthetical(answer)) and _is_same_with_parenthetical(target, *aside):
        return True
    try:
        return is_same_form(forms.parse_form(target), forms.parse_form(answer), _is_same_value)
    except _NeedsAlgebraError:
        return None


def _is_same_value(wanted: forms.ValueForm, given: forms.ValueForm) -> bool:
    return values.is_same_value(wanted, given, _ask_for_algebra)


def _ask_for_algebra(*_: object) -> NoReturn:
    raise _NeedsAlgebraError


def _is_reordered(target: str, answer: str) -> bool:
    """Return whether the answer has the target's items, whatever their brackets and order."""
    wanted, given = forms.parse_form(target), forms.parse_form(answer)
    if not isinstance(wanted, forms.SequenceForm) or not isinstance(given, forms.SequenceForm):
        return False
    if len(wanted.items) != len(given.items):
        return False
    try:
        return is_same_form(without_order(wanted), without_order(given), _is_same_value)
    except _NeedsAlgebraError:
        return False


def _is_same_with_parenthetical(target: str, answer: str, aside: str) -> bool:
    """Return whether an answer and its other form in brackets are equal, and one is the target."""
    spellings = [normalize_latex(part) for part in (answer, aside) if part]
    one, other = spellings[0], spellings[-1]
    if not compare_without_algebra(target, one) and not compare_without_algebra(target, other):
        return False
    return one == other or bool(
        compare_without_algebra(one, other) or compare_without_algebra(other, one)
    )
