"""Values as JSON bytes, and back."""

from __future__ import annotations

import json
from typing import Any

import orjson

from batuta.gateway.refusal import Refusal, wrong_type


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
