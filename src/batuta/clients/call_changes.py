"""Changes to a request that a server has refused, for that call alone.

A limit on the output that is too high for the model or its context window is lowered. Reasoning
that the server cannot read, and a temperature, `top_p` or seed out of its range, are left out.
Nothing is remembered, unlike the changes of `clients.adaptations`: other calls do not need them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batuta.clients.adaptations import REFUSAL, named_fields
from batuta.core import Request
from batuta.errors import BadRequestError, ClientError, ContextLengthError

_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""The fields of a body that limit the output."""
_OF_CAP = re.compile(
    r"max_(?:completion_|output_)?tokens|maximum tokens|(?:completion|output) tokens"
)
_MIN_ROOM = 1024
"""Output tokens below which a prompt counts as too long, so that a client shortens it."""
_NUMBER = re.compile(r"(?<![\w.-])\d[\d,]{0,11}\d(?![\w-])")


def _find_lower_cap(error: ClientError, body: Mapping[str, Any]) -> int | None:
    """Return a lower limit on the output, with which a refused request may be accepted.

    A limit may exceed what the model can write, which the server then states. And some servers
    refuse a prompt that fits, if it does not fit together with the limit. They state the window and
    the prompt's tokens, often with the limit and the sum.

    Returns None if the error does not state the numbers, or the window has little room.
    """
    most = next((body[name] for name in _CAPS if isinstance(body.get(name), int)), None)
    if most is None or not isinstance(error, BadRequestError | ContextLengthError):
        return None
    stated = {int(found.replace(",", "")) for found in _NUMBER.findall(error.words)}
    others = sorted(stated - {most, error.status} - {number + most for number in stated})
    room = 0
    if len(others) == 1 and _OF_CAP.search(error.words):
        room = others[0]
    elif len(others) == 2 and most in stated and isinstance(error, ContextLengthError):  # noqa: PLR2004
        room = others[1] - others[0]
    return room if _MIN_ROOM <= room < most else None


_UNREADABLE_THOUGHTS = re.compile(
    r"encrypted[_ ]content|(?:invalid|corrupted|not valid)\b.{0,40}\bsignature"
    r"|\bsignature\b.{0,40}(?:invalid|corrupted|not valid|could not)"
)
"""Matches a refusal of reasoning that a client changed, or that another account encrypted."""


_WITH_RANGES = frozenset({"temperature", "top_p", "seed"})
"""Fields of `Sampling` that may be left out if their value is out of the server's range."""
_OUT_OF_RANGE = re.compile(
    r"\b(?:range|between|exceeds?|(?:less|greater|more) than|at (?:most|least)|(?:max|min)imum)\b"
    r"|[<>]=|\bin ?[(\[]"
)
"""Matches a refusal of a value rather than of a field."""


def change_for_call(
    error: ClientError, request: Request, body: Mapping[str, Any]
) -> Request | None:
    """Return the request with a change that may avoid the error and concerns this call alone.

    Args:
        error: the server's error.
        request: the request before its adaptation.
        body: the body that was sent.

    Returns:
        The request with a lower limit on the output, without reasoning that the server cannot read,
        or without a field of the sampling that is out of its range; None if the error is about none
        of these.
    """
    lower = _find_lower_cap(error, body)
    if lower is not None:
        return replace(request, max_output=lower)
    words = error.words.lower()
    if not isinstance(error, BadRequestError):
        return None
    if any(m.thoughts for m in request.messages) and _UNREADABLE_THOUGHTS.search(words):
        bare = tuple(replace(message, thoughts=()) for message in request.messages)
        return replace(request, messages=bare)
    named = named_fields(words, body)[:1]
    is_value = REFUSAL.search(words) and _OUT_OF_RANGE.search(words)
    if not (is_value and named and _WITH_RANGES.issuperset(named)):
        return None
    return replace(request, sampling=replace(request.sampling, **dict.fromkeys(named)))
