"""Counts the values of a JSON text without parsing it."""

from __future__ import annotations

LARGE_BODY = 200_000
"""Bytes above which a JSON text is parsed in another thread, after its values are counted."""


def count_values(body: bytes, most: int) -> int:
    """Return the approximate number of values in a JSON text.

    Separators inside strings are excluded only if there may be more than `most` values, and only as
    far as is needed to decide that.
    """
    with_strings = _count_separators(body)
    return with_strings if with_strings <= most else _count_separators(_drop_strings(body, most))


def _count_separators(body: bytes) -> int:
    return sum(body.count(sign) for sign in (b",", b"[", b"{"))


def _drop_strings(body: bytes, most: int) -> bytes:
    """Return the JSON without its strings, as far as is needed to find more than `most` values.

    The function makes a few calls of milliseconds each. A pattern with a replacement function would
    release the GIL and wait for it at every string: for seconds, if the event loop is busy.
    """
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # At most two strings (key and value) per separator, with two quotes each.
    return b"".join(unescaped.split(b'"', 4 * most + 4)[::2])
