"""Reads numbers outside formulas as exact fractions.

`1,234`, `1 234`, `391.0` and `3.91e2` are numbers, also with a typographic minus or with the digits
of other scripts. `007`, a code, and `1,2`, a list, are not.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

MAX_LENGTH = 1000
"""Maximum number of characters of a number."""
MAX_EXPONENT = 5000
"""Maximum absolute value of an exponent."""

_SIGNS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-"),
        **dict.fromkeys("\u00a0\u2007\u2009\u202f\u3000", " "),
        **dict.fromkeys("\uff0c\u066c", ","),
        **dict.fromkeys("\uff0e\u066b", "."),
        "\uff0b": "+",
        "\u2019": "'",
        "\u200e": None,
        "\u200f": None,
        "\ufeff": None,
    }
)
_FIXED_GAP = re.compile("(?<=\\d)[\u00a0\u2007\u2009\u202f](?=\\d{3}(?!\\d))")
"""Matches a no-break or thin space between a digit and a group of three digits. An ordinary space
there may separate two numbers."""
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)\s?(?P<whole>"
    r"[1-9]\d{0,2}(?P<gap>[, '_])\d{3}(?:(?P=gap)\d{3})*|[1-9]\d?(?:,\d{2})+,\d{3}"
    r"|0|[1-9]\d*|(?=\.\d))"
    r"(?:\.(?P<part>\d*))?(?:[eE](?P<ten>[+-]?\d{1,4}))?"
)


def plain_digits(text: str) -> str:
    """Return the text with ASCII digits, signs, separators and spaces, without direction marks."""
    return text if text.isascii() else ascii_digits(text.translate(_SIGNS))


def join_thousands(text: str) -> str:
    """Return the text with commas for the no-break and thin spaces between groups of digits."""
    return text if text.isascii() else _FIXED_GAP.sub(",", text)


def ascii_digits(text: str) -> str:
    """Return the text with the digits of all scripts as ASCII."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(one)) if one.isdecimal() else one for one in text)


def read_plain_number(text: str) -> Fraction | None:
    """Return the whole text as a number; None if it is not one, or it exceeds a limit."""
    found = _NUMBER.fullmatch(plain_digits(text.strip())) if len(text) <= MAX_LENGTH else None
    if found is None or abs(int(found["ten"] or 0)) > MAX_EXPONENT:
        return None
    whole = re.sub(r"\D", "", found["whole"]) or "0"
    value = Fraction(f"{whole}.{found['part'] or '0'}e{found['ten'] or 0}")
    return -value if found["sign"] == "-" else value
