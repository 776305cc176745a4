"""Times of day, dates, and durations or lengths in several units."""

from __future__ import annotations

import re
from datetime import date
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
SMALLEST_UNITS = {"length": "inch", "mass": "ounce", "metres": "m"}
"""In which a length or a weight is counted, by kind; times and money are exact."""
_PART = re.compile(
    r"(?P<number>\d+(?:\.\d+)?|(?P<whole>\d+)?\s*\\frac\{(?P<above>\d+)\}\{(?P<below>\d+)\})"
    r"\s*(?:\\text\{\s*)?(?P<unit>[a-zA-Z]+)(?P<m>(?<=\dh)\d+m)?\.?(?:,?\s*and)?\s*\}?\s*,?\s*(?:and\s*)?"
)
_COLON = re.compile(r"(\d+):([0-5]\d)(?:\\text\{)?\s*(?:hours|hrs|h)\}?")
_CLOCK = re.compile(
    r"(\d{1,2})(?:[:.h]\s*([0-5]\d))?\s*(?:\\text\{)?\s*(?:([ap])\.?\s?m\b\.?|h\b|hours)?\s*\}?",
    re.IGNORECASE,
)
_MONTHS = {
    name: place
    for place, names in enumerate(
        ["january jan", "february feb", "march mar", "april apr", "may may", "june jun", "july jul",
         "august aug", "september sep sept", "october oct", "november nov", "december dec"], 1)
    for name in names.split()
}  # fmt: skip
_DATES = (
    re.compile(r"(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})"),
    re.compile(
        r"(?:the )?(?P<d>\d{1,2})(?:st|nd|rd|th)?(?: of)?,? (?P<n>[a-z]{3,9})\.?,? (?P<y>\d{4})"
    ),
    re.compile(r"(?P<n>[a-z]{3,9})\.? (?P<d>\d{1,2})(?:st|nd|rd|th)?,? (?P<y>\d{4})"),
)  # fmt: skip
_SHORT_DATE = re.compile(r"(\d{1,2})[/.-](\d{1,2})[/.-](\d{4})")
_BEFORE_TIME = re.compile(
    r"(?:the|it|he|she|they|we|its|his|her|their|this|that)\b[^\d.,;:!?()]*?"
    r"\b(?:is|was|at|on|in)(?: the)?\s+(?=\d|[a-z]{3,9}\.? \d)",
    re.IGNORECASE,
)
"""A plain sentence as far as the time of day, the date or the year with which it ends."""
_TURNS = re.compile(
    r"\b(?:not|no|never|nor|or|but|if|unless|except|maybe|perhaps|possibly|probably|neither|either)\b"
    r"|n['’]t\b",
    re.IGNORECASE,
)
_YEAR = re.compile(r"(?:[a-z]{3,9}\.?,? )?[12]\d{3}", re.IGNORECASE)
_HALF_DAY = 12
_LONGEST = 100
BASES = frozenset(_UNITS)


def several_units(text: str) -> tuple[str, Fraction] | None:
    """What a quantity in two or more units measures, and how many of its smallest: `2 h 30 min`."""
    found = parse_measure(text)
    return found[:2] if found and found[2] > 1 else None


def parse_measure(text: str) -> tuple[str, Fraction, int] | None:
    """Kind, size in the smallest unit and number of parts of a quantity in everyday units."""
    if len(text) > _LONGEST:
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
    """Whether two times of day are the same; None where the target is none, by `am` or `pm`."""
    wanted = _CLOCK.fullmatch(target.strip()) if len(target) <= _LONGEST else None
    if wanted is None or not wanted[3]:
        return _is_same_in_halves(wanted, answer) if wanted and wanted[2] else None
    given = _CLOCK.fullmatch(answer.strip(" .")) if len(answer) <= _LONGEST else None
    if given is None or (not given[3] and not given[2]):
        return False
    if given[3]:
        return _minutes_of_day(wanted) == _minutes_of_day(given)
    bare = int(given[1]) * 60 + int(given[2])
    written = (int(given[1]), int(given[2])) == (int(wanted[1]), int(wanted[2] or 0))
    return bare == _minutes_of_day(wanted) or (written and not given[1].startswith("0"))


def _is_same_in_halves(wanted: re.Match[str], answer: str) -> bool | None:
    """Whether `4:45 PM` is 16:45; None where the target may as well be in the morning."""
    given = _CLOCK.fullmatch(answer.strip(" .")) if len(answer) <= _LONGEST else None
    hour = int(wanted[1])
    if given is None or not given[3] or 0 < hour <= _HALF_DAY:
        return None
    return hour * 60 + int(wanted[2]) == _minutes_of_day(given)


def time_in_sentence(text: str, target: str) -> str:
    """The time of day, the date or the year with which a plain sentence ends; else the text.

    Args:
        text: what was answered.
        target: what is right; where it is no such time, the text stays.
    """
    if not any(_is_time(target, kind) for kind in ("clock", "date", "year")):
        return text
    found = _BEFORE_TIME.match(text.strip()) if len(text) <= _LONGEST else None
    if found is None or _TURNS.search(found[0]):
        return text
    rest = text.strip()[found.end() :].rstrip(" .")
    return rest if any(_is_time(rest, kind) for kind in ("clock", "date", "year")) else text


def _is_time(text: str, kind: str) -> bool:
    text = text.strip(" .")
    if kind == "clock":
        clock = _CLOCK.fullmatch(text)
        return clock is not None and bool(clock[2] or clock[3])
    return bool(parse_dates(text)) if kind == "date" else _YEAR.fullmatch(text) is not None


def _minutes_of_day(clock: re.Match[str]) -> int:
    hour = int(clock[1]) % _HALF_DAY + (_HALF_DAY if (clock[3] or "a").casefold() == "p" else 0)
    return hour * 60 + int(clock[2] or 0)


def parse_dates(text: str) -> tuple[date, ...]:
    """The days that a text may name: two where the month and the day could change places."""
    text = " ".join(text.casefold().replace(",", ", ").split()).replace(" ,", ",")
    if len(text) > _LONGEST:
        return ()
    for pattern in _DATES:
        if found := pattern.fullmatch(text):
            named = found.groupdict()
            month = int(named["m"]) if named.get("m") else _MONTHS.get(named.get("n") or "", 0)
            return _valid_dates([(int(named["y"]), month, int(named["d"]))])
    if short := _SHORT_DATE.fullmatch(text):
        one, other, year = map(int, short.groups())
        return _valid_dates([(year, one, other), (year, other, one)])
    return ()


def _valid_dates(triples: list[tuple[int, int, int]]) -> tuple[date, ...]:
    days: dict[date, None] = {}
    for year, month, day in triples:
        try:
            days[date(year, month, day)] = None
        except ValueError:
            continue
    return tuple(days)
