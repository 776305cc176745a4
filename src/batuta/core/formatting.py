"""Numbers as people read them, the same on the terminal, the page and in reports. Pure.

What is not known is said to be so: a cost of which a part has no price is a lower bound.
"""

from __future__ import annotations

import time
from decimal import Decimal
from math import isnan

from batuta.usage import Cost

_THOUSAND = 1000
_HUNDRED = 100
_MINUTE = 60.0
_HOUR = 3600.0
_DAY = 86400.0
_MOST_DIGITS = 9


def format_cost(cost: Cost) -> str:
    """A cost: `$0.0014`; `≥ $0.0014` where some calls have no price; `unpriced` where none has."""
    if cost.unpriced_calls and not cost.usd:
        return "unpriced"
    return f"{'≥ ' if cost.unpriced_calls else ''}{format_usd(cost.usd)}"


def format_usd(amount: Decimal | float) -> str:
    """Dollars with as many digits as tell something: `$0`, `$0.0014`, `$1.40`, `$1,400`."""
    amount = amount if isinstance(amount, Decimal) else Decimal(str(amount))
    if not amount:
        return "$0"
    sign, size = ("-" if amount < 0 else ""), abs(amount)
    if size >= _HUNDRED:
        return f"{sign}${size:,.0f}"
    if size >= 1:
        return f"{sign}${size:.2f}"
    return f"{sign}${size:.{min(max(1 - size.adjusted(), 2), _MOST_DIGITS)}f}"


def format_seconds(seconds: float) -> str:
    """A length of time: `90 ms`, `1.4 s`, `2 min 05 s`, `3 h 10 min`."""
    if seconds < 1:
        return f"{seconds * _THOUSAND:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds >= _HOUR:
        hours, left = divmod(round(seconds / _MINUTE), int(_MINUTE))
        return f"{hours} h {left:02d} min"
    minutes, rest = divmod(round(seconds), int(_MINUTE))
    return f"{minutes} min {rest:02d} s"


def format_count(number: float) -> str:
    """A whole number with its thousands apart: `1,054`."""
    return f"{number:,.0f}"


def format_short(number: float) -> str:
    """A figure of any size in few digits: `0.125`, `42`, `12k` (a dash where there is none)."""
    if isnan(number):
        return "–"
    if abs(number) >= 10 * _THOUSAND:
        return f"{number / _THOUSAND:.0f}k"
    if abs(number) >= _HUNDRED:
        return f"{number:.0f}"
    return f"{number:.3g}"


def format_bytes(size: float) -> str:
    """A size of files or memory: 491 MB, 1.1 GB; a thousand bytes are a kilobyte."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= least:
            return f"{size / least:.{1 if unit == 'GB' else 0}f} {unit}"
    return f"{size:.0f} B"


def format_percent(share: float, digits: int = 0) -> str:
    """A share of one: `42 %`."""
    return f"{share * _HUNDRED:.{digits}f}\u00a0%"


def format_time(moment: float) -> str:
    """A moment (seconds since the epoch) on this machine's clock: `2026-01-31 12:00:00`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def format_age(moment: float, now: float | None = None) -> str:
    """Return how long ago a moment was, as in `3 h ago`; `now` defaults to the present."""
    past = max(0.0, (time.time() if now is None else now) - moment)
    for size, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if past >= size:
            return f"{past / size:.0f} {name} ago"
    return "just now"
