"""Numbers as people read them; what is not known is said to be so. Pure."""

from __future__ import annotations

import time
from decimal import Decimal
from math import isnan

from batuta.core import Cost

_THOUSAND = 1000
_MINUTE = 60.0
_HOUR = 3600.0
_DAY = 86400.0


def dollars(cost: Cost) -> str:
    """A cost; where some calls have no price, it is a lower bound."""
    if cost.unpriced_calls and not cost.usd:
        return "unpriced"
    return f"{'≥ ' if cost.unpriced_calls else ''}{usd(cost.usd)}"


def usd(amount: Decimal) -> str:
    """Dollars with as many digits as tell something."""
    if not amount:
        return "$0"
    if amount >= 100:  # noqa: PLR2004 - dollars
        return f"${amount:,.0f}"
    if amount >= 1:
        return f"${amount:.2f}"
    return f"${amount:.{min(max(2 - amount.adjusted(), 2), 9)}f}"


def seconds(value: float) -> str:
    """A length of time."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < _MINUTE:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s"


def count(value: float) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,.0f}".replace(",", "\u202f")


def short(value: float) -> str:
    """A figure of any size in few digits."""
    if isnan(value):
        return "–"
    if abs(value) >= 10 * _THOUSAND:
        return f"{value / _THOUSAND:.0f}k"
    if abs(value) >= 100:  # noqa: PLR2004 - digits
        return f"{value:.0f}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A share of one."""
    return f"{share * 100:.0f}\u00a0%"


def when(moment: float) -> str:
    """A moment, on the server's clock."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def ago(moment: float, now: float | None = None) -> str:
    """A moment, as seen from now."""
    past = max(0.0, (time.time() if now is None else now) - moment)
    for size, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if past >= size:
            return f"{past / size:.0f} {name} ago"
    return "just now"
