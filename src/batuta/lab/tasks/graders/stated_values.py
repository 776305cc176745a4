"""Finds a value that prose announces as the answer, unless it is hedged or retracted."""

from __future__ import annotations

import re

from batuta.lab.tasks.graders import statements

MAX_VALUE = 200
"""The longest value, in characters."""

_STATEMENT = re.compile(
    r"\b(?:final\s+)?(?:answer|result)(?![a-z])(?P<gap>[^.:=\n$]{0,60}?)(?:\*\*)?\s*"
    r"(?::|=|\bis\b|\bequals\b|\bwould be\b|(?=\n))[\s:*_#]*",
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

    Without a concluding word, the sentence must be the whole text. None if the sentence has another
    value, hedges, denies or asks.
    """
    sentences = [said for said in _SENTENCE.split(text.strip()) if said.strip()]
    if not sentences or len(sentences[-1]) > MAX_VALUE:
        return None
    last = sentences[-1].strip(" *_`")
    found = _CONCLUDED.fullmatch(last)
    if found is None or (len(sentences) > 1 and not found["lead"]):
        return None
    group = next(name for name in "abc" if found[name])
    value, said = found[group], last[: found.start(group)]
    doubts = (statements.DOUBT, statements.NEGATION_IN_GAP, _BOUND)
    if any(pattern.search(said) for pattern in doubts) or statements.SURE_HEDGE.search(value):
        return None
    return re.sub(r"(?:,\s|(?<!\s)\s)\s*+and\s+", ", ", value)


def stated_value(text: str) -> str | None:
    """Return what the last "the answer is" or "Answer:" of `text` announces; None if unclear."""
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
    """Return what is announced, and what follows it."""
    if enclosed := _MATH_OR_BOLD.match(tail):
        inner = next(filter(None, enclosed.groups()))
        return inner, tail[enclosed.end() :]
    plain = _PLAIN.match(tail)
    return (plain["value"], plain["rest"]) if plain else ("", "")


def _with_rest(value: str, rest: str) -> str | None:
    """Return the value with the unit after it; None if what follows may change the value."""
    if unit := _UNIT.match(rest):
        spoken = unit[1].strip()
        return None if statements.HEDGE.search(spoken) else f"{value} \\text{{ {spoken}}}"
    changes = (statements.RETRACTION, statements.CONDITION, statements.SURE_HEDGE)
    if not _QUIET.match(rest) or any(pattern.search(rest) for pattern in changes):
        return None
    return value if re.match(r"[\s.,;:!*_`)]|\Z", rest) else None
