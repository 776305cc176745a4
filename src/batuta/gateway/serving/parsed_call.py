"""What a caller wants, whatever dialect it said it in."""

from __future__ import annotations

from dataclasses import dataclass, field

from batuta.core import Question
from batuta.gateway.serving.options import RunOptions


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
