"""Limits that no answer for a human reader exceeds: length, nesting and digits."""

from __future__ import annotations

import re

MAX_SHOWN = 400
"""Number of characters to which most graders shorten the answer or reason in a grade."""

MAX_LENGTH = 4096
"""Maximum number of characters of an answer."""

MAX_DIGITS = 256
"""Maximum number of consecutive digits."""

MAX_DEPTH = 40
"""Maximum nesting depth of brackets."""

_DIGITS = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")


def limit_violation(text: str) -> str:
    """Return which limit `text` exceeds, in words; empty if none."""
    if len(text) > MAX_LENGTH:
        return f"longer than {MAX_LENGTH} characters"
    if _DIGITS.search(text):
        return f"more than {MAX_DIGITS} digits in a row"
    return f"nested more than {MAX_DEPTH} deep" if _nesting_depth(text) > MAX_DEPTH else ""


def _nesting_depth(text: str) -> int:
    depth = most = 0
    for character in text:
        if character in "([{":
            depth += 1
            most = max(most, depth)
        elif character in ")]}":
            depth -= 1
    return most
