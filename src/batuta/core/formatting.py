"""Formats numbers and texts for people: on the terminal, in the web UI and in reports.

The functions are pure, but those of times read the local time zone, and `format_age` the clock.

Unknown values are shown as unknown. A cost is shown as a lower bound if some calls have no price.

Names, questions and answers come from callers and models. When they are shown, control characters
are replaced by visible signs; letters of every script, line feeds and tabs are kept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from math import isnan

from batuta.usage import Cost

_THOUSAND = 1000
_HUNDRED = 100
_MINUTE = 60.0
_HOUR = 3600.0
_DAY = 86400.0
_MAX_DECIMALS = 9
_ROUNDS_UP = 0.9995
"""The fraction of a unit from which a size is shown in that unit, not in the next smaller one."""


def format_cost(cost: Cost) -> str:
    """Return a cost: `$0.0014`.

    If some calls have no price the cost is a lower bound, `≥ $0.0014`; without any dollars it is
    `unpriced`.
    """
    if cost.is_unknown:
        return "unpriced"
    return f"{'≥ ' if cost.unpriced_calls else ''}{format_usd(cost.usd)}"


def format_usd(amount: Decimal | float) -> str:
    """Return dollars in a few digits: `$0`, `$0.0014`, `$1.40`, `$1,400`."""
    amount = amount if isinstance(amount, Decimal) else Decimal(str(amount))
    if not amount:
        return "$0"
    sign, size = ("-" if amount < 0 else ""), abs(amount)
    if size >= _HUNDRED:
        return f"{sign}${size:,.0f}"
    if size >= 1:
        return f"{sign}${size:.2f}"
    return f"{sign}${size:.{min(max(1 - size.adjusted(), 2), _MAX_DECIMALS)}f}"


def format_seconds(seconds: float) -> str:
    """Return a length of time: `90 ms`, `1.4 s`, `2 min 05 s`, `3 h 10 min`."""
    if round(seconds * _THOUSAND) < _THOUSAND:
        return f"{seconds * _THOUSAND:.0f} ms"
    if round(seconds, 1) < _MINUTE:
        return f"{seconds:.1f} s"
    if round(seconds) >= _HOUR:
        hours, left = divmod(round(seconds / _MINUTE), int(_MINUTE))
        return f"{hours} h {left:02d} min"
    minutes, rest = divmod(round(seconds), int(_MINUTE))
    return f"{minutes} min {rest:02d} s"


def format_count(number: float) -> str:
    """Return a number, rounded to a whole one, with thousands separators: `1,054`."""
    return f"{number:,.0f}"


def join_words(words: Sequence[str]) -> str:
    """Return the words as an enumeration: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def as_sentence(clause: object) -> str:
    """Return the clause, such as an error's message, as a sentence: a capital and a full stop."""
    text = str(clause)
    return f"{text[:1].upper()}{text[1:]}."


def format_short(number: float) -> str:
    """Return a number in a few digits: `0.125`, `42`, `1234`, `12k`; NaN is a dash.

    It has three significant digits, but from 100 on no decimals, and from 10,000 on only thousands.
    """
    if isnan(number):
        return "–"
    if abs(number) >= 10 * _THOUSAND:
        return f"{number / _THOUSAND:.0f}k"
    if abs(number) >= _HUNDRED:
        return f"{number:.0f}"
    return f"{number:.3g}"


