"""Refuses fields that a provider does not take by name, instead of leaving them out silently."""

from __future__ import annotations

from collections.abc import Iterable

from batuta.core import Sampling
from batuta.errors import UnsupportedFieldError

PENALTIES = ("frequency_penalty", "presence_penalty", "top_k")
"""Fields of `Sampling` that some providers do not know."""
CHOICES = ("choices", "logprobs")
"""The same, of what is told of the reply."""
_CLIENT_NAMES = {"choices": "n"}
"""Fields that clients call by another name."""


def refuse_fields(model: str, sampling: Sampling, names: Iterable[str]) -> None:
    """Refuse these fields: one that is asked for is named rather than left out.

    Raises:
        UnsupportedFieldError: one is asked for.
    """
    for name in names:
        if getattr(sampling, name) is not None:
            raise UnsupportedFieldError(f"{model} takes no {_CLIENT_NAMES.get(name, name)}")
