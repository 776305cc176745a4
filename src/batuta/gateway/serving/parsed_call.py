"""What a caller wants, whatever dialect it said it in; and the fields that dialects share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batuta.core import PromptCache, Question
from batuta.gateway.errors import invalid_value, unsupported_parameter
from batuta.gateway.http.fields import Fields
from batuta.gateway.serving.options import RunOptions

_EMPTY_VALUES: tuple[Any, ...] = (None, False, 0, [], {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A question, who shall answer it, and how the answer is wanted."""

    model: str
    """The served model's name."""
    question: Question
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with its usage, where the dialect leaves that to the caller."""
    store: bool = True
    """Whether run and answer may be kept."""
    options: RunOptions = field(default_factory=RunOptions)
    ignored: tuple[str, ...] = ()
    """Top-level fields that nobody here knows."""


def parse_cache(body: Fields) -> PromptCache | None:
    """What is asked of the providers' caches of prompts.

    Raises:
        APIError: a value is of the wrong type.
    """
    key, retention = body.text("prompt_cache_key"), body.text("prompt_cache_retention")
    return PromptCache(key=key, retention=retention) if key or retention else None


def check_metadata(body: Fields) -> None:
    """Nothing, if `metadata` holds strings only.

    Raises:
        APIError: it does not.
    """
    metadata = body.object("metadata")
    for name in metadata.names if metadata else ():
        if not isinstance(metadata.get(name) if metadata else None, str):
            raise invalid_value(f"metadata.{name}", "it must be a string.")


def check_unsupported(body: Fields, reasons: Mapping[str, str]) -> None:
    """Nothing, if the body has no field that is known and cannot be honoured.

    Args:
        body: the request's.
        reasons: of each such field, why; a value that asks for nothing is let through.

    Raises:
        APIError: it has one.
    """
    for name, reason in reasons.items():
        if body.get(name) not in _EMPTY_VALUES:
            raise unsupported_parameter(name, reason)
