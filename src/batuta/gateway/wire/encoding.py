"""Values as JSON bytes, and back."""

from __future__ import annotations

import json
from typing import Any

import orjson
import regex

from batuta.gateway.refusal import Refusal, wrong_type

MAX_VALUES = 60_000
"""Of a body; a picture is one, however large it is."""
_STRING: Any = regex.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)', regex.DOTALL)


def encode(value: Any) -> bytes:
    """The value as JSON; a model's lone surrogates are written as escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:  # odd text or integers over 64 bits: rare and slow
        return json.dumps(value, separators=(",", ":"), default=_fragment).encode()


def plain(value: Any) -> Any:
    """A copy of the value that is nothing but JSON."""
    return json.loads(encode(value))


def _fragment(value: object) -> Any:
    """What was encoded before, decoded again."""
    if isinstance(value, orjson.Fragment):
        return orjson.loads(orjson.dumps(value))
    raise TypeError(f"not JSON: {type(value).__name__}")


def check_values(body: bytes) -> None:
    """Nothing, if the JSON has no more values than can be read quickly; not in the event loop.

    Raises:
        Refusal: it has more.
    """
    if _signs(body) > MAX_VALUES and _signs(_STRING.sub(b"", body, concurrent=True)) > MAX_VALUES:
        message = f"The body has more than {MAX_VALUES} values."
        raise Refusal(413, "request_too_large", message)


def _signs(body: bytes) -> int:
    return sum(body.count(sign) for sign in (b",", b"[", b"{"))


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a request's body must be.

    Raises:
        Refusal: it is none.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        message = f"The body is not valid JSON: {error.msg} at line {error.lineno}."
        raise Refusal(400, "invalid_json", message) from None
    if not isinstance(value, dict):
        raise wrong_type("body", "an object", value)
    return value  # pyright: ignore[reportUnknownVariableType] - JSON's keys are strings
