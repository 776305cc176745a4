"""Reads text as JSON or as a Python literal."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any, Final

UNREADABLE: Final = object()
"""Returned for text that is neither JSON nor a Python literal."""


def read_json_or_literal(text: str) -> Any:
    """Return the value of a text as JSON, else as a Python literal, or `UNREADABLE`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return read_literal(text)


def read_literal(text: str) -> Any:
    """Return the value of a Python literal, or `UNREADABLE`."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return UNREADABLE
