"""The cost of a call as its provider states it, which takes precedence over price tables."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from batuta.clients.decoding import as_number, as_object

_MAX_USD = 10_000
"""Maximum plausible cost of one call in dollars; a larger stated cost is ignored."""
_USD_PLACES = 15
_TICKS = 10_000_000_000
"""xAI's cost ticks per dollar."""


def stated_usd(usage: Any) -> Decimal | None:
    """Return the plausible cost in dollars that a usage object states; None if it states none."""
    stated = as_object(usage)
    cost = stated.get("cost")
    if isinstance(cost, dict):  # Perplexity: tokens plus a fee per request
        return _read_usd(as_object(cost).get("total_cost"))
    if cost is None:
        return _read_usd(stated.get("cost_in_usd_ticks"), _TICKS)
    usd = _read_usd(cost)
    details = as_object(stated.get("cost_details"))
    upstream = _read_usd(details.get("upstream_inference_cost"))
    if usd is None or upstream is None:
        return usd
    # With the user's own provider key `cost` is OpenRouter's fee alone; else it is the total.
    return usd + upstream if stated.get("is_byok") else max(usd, upstream)


def _read_usd(value: Any, parts: int = 1) -> Decimal | None:
    """Return `value / parts` dollars; None if that is not a plausible cost of a call."""
    value = as_number(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 <= value <= _MAX_USD * parts:
        return None
    return round(Decimal(str(value)) / parts, _USD_PLACES)
