"""Parses small numbers in untrusted text."""

from __future__ import annotations

_MOST_DIGITS = 9


def read_small_number(text: str) -> int | None:
    """Parse a number of up to nine ASCII digits; return None for any other text.

    Unlike this function, `int` raises for thousands of digits and accepts digits of other scripts.
    """
    if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit():
        return int(text)
    return None
