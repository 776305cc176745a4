"""Numbers in what strangers write."""

from __future__ import annotations

_MOST_DIGITS = 9


def read_small_number(text: str) -> int | None:
    """Return the number of up to nine ASCII digits; None: the text is no such number.

    `int` raises for digits by the thousand, and takes those of other scripts.
    """
    if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit():
        return int(text)
    return None
