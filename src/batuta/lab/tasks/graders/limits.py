"""What no answer looks like that a person would read: too long, too deep, all digits."""

from __future__ import annotations

import re

MAX_SHOWN = 400
"""Characters of an answer, or of what is wrong with it, that a grade keeps."""

MAX_LENGTH = 4096
"""Characters of an answer that is looked at."""

MAX_DIGITS = 256
"""Digits in a row."""

MAX_DEPTH = 40
"""Brackets in brackets."""

_DIGITS = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")


def limit_violation(text: str) -> str:
    """Why `text` is no answer that anyone would read; empty if it is."""
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