def format_bytes(size: float) -> str:
    """Return a size in bytes with decimal units: 491 MB, 1.1 GB."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= _ROUNDS_UP * least:
            return f"{size / least:.{1 if unit == 'GB' else 0}f} {unit}"
    return f"{size:.0f} B"


def format_percent(share: float, digits: int = 0) -> str:
    """Return a ratio as per cent, with a no-break space: `42 %`, `1,784 %`.

    `digits` is the number of decimals.
    """
    return f"{share * _HUNDRED:,.{digits}f}\u00a0%"


def format_time(moment: float) -> str:
    """Return a time (seconds since the epoch) in local time: `2026-01-31 12:00:00`.

    A number outside the calendar's range is returned as a number.
    """
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    except (OverflowError, ValueError, OSError):
        return f"{moment:g}"


def format_zoned_time(moment: float) -> str:
    """Return a time as `format_time` does, with the local time zone: `2026-01-31 12:00:00 CET`."""
    try:
        zone = time.localtime(moment).tm_zone
    except (OverflowError, ValueError, OSError):
        return format_time(moment)
    return f"{format_time(moment)} {zone}"


def format_age(moment: float, now: float | None = None) -> str:
    """Return how long ago a time was: `3 h ago`; `just now` under a minute or in the future.

    Both times are seconds since the epoch; `now` defaults to the current time.
    """
    past = max(0.0, (time.time() if now is None else now) - moment)
    for size, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if past >= size:
            return f"{past // size:.0f} {name} ago"
    return "just now"


_UNSEEN = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
"""Characters that are invisible or change the direction of the text after them."""
_PICTURE_SELECTORS = "\ufe0e\ufe0f"
"""Variation selectors that show the preceding character, even a digit, as text or as emoji."""
_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0d\U000e0100-\U000e01ef"
"""Variation selectors for the preceding letter; elsewhere they can encode a hidden message."""
_JOINERS = "\u061c\u200c-\u200f"
"""Joiners and direction marks of some scripts; elsewhere they are just invisible."""
INVISIBLE = (
    f"\x00-\x08\x0e-\x1f\x7f-\x9f{_UNSEEN}{_PICTURE_SELECTORS}{_SELECTORS}{_JOINERS}"
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001343f"
)
"""All control, format and invisible characters but the white space from tab to carriage return.

The text is the inside of a `re` character class. A reader does not see these characters between the
letters of a word.
"""
MAX_NAME = 200
"""Maximum number of characters kept of a file's name."""
MAX_PATH_NAME = 60
"""Maximum number of characters of a file name on disk, with its suffix but without the number that
`free_name` adds: systems allow 255 bytes."""
_UNSEEN_IN_NAMES = re.compile(rf"[{INVISIBLE}\x00-\x1f\x7f]+")
_CONTROLS = re.compile(
    f"\r\n|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{_UNSEEN}]|(?:(?<=[\x00-\x7f])|^)[{_JOINERS}]+"
    f"|(?<=[\x00-\x7f])[{_SELECTORS}]"
    f"|(?:(?<=[\\s{_SELECTORS}{_PICTURE_SELECTORS}])|^)[{_SELECTORS}{_PICTURE_SELECTORS}]"
)
_BESIDE_TEXT = re.compile(f"[\x7f-\x9f\ud800-\udfff{_UNSEEN}{_JOINERS}{_SELECTORS}]")
_FIRST_PICTURE = 0x2400
_DELETE, _DELETE_PICTURE = "\x7f", "\u2421"
_REPLACEMENT = "\ufffd"
_LAST_OF_BASIC_PLANE = 0xFFFF


def plain_name(given: str) -> str:
    """Return a file's name for display, not for paths.

    Folders, invisible characters, and dots and spaces at its ends are removed. A long name loses
    its beginning; the name is `file` if nothing is left.
    """
    last = re.split(r"[\\/]", _UNSEEN_IN_NAMES.sub("", given))[-1].strip(" .")
    return last[-MAX_NAME:].lstrip(" .") or "file"


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the end of the name, with a number in front if `taken` already contains it."""
    short = name[-MAX_PATH_NAME:]
    free, number = short, 2
    while free in taken:
        free, number = f"{number}-{short}", number + 1
    return free


def folder_names(names: Iterable[str]) -> list[str]:
    """Return distinct names for files in one folder."""
    taken: list[str] = []
    for name in names:
        taken.append(free_name(name, taken))
    return taken


def escape_controls(text: str) -> str:
    """Return the text with each control or invisible character replaced by a visible sign.

    Tabs and line feeds are kept, and so are joiners and variation selectors after characters that
    they can belong to. CR LF becomes a single line feed.
    """
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub(_visible_signs, text)


def escape_json_controls(text: str) -> str:
    """Return an equivalent JSON text in which control and invisible characters are escaped."""
    is_plain = text.isascii() and _DELETE not in text
    return text if is_plain else _BESIDE_TEXT.sub(_json_escape, text)


def _visible_signs(found: re.Match[str]) -> str:
    if found[0] == "\r\n":
        return "\n"
    return "".join(map(_visible_sign, found[0]))


def _visible_sign(character: str) -> str:
    if character < " ":
        return chr(_FIRST_PICTURE + ord(character))
    return _DELETE_PICTURE if character == _DELETE else _REPLACEMENT


def _json_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code <= _LAST_OF_BASIC_PLANE:
        return f"\\u{code:04x}"
    code -= _LAST_OF_BASIC_PLANE + 1
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
