"""JSON as requests and answers have it: not too many values, no key twice, and written again."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from batuta.gateway.errors import APIError, invalid_type

MAX_VALUES = 60_000
"""Of a body; a picture is one, however large it is."""
_SHOWN = 64
"""Characters of a key that an error shows."""
_ODD_COLON = re.compile(rb'"[ \t\r\n]+:|\\u00(?:22|3[aA])')
"""What makes counting colons after quotes say nothing: gaps, and escapes of the two signs."""


def encode_json(value: Any) -> bytes:
    """The value as JSON; a model's lone surrogates are written as escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:  # odd text or integers over 64 bits: rare and slow
        return json.dumps(value, separators=(",", ":"), default=_decode_fragment).encode()


def plain_json(value: Any) -> Any:
    """A copy of the value that is nothing but JSON."""
    return json.loads(encode_json(value))


def _decode_fragment(value: object) -> Any:
    """What was encoded before, decoded again."""
    if isinstance(value, orjson.Fragment):
        return orjson.loads(orjson.dumps(value))
    raise TypeError(f"not JSON: {type(value).__name__}")


def check_value_count(body: bytes) -> None:
    """Nothing, if the JSON has no more values than can be read quickly; not in the event loop.

    Raises:
        APIError: it has more.
    """
    if _count_separators(body) > MAX_VALUES and _count_separators(_drop_strings(body)) > MAX_VALUES:
        message = f"The body has more than {MAX_VALUES} values."
        raise APIError(413, "request_too_large", message)


def _count_separators(body: bytes) -> int:
    return sum(body.count(sign) for sign in (b",", b"[", b"{"))


def _drop_strings(body: bytes) -> bytes:
    """What of the JSON stands outside of strings, as far as is needed to find too many values.

    A few calls that each take milliseconds: a pattern that gives up the interpreter's lock for
    every string waits for it as often, for seconds where the loop is busy.
    """
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # Keys and values make two strings for a separator, and a string has two quotes.
    return b"".join(unescaped.split(b'"', 4 * MAX_VALUES + 4)[::2])


def check_keys(body: bytes) -> None:
    """Nothing, if no object of the JSON has a key twice: readers differ on which one counts.

    Raises:
        APIError: one has.
    """
    if not _ODD_COLON.search(body):
        try:
            # Compact JSON has one of these for each key, and as many more as strings hold.
            if orjson.dumps(orjson.loads(body)).count(b'":') == body.count(b'":'):
                return
        except (orjson.JSONDecodeError, TypeError):
            pass  # odd, or deep: below
    try:
        json.loads(body, object_pairs_hook=_check_pairs)
    except ValueError:
        return  # it is refused where it is read
    except RecursionError:
        raise APIError(400, "invalid_json", "The body is nested too deeply.") from None


def _check_pairs(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            message = f"The body is not valid JSON: the key '{name[:_SHOWN]}' appears twice."
            raise APIError(400, "invalid_json", message)
        seen.add(name)


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a request's body must be.

    Raises:
        APIError: it is none.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        message = f"The body is not valid JSON: {error.msg} at line {error.lineno}."
        raise APIError(400, "invalid_json", message) from None
    if not isinstance(value, dict):
        raise invalid_type("body", "an object", value)
    return value  # pyright: ignore[reportUnknownVariableType] - JSON's keys are strings
