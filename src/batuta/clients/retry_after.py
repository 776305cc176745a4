"""How long a provider that asks to slow down wants us to wait, in any of the forms that say it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from batuta.clients.decoding import as_array, as_object, as_string

MAX_RETRY_SECONDS = 86_400.0
"""The longest wait; longer ones are shortened to it."""
_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")
_RESETS = re.compile(r"(?:(?:x|anthropic)-)?ratelimit-(?:(\w+)-)?(?:reset|remaining)(?:-(\w+))?")
"""Matches the headers of what is left of a limit, and of when it is whole again."""
_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|[dhms])[a-z]{0,6}")
_IN_WORDS = re.compile(
    r"(?:again|retry|wait)(?: \w{1,10})? (?:in|after|for) "
    r"((?:\d{1,9}(?:\.\d{1,9})? ?(?:ms|[dhms])[a-z]{0,6}(?:,? (?:and )?)?){1,4})"
)
_DURATION_CHARACTERS = 40
_MILLISECONDS_SINCE = 100_000_000_000
"""A larger number is a moment in milliseconds."""
_SECONDS_SINCE = 1_000_000_000
"""A larger number is a moment in seconds."""


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait by `retry-after-ms` or `retry-after` (seconds, text or a date).

    None means that neither says it.
    """
    for name in _MILLISECONDS:
        milliseconds = _parse_number(headers.get(name))
        if milliseconds is not None:
            return _bound_wait(milliseconds / 1000)
    value = headers.get("retry-after")
    return None if value is None else _parse_wait(value)


def find_wait(
    headers: Mapping[str, str], payload: Any, words: str, *, resets: bool
) -> float | None:
    """Return the seconds to wait: as headers say them, else the body, its words or the resets.

    Args:
        headers: the answer's, read without regard to case by their mapping.
        payload: its decoded body.
        words: what the body says, for people.
        resets: whether a limit was reached, so that it counts when it is whole again.
    """
    waits = [parse_retry_after(headers), _stated_wait(payload), _wait_in_words(words)]
    if resets:
        waits += [_wait_for_reset(headers), _wait_for_reset(_headers_in(payload))]
    return next((wait for wait in waits if wait is not None), None)


def _parse_wait(text: str) -> float | None:
    """Read a wait: seconds, `1m30s`, a moment since 1970, or a date."""
    number = _parse_number(text)
    if number is not None:
        if number > _SECONDS_SINCE:
            number = number / (1000 if number > _MILLISECONDS_SINCE else 1) - time.time()
        return _bound_wait(number)
    rest = _DURATION.sub("", text[:_DURATION_CHARACTERS].lower())
    return _seconds_until(text) if rest.strip() else _read_duration(text.lower())


def _read_duration(text: str) -> float | None:
    found = [
        float(number) * _UNITS[unit]
        for number, unit in _DURATION.findall(text[:_DURATION_CHARACTERS])
    ]
    return _bound_wait(sum(found)) if found else None


def _parse_number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _bound_wait(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_RETRY_SECONDS)


def _seconds_until(date: str) -> float | None:
    """Return the seconds until a date as HTTP or RFC 3339 write it."""
    try:
        moment = datetime.fromisoformat(date) if date[:4].isdigit() else parsedate_to_datetime(date)
    except (OverflowError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return _bound_wait((moment - datetime.now(UTC)).total_seconds())


def _wait_in_words(words: str) -> float | None:
    found = _IN_WORDS.search(words.lower())
    return None if found is None else _read_duration(found[1])


def _wait_for_reset(headers: Mapping[str, str]) -> float | None:
    """Return when the limits of which nothing is left are whole again, if headers tell it.

    Where no limit says what is left of it, the one that is whole again last counts.
    """
    left: dict[str, float | None] = {}
    resets: dict[str, float] = {}
    for name, value in headers.items():
        found = _RESETS.fullmatch(name.lower())
        if found is None:
            continue
        limit = found[1] or found[2] or ""
        if "remaining" in name.lower():
            left[limit] = _parse_number(value)
        elif (wait := _parse_wait(value)) is not None:
            resets[limit] = wait
    used_up = [wait for limit, wait in resets.items() if left.get(limit) == 0]
    untold = [wait for limit, wait in resets.items() if left.get(limit) is None]
    return max(used_up or untold, default=None)


def _bodies_of(payload: Any) -> Iterator[dict[str, Any]]:
    top = as_object(as_array(payload)[0] if as_array(payload) else payload)
    yield top
    yield as_object(top.get("error"))


def _headers_in(payload: Any) -> dict[str, str]:
    """Return the headers that OpenRouter puts into the body of an error."""
    for body in _bodies_of(payload):
        if limits := as_object(as_object(body.get("metadata")).get("headers")):
            return {name: str(value) for name, value in limits.items()}
    return {}


def _stated_wait(payload: Any) -> float | None:
    """Return Gemini's `retryDelay: "34s"` in the details of its error, or a field `retry_after`."""
    for body in _bodies_of(payload):
        for detail in as_array(body.get("details")):
            delay = as_string(as_object(detail).get("retryDelay"))
            if delay and (wait := _parse_wait(delay)) is not None:
                return wait
        stated = body.get("retry_after")
        if isinstance(stated, (int, float, str)) and not isinstance(stated, bool):
            return _parse_wait(str(stated))
    return None
