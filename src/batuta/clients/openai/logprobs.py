"""Log probabilities of a reply's tokens, read from chat completions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from batuta.clients.decoding import as_array, as_count, as_object, join_halves
from batuta.core import TokenLogprob

_LEAST_LOGPROB = -9999.0
"""OpenAI's value for the logarithm of zero."""


def parse_logprobs(choice: dict[str, Any]) -> tuple[TokenLogprob, ...]:
    """Read the log probabilities of a choice's tokens; those that cannot be read are left out."""
    rows = as_array(as_object(choice.get("logprobs")).get("content"))
    return tuple(token for row in rows if (token := _parse_token(as_object(row))) is not None)


def _parse_token(row: dict[str, Any]) -> TokenLogprob | None:
    chosen = _parse_alternative(row)
    others = [_parse_alternative(as_object(other)) for other in as_array(row.get("top_logprobs"))]
    return chosen and replace(chosen, others=tuple(other for other in others if other is not None))


def _parse_alternative(row: dict[str, Any]) -> TokenLogprob | None:
    token, logprob, utf8 = row.get("token"), row.get("logprob"), row.get("bytes")
    if not isinstance(token, str) or isinstance(logprob, bool):
        return None
    if not isinstance(logprob, (int, float)):
        return None
    return TokenLogprob(
        token=join_halves(token),
        logprob=float(logprob) if math.isfinite(logprob) else _LEAST_LOGPROB,
        utf8=None if utf8 is None else tuple(as_count(byte) for byte in as_array(utf8)),
    )
