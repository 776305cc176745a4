"""How many values a JSON text has, known before it is read."""

from __future__ import annotations


def count_values(body: bytes, most: int) -> int:
    """Return about how many values the JSON has; exactly only up to `most`."""
    found = _count_separators(body)  # including those in strings
    return found if found <= most else _count_separators(_drop_strings(body, most))


def _count_separators(body: bytes) -> int:
    return sum(body.count(sign) for sign in (b",", b"[", b"{"))


def _drop_strings(body: bytes, most: int) -> bytes:
    """Return the JSON outside of strings, as far as is needed to find too many values.

    A few calls that each take milliseconds: a pattern that gives up the interpreter's lock for
    every string waits for it as often, for seconds where the loop is busy.
    """
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # Keys and values make two strings for a separator, and a string has two quotes.
    return b"".join(unescaped.split(b'"', 4 * most + 4)[::2])
