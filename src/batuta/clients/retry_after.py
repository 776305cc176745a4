"""Reads how long a provider asks to wait, from the headers or body of an error response."""

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
"""The longest wait that is returned; a longer wait is reduced to it."""
_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")
_RESETS = re.compile(
    r"(?:(?:x|anthropic)-)?ratelimit-(?:([\w-]{1,40})-)?(?:reset|remaining)(?:-([\w-]{1,40}))?"
)
"""Matches headers with a limit's remaining amount, or the time of its reset."""
_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|[dhms])[a-z]{0,6}")
_IN_WORDS = re.compile(
    r"(?:again|retry|wait)(?: \w{1,10})? (?:in|after|for) "
    r"((?:\d{1,9}(?:\.\d{1,9})? ?(?:ms|[dhms])[a-z]{0,6}(?:,? (?:and )?)?){1,4})"
)
_DURATION_CHARACTERS = 40
_MILLISECONDS_SINCE = 100_000_000_000
"""A larger number is a Unix time in milliseconds."""
_SECONDS_SINCE = 1_000_000_000
"""A larger number is a Unix time in seconds."""


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait by the headers; None if none of them states a valid wait.

    `retry-after-ms` and `x-ms-retry-after-ms` are numbers; `retry-after` may be a number, a
    duration such as `1m30s`, a Unix time or a date. A longer wait than `MAX_RETRY_SECONDS` is
    reduced to it.

    Args:
        headers: the response headers; the mapping must ignore case.
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
    """Return the seconds to wait; None if the response states no wait.

    The sources in order: `retry-after` headers, fields of the body, its message, limit resets.

    Args:
        headers: the response headers; the mapping must ignore case.
        payload: the decoded body.
        words: the body's human-readable message.
        resets: whether a rate limit was reached, so that the time of its reset counts.
    """
    waits = [parse_retry_after(headers), _stated_wait(payload), _wait_in_words(words)]
    if resets:
        waits += [_wait_for_reset(headers), _wait_for_reset(_headers_in(payload))]
    return next((wait for wait in waits if wait is not None), None)


def _parse_wait(text: str) -> float | None:
    """Parse a wait: seconds, a duration such as `1m30s`, a Unix time, or a date."""
    number = _parse_number(text)
    if number is not None:
        if number > _SECONDS_SINCE:
            number = number / (1000 if number > _MILLISECONDS_SINCE else 1) - time.time()
        return _bound_wait(number)
    rest = _DURATION.sub("", text[:_DURATION_CHARACTERS].lower())
    return _seconds_until(text) if rest.strip() else _read_duration(text.lower())


def _read_duration(text: str) -> float | None:
    parts = [
        float(number) * _UNITS[unit]
        for number, unit in _DURATION.findall(text[:_DURATION_CHARACTERS])
    ]
    return _bound_wait(sum(parts)) if parts else None


def _parse_number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _bound_wait(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_RETRY_SECONDS)


def _seconds_until(date: str) -> float | None:
    """Return the seconds until a date in HTTP or RFC 3339 format."""
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
    """Return the seconds until all exhausted limits are reset; None if no header states it.

    If no header states that a limit is exhausted, the limits whose remaining amount is not stated
    are used.
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
    unknown = [wait for limit, wait in resets.items() if left.get(limit) is None]
    return max(used_up or unknown, default=None)


def _bodies_of(payload: Any) -> Iterator[dict[str, Any]]:
    top = as_object(as_array(payload)[0] if as_array(payload) else payload)
    yield top
    yield as_object(top.get("error"))


def _headers_in(payload: Any) -> dict[str, str]:
    """Return the headers that OpenRouter puts into an error's body."""
    for body in _bodies_of(payload):
        if limits := as_object(as_object(body.get("metadata")).get("headers")):
            return {name: str(value) for name, value in limits.items()}
    return {}


def _stated_wait(payload: Any) -> float | None:
    """Return the wait in Gemini's error details (`retryDelay: "34s"`) or a field `retry_after`."""
    for body in _bodies_of(payload):
        for detail in as_array(body.get("details")):
            delay = as_string(as_object(detail).get("retryDelay"))
            if delay and (wait := _parse_wait(delay)) is not None:
                return wait
        stated = body.get("retry_after")
        if isinstance(stated, (int, float, str)) and not isinstance(stated, bool):
            return _parse_wait(str(stated))
    return None
