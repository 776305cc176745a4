"""Reads answers given as data: the value of "answer" in a JSON object, bare or in a code block."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from batuta.lab.tasks.literals import read_json_or_literal
from batuta.sandbox.program import JSON

MAX_LENGTH = 20_000
"""Maximum length of a text that is read as data, in characters."""

NO_OBJECT: Final = object()
"""Returned for a text without a JSON object."""

_CODE_BLOCK = re.compile(
    r"```(?:json|python|yaml)?[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL | re.IGNORECASE
)
ANSWER_KEYS = re.compile(
    r"(?:the[ _-]?)?(?:final|correct|selected|chosen|best|my)?[ _-]?"
    r"(?:answers?|choice|option|letter|label|selection|result|solution|response|prediction)"
    r"(?:[ _-]?(?:choice|option|letter|text|value))?",
    re.IGNORECASE,
)
PROGRAM_KEYS = re.compile(
    r"(?:the[ _-]?)?(?:final|full|complete|python)?[ _-]?"
    r"(?:code|program|source|implementation|solution|completion|answer|response)"
    r"(?:[ _-]?(?:code|text))?",
    re.IGNORECASE,
)
_MAX_DEPTH = 4


def structured_answer(text: str, keys: re.Pattern[str] = ANSWER_KEYS) -> Any:
    """Return the answer in a JSON object: all of `text`, its last code block or its last lines.

    Returns:
        A value that is not an object; None if it is unclear which value of the object is the
        answer; `NO_OBJECT` if there is no object.
    """
    value = _find_object(text)
    return NO_OBJECT if value is NO_OBJECT else _answer_in(value, keys, 0)


def _find_object(text: str) -> Any:
    shown = text.strip()
    blocks = _CODE_BLOCK.findall(shown[-MAX_LENGTH:])
    values = (_parse_object(part.strip()) for part in (shown, *blocks[-1:], _last_object(shown)))
    return next((value for value in values if value is not NO_OBJECT), NO_OBJECT)


def is_same_object(text: str, target: str) -> bool | None:
    """Return whether the object in a text is the target, as JSON or Python.

    Return None if the target is not an object, or if the text has none.
    """
    wanted, given = _parse_object(target.strip()), _parse_object(text.strip(" \t\n`*.$"))
    if wanted is NO_OBJECT:
        return None
    given = _find_object(text) if given is NO_OBJECT else given
    return None if given is NO_OBJECT else is_same_value(wanted, given)


def is_same_value(expected: JSON, value: JSON, tolerance: float = 0.0) -> bool:
    """Return whether two values are the same; `1.0` is `1`, but neither is `true`.

    If one of two numbers is a float, they may differ within the tolerance, as in `is_within`.
    """
    if isinstance(expected, list) and isinstance(value, list):
        pairs = zip(expected, value, strict=False)
        return len(expected) == len(value) and all(
            is_same_value(one, other, tolerance) for one, other in pairs
        )
    if isinstance(expected, dict) and isinstance(value, dict):
        shared = expected.keys() == value.keys()
        return shared and all(
            is_same_value(item, value[key], tolerance) for key, item in expected.items()
        )
    if isinstance(expected, bool) != isinstance(value, bool):
        return False
    if tolerance and isinstance(expected, float | int) and isinstance(value, float | int):
        return is_within(expected, value, tolerance)
    return expected == value


def is_within(expected: float, value: float, tolerance: float) -> bool:
    """Return whether two numbers are equal, or near each other if one of them is a float.

    They may differ by `tolerance`, times the size of the expected number if that is over 1.
    """
    if expected == value or not (isinstance(expected, float) or isinstance(value, float)):
        return expected == value
    try:
        finite = math.isfinite(expected) and math.isfinite(value)
        return finite and abs(expected - value) <= tolerance * max(1.0, abs(expected))
    except OverflowError:  # an integer larger than any float
        return False


def as_text(value: Any) -> str | None:
    """Return a string, number or boolean, or a nonempty list of such values, also nested, as text.

    Return None for any other value.
    """
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list):
        parts = [as_text(item) for item in cast("list[Any]", value)]
        return None if None in parts or not parts else ", ".join(filter(None, parts))
    return None


def _last_object(text: str) -> str:
    """Return the text from the last line that begins with a brace; "" if none or if maybe TeX."""
    if not text.endswith("}") or "\\" in text[-MAX_LENGTH:]:
        return ""
    start = text.rfind("\n{")
    return text[start + 1 :] if start >= 0 else ""


def _parse_object(text: str) -> Any:
    if len(text) > MAX_LENGTH or text[:1] + text[-1:] != "{}":
        return NO_OBJECT
    value = read_json_or_literal(text)
    return cast("Any", value) if isinstance(value, dict) else NO_OBJECT


def _answer_in(value: Any, keys: re.Pattern[str], depth: int) -> Any:
    """Return the value under the answer's key; a list of one item counts as the item.

    Return None if no key, or several with different values, may be that of the answer.
    """
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return _answer_in(items[0], keys, depth + 1) if len(items) == 1 else items
    if not isinstance(value, Mapping):
        return value
    fields = cast("Mapping[Any, Any]", value)
    named = [fields[key] for key in fields if isinstance(key, str) and keys.fullmatch(key)]
    alike = bool(named) and all(type(one) is type(named[0]) and one == named[0] for one in named)
    return _answer_in(named[0], keys, depth + 1) if alike else None
