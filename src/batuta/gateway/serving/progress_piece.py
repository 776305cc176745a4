"""Something that a reader is told beside the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ProgressPiece:
    """Something that a reader is told beside the answer."""

    text: str
    is_line: bool = True
    """Whether it is a line of its own; else it goes on where the last piece ended."""
    step: dict[str, Any] | None = None
    """The place and the worker of a step's own words; None: the words are ours."""
