"""Splits off what is in brackets after an answer: the same answer in another form, or a remark."""

from __future__ import annotations

import re

from batuta.lab.tasks.graders.numbers import parse_number

_TEXT_COMMAND = re.compile(r"\\text\{([^{}]*)\}")
_SAME = re.compile(
    r"\s*(?:or|i\.?e\.?,?|that is,?|equivalently|=|\\approx|\\simeq|about|approx(?:imately)?\.?)\s*"
)
_REMARK = re.compile(r"[a-zA-Z]{3,}(?:[ ,'-]+[a-zA-Z]+)*|(?:since|as|because)\b[^()]*")
_UNSAFE = re.compile(r"\b(?:or|not|if|unless|and|maybe|possibly|when|no)\b|\\text", re.IGNORECASE)
_LONGEST = 300


def split_parenthetical(text: str) -> tuple[str, str] | None:
    r"""Return an answer and its other form in brackets after it, empty if these hold a remark.

    Args:
        text: as `normalize_latex` spells it.

    Returns:
        None if nothing is in brackets, or if it may be a factor or change the answer.
    """
    if len(text) > _LONGEST or not text.endswith((")", ")}")):
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
    """Return where the round bracket opens that closes at the end of the text; None if nowhere."""
    if not text.endswith(")"):
        return None
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        depth += (text[index] == ")") - (text[index] == "(")
        if depth == 0:
            return index
    return None
