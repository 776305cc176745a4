"""Reads answers, options and tags from the cells of tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

from batuta.lab.tasks.literals import UNREADABLE, read_json_or_literal
from batuta.lab.tasks.plain_numbers import read_plain_number

_EXACT_FLOATS = 2.0**53
"""Floats of at least this size may have lost digits of an integer."""
_SURE_DIGITS = 15
"""Number of decimal digits that a float certainly keeps."""
_LEADING_ZERO = re.compile(r"[+-]?0\d+", re.ASCII)
_LETTERED_LINE = re.compile(r"\(?([A-Za-z])\s?[.):]\s+(\S.*)")
_LETTER_WITHIN = re.compile(r"(?:(?<=[\s,;])|\A)\(?([A-Za-z])\s?[.):]\s*(?=\S)")
_TAG_SEPARATOR = re.compile("[,;|]")
_MIN_OPTIONS = 2


def is_missing(value: Any) -> bool:
    """Return whether a cell is empty: None, NaN, or blanks."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip())


def answer_text(value: Any) -> str:
    """Return an answer as text; `5.0`, as tables write an integer, becomes `5`.

    Raises:
        ValueError: the value is None, a boolean, infinite or NaN, or a float that may have lost
            digits.
    """
    is_infinite = isinstance(value, float | Decimal) and not math.isfinite(value)
    if value is None or isinstance(value, bool) or is_infinite:
        raise ValueError(f"its answer {value} is neither text nor a number: write it as a string")
    if isinstance(value, float) and abs(value) >= _EXACT_FLOATS:
        if len(Decimal(repr(value)).normalize().as_tuple().digits) > _SURE_DIGITS:
            raise ValueError(
                f"its answer {value} is a float that may have lost digits: write it as a string"
            )
        return repr(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return str(int(value))
    return str(value).strip()


def whole_number(text: str) -> str | None:
    """Return an integer in plain digits, whatever its notation (`1,234`, `+5`, `391.0`), or None.

    Digits that begin with a zero, such as `007`, are returned unchanged.
    """
    if _LEADING_ZERO.fullmatch(text):
        return text
    value = read_plain_number(text)
    return None if value is None or value.denominator != 1 else str(value.numerator)


def read_tags(value: Any) -> tuple[str, ...]:
    """Return the tags of a task; none for an empty cell.

    The value is a list, or a string: a JSON or Python list, or tags separated by `,`, `;` or `|`.

    Raises:
        TypeError: the value has another form.
    """
    if is_missing(value):
        return ()
    if isinstance(value, str):
        listed = read_json_or_literal(value)
        value = cast("Any", listed) if isinstance(listed, list) else _TAG_SEPARATOR.split(value)
    if not isinstance(value, Sequence):
        raise TypeError("its tags are not a list")
    tags = cast("Sequence[Any]", value)
    return tuple(str(tag).strip() for tag in tags if not is_missing(tag))


def read_options(value: Any) -> dict[str, str]:
    """Return the options by their letters, in order.

    Args:
        value: a list of strings, or of `{"label": …, "text": …}`; an object from letters to
            strings; `{"label": […], "text": […]}`; or a string with one of these as JSON, with one
            option per line, with lettered options, or with options separated by `|` or `;`.

    Raises:
        KeyError, TypeError, ValueError: the value has another form.
    """
    if isinstance(value, str):
        value = _parse_options_text(value)
    if isinstance(value, Mapping):
        return _labelled_options(cast("Mapping[Any, Any]", value))
    if not isinstance(value, Sequence):
        raise TypeError("its options are neither a list nor an object")
    options = list(cast("Sequence[Any]", value))
    while options and is_missing(options[-1]):
        options.pop()  # padding of the table
    if any(map(is_missing, options)):
        raise ValueError("one of its options is empty")
    if options and all(isinstance(option, Mapping) for option in options):
        rows = cast("list[Mapping[str, Any]]", options)
        return _unique_options([(row["label"], row["text"]) for row in rows])
    return {_letter_at(index): _option_text(option) for index, option in enumerate(options)}


def _option_text(value: Any) -> str:
    return str(value) if isinstance(value, str | bool) else answer_text(value)


def _labelled_options(value: Mapping[Any, Any]) -> dict[str, str]:
    listed: Any = value.get("text")
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        texts = cast("Sequence[Any]", listed)
        labels: Any = value.get("label") or [_letter_at(index) for index in range(len(texts))]
        if len(labels) != len(texts):
            raise ValueError(f"it has {len(labels)} labels for {len(texts)} options")
        return _unique_options(list(zip(labels, texts, strict=True)))
    return _unique_options([pair for pair in value.items() if not is_missing(pair[1])])


def _unique_options(pairs: Sequence[tuple[Any, Any]]) -> dict[str, str]:
    found = {str(label).strip().upper(): _option_text(text) for label, text in pairs}
    if len(found) < len(pairs):
        raise ValueError("two of its options have the same letter")
    return found


def _letter_at(index: int) -> str:
    """Return the letter of the option at an index; after Z, its number."""
    return chr(ord("A") + index) if index < 26 else str(index + 1)  # noqa: PLR2004 - letters


def _parse_options_text(text: str) -> Any:
    found = read_json_or_literal(text) if text.strip()[:1] in set("[{(") else UNREADABLE
    if isinstance(found, list | tuple | dict) and len(cast("Any", found)) >= _MIN_OPTIONS:
        return cast("Any", found)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for parts in (_lettered_parts(lines, text), lines, *(text.split(sign) for sign in "|;")):
        if len(parts) >= _MIN_OPTIONS:
            return [part.strip() for part in parts]
    raise ValueError(
        "its options are one string: write a list, or one option per line, or separate them by |"
    )


def _lettered_parts(lines: Sequence[str], text: str) -> list[str]:
    """Return the texts after the letters A, B, C …, each on its own line or all on one line.

    The list is empty if the letters are not in this order.
    """
    found = [_LETTERED_LINE.fullmatch(line) for line in lines]
    pairs = [(one[1], one[2]) for one in found if one is not None]
    if len(pairs) < max(len(lines), _MIN_OPTIONS):
        marks = list(_LETTER_WITHIN.finditer(text.strip()))
        ends = [*(mark.start() for mark in marks[1:]), len(text)]
        pairs = [
            (mark[1], text.strip()[mark.end() : end].rstrip(" ,;\n"))
            for mark, end in zip(marks, ends, strict=False)
        ]
        if not marks or marks[0].start() > 0:
            return []
    in_order = all(letter.upper() == _letter_at(index) for index, (letter, _) in enumerate(pairs))
    return [part for _, part in pairs] if in_order else []
