"""What a provider does not take is refused by its name, and never left out silently."""

from __future__ import annotations

from collections.abc import Iterable

from batuta.core import Request, Sampling
from batuta.errors import UnsupportedFieldError

PENALTIES = ("frequency_penalty", "presence_penalty", "top_k")
"""Fields of `Sampling` that some providers do not know."""
CHOICES = ("choices", "logprobs")
"""The same, of what is told of the reply."""
_CLIENT_NAMES = {"choices": "n"}
"""Fields that clients call by another name."""


def refuse_continuation(model: str, request: Request) -> None:
    """Nothing, if no continuation is to be scored.

    Raises:
        UnsupportedFieldError: one is.
    """
    if request.continuation:
        raise UnsupportedFieldError(f"{model} does not tell how likely a given text is")


def refuse_fields(model: str, sampling: Sampling, names: Iterable[str]) -> None:
    """Nothing, if none of these fields is asked for.

    Raises:
        UnsupportedFieldError: one is; it is named rather than left out.
    """
    for name in names:
        if getattr(sampling, name) is not None:
            raise UnsupportedFieldError(f"{model} takes no {_CLIENT_NAMES.get(name, name)}")
