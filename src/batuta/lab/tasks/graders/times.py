"""Reads times of day, and durations, lengths, weights or money in several units."""

from __future__ import annotations

import re
from fractions import Fraction

_FACTORS = {
    "time": {"day days d": 86400, "hour hours hr hrs h": 3600, "minute minutes min mins": 60,
             "second seconds sec secs s": 1},
    "length": {"yard yards yd": 36, "foot feet ft": 12, "inch inches in": 1},
    "mass": {"pound pounds lb lbs": 16, "ounce ounces oz": 1},
    "metres": {"kilometer kilometers kilometre kilometres km": 1000,
               "meter meters metre metres": 1},
    "money": {"dollar dollars usd": 100, "cent cents": 1},
}  # fmt: skip
_UNITS = {
    name: (kind, factor)
    for kind, table in _FACTORS.items()
    for names, factor in table.items()
    for name in names.split()
}
_PART = re.compile(
    r"(?P<number>\d+(?:\.\d+)?|(?P<whole>\d+)?\s*\\frac\{(?P<above>\d+)\}\{(?P<below>\d+)\})"
    r"\s*(?:\\text\{\s*)?(?P<unit>[a-zA-Z]+)(?P<m>(?<=\dh)\d+m)?\.?(?:,?\s*and)?\s*\}?\s*,?\s*(?:and\s*)?"
)
_COLON = re.compile(r"(\d+):([0-5]\d)(?:\\text\{)?\s*(?:hours|hrs|h)\}?")
_CLOCK = re.compile(
    r"(\d{1,2})(?:[:.h]\s*([0-5]\d))?\s*(?:\\text\{)?\s*(?:([ap])\.?\s?m\b\.?|h\b|hours)?\s*\}?",
    re.IGNORECASE,
)
_MAX_LENGTH = 100
"""Maximum length of a quantity or a time, in characters."""
_HALF_DAY = 12


def several_units(text: str) -> tuple[str, Fraction] | None:
    """Return the kind and the size, in the kind's smallest unit, of a quantity like `2 h 30 min`.

    Return None for a text that is not a quantity in several units.
    """
    found = parse_measure(text)
    return found[:2] if found and found[2] > 1 else None


def parse_measure(text: str) -> tuple[str, Fraction, int] | None:
    """Return the kind, the size in its smallest unit, and the number of parts of a quantity.

    Return None if the text is not a quantity in these units.
    """
    if len(text) > _MAX_LENGTH:
        return None
    if colon := _COLON.fullmatch(text):
        return "time", Fraction(int(colon[1]) * 3600 + int(colon[2]) * 60), 2
    total, at, last, kinds, parts = Fraction(0), 0, 0, set[str](), 0
    text = re.sub(r"(?<=\d)h(?=\d+m(?:in)?\b)", " h ", text)
    text = re.sub(r"(?<= h )(\d+)m\b", r"\1 min", text)
    while at < len(text):
        part = _PART.match(text, at)
        kind, factor = _UNITS.get(part["unit"].casefold(), ("", 0)) if part else ("", 0)
        if part is None or not kind or (last and factor >= last):
            return None
        total += _part_amount(part) * factor
        kinds.add(kind)
        at, last, parts = part.end(), factor, parts + 1
    return (kinds.pop(), total, parts) if len(kinds) == 1 else None


def _part_amount(part: re.Match[str]) -> Fraction:
    if not part["above"]:
        return Fraction(part["number"])
    below = int(part["below"]) or 1
    return int(part["whole"] or 0) + Fraction(int(part["above"]), below)


def is_same_time(target: str, answer: str) -> bool | None:
    """Return whether two times of day are the same; None if undecided or the target is no time."""
    wanted = _CLOCK.fullmatch(target.strip()) if len(target) <= _MAX_LENGTH else None
    if wanted is None or not wanted[3]:
        return _is_same_in_halves(wanted, answer) if wanted and wanted[2] else None
    given = _CLOCK.fullmatch(answer.strip(" .")) if len(answer) <= _MAX_LENGTH else None
    if given is None or (not given[3] and not given[2]):
        return False
    if given[3]:
        return _minutes_of_day(wanted) == _minutes_of_day(given)
    bare = int(given[1]) * 60 + int(given[2])
    written = (int(given[1]), int(given[2])) == (int(wanted[1]), int(wanted[2] or 0))
    return bare == _minutes_of_day(wanted) or (written and not given[1].startswith("0"))


def _is_same_in_halves(wanted: re.Match[str], answer: str) -> bool | None:
    """Return whether `4:45 PM` is the target 16:45; None if one may be morning or afternoon."""
    given = _CLOCK.fullmatch(answer.strip(" .")) if len(answer) <= _MAX_LENGTH else None
    hour = int(wanted[1])
    if given is None or not given[3] or 0 < hour <= _HALF_DAY:
        return None
    return hour * 60 + int(wanted[2]) == _minutes_of_day(given)


def _minutes_of_day(clock: re.Match[str]) -> int:
    """Return the minutes since midnight of a time with AM or PM."""
    hour = int(clock[1]) % _HALF_DAY + (_HALF_DAY if clock[3].casefold() == "p" else 0)
    return hour * 60 + int(clock[2] or 0)
