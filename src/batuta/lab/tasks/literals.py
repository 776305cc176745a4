"""Values that a text spells out, as JSON or as a literal of Python."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any, Final

UNREADABLE: Final = object()
"""The result for a text that spells no value."""


def read_json_or_literal(text: str) -> Any:
    """Return the value that a text has as JSON, else as a literal of Python; or `UNREADABLE`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return read_literal(text)


def read_literal(text: str) -> Any:
    """Return the value of a literal of Python, or `UNREADABLE`."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return UNREADABLE
