"""What a provider's refusal means: HTTP status, headers and body become a ClientError."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import orjson

from batuta.clients.addresses import hide_addresses
from batuta.clients.decode import obj, seq, string
from batuta.clients.secret import NO_KEY, Secret, redact
from batuta.errors import (
    BadReply,
    BadRequest,
    ClientError,
    ContextTooLong,
    ModelMissing,
    OutOfCredit,
    Overloaded,
    RateLimited,
    TimedOut,
    Unauthorised,
)

MESSAGE_CHARACTERS = 300
"""A provider's message is cut to this length."""

LAST_STATUS = 599

_EMPTY = re.compile(
    r"insufficient_quota|insufficient[_ ](?:balance|credits|funds)"
    r"|billing_error|billing_(?:hard_)?limit"
    r"|credit balance is too low",
    re.IGNORECASE,
)
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context[ _-](?:length|window|size)"
    r"|prompt is too long|input is too long|input token count|too many (?:input )?tokens"
    r"|maximum number of tokens allowed",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(
    r"api_key_invalid|invalid_api_key|api key (?:not valid|not found|expired)", re.IGNORECASE
)
_STATUS_OF_TYPE: Mapping[str, int] = {
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "insufficient_quota": 429,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "BadRequestError": 400,
    "NotFoundError": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "RESOURCE_EXHAUSTED": 429,
    "INVALID_ARGUMENT": 400,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_MAY_BE_LONG = {400, 413, 422}
_KINDS: Mapping[int, type[ClientError]] = {
    401: Unauthorised,
    402: OutOfCredit,
    403: Unauthorised,
    404: ModelMissing,
    408: TimedOut,
    429: RateLimited,
}
_OPENING: Mapping[type[ClientError], str] = {
    Unauthorised: "refused the key",
    ModelMissing: "does not have this model",
    ContextTooLong: "says that the prompt does not fit",
    OutOfCredit: "says that the account is out of credit",
    RateLimited: "asks to slow down",
    Overloaded: "failed",
    TimedOut: "gave up waiting",
    BadReply: "sent us elsewhere, which is not followed",
    BadRequest: "refused the request",
}


def refusal(
    status: int,
    payload: Any,
    headers: Mapping[str, str] | None = None,
    key: Secret = NO_KEY,
    address: Sequence[str] = (),
) -> ClientError:
    """The error for an answer that is no success.

    Args:
        status: the HTTP status.
        payload: the decoded body, or its text.
        headers: the answer's headers, read without regard to case by their mapping.
        key: removed from the message.
        address: parts of the address that was called, removed as well.
    """
    codes, message = _words(payload)
    kind = _kind(status, " ".join((*codes, message)))
    short = hide_addresses(redact(" ".join(message.split()), key), address)
    if len(short) > MESSAGE_CHARACTERS:
        short = short[: MESSAGE_CHARACTERS - 1].rstrip() + "…"
    sentence = f"the provider {_OPENING[kind]} ({status})" + (f": {short}" if short else "")
    wait = retry_after(headers or {})
    if wait is None and kind in {RateLimited, Overloaded}:
        wait = _delay_in(payload)
    return kind(sentence, status=status, retry_after=wait)


def refusal_in_reply(
    payload: Any, key: Secret = NO_KEY, address: Sequence[str] = ()
) -> ClientError:
    """The error for an error object inside a reply of status 200."""
    error = obj(obj(payload).get("error"))
    status = 500
    for field in ("code", "type", "status"):
        value = error.get(field)
        if isinstance(value, str):
            value = int(value) if value.isdecimal() else _STATUS_OF_TYPE.get(value)
        if isinstance(value, int) and HTTPStatus.BAD_REQUEST <= value <= LAST_STATUS:
            status = value
            break
    return refusal(status, payload, None, key, address)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by `retry-after-ms` or `retry-after` (seconds or a date); None: not said."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if value is None:
        return None
    seconds = _number(value)
    return _until(value) if seconds is None else seconds


def decoded(body: bytes) -> Any:
    """`body` as JSON if it is JSON, else as text."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")


def _kind(status: int, words: str) -> type[ClientError]:
    refused = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    if refused and _EMPTY.search(words):
        return OutOfCredit
    if status in _MAY_BE_LONG and _TOO_LONG.search(words):
        return ContextTooLong
    if status == HTTPStatus.BAD_REQUEST and _BAD_KEY.search(words):
        return Unauthorised
    if refused:
        return _KINDS.get(status, BadRequest)
    return BadReply if status < HTTPStatus.BAD_REQUEST else Overloaded


def _words(payload: Any) -> tuple[tuple[str, ...], str]:
    """The codes and the message of an error body, in any of the providers' forms."""
    if isinstance(payload, str):
        # A proxy's HTML page tells nobody anything.
        return (), "" if payload.lstrip().startswith("<") else payload
    top = obj(seq(payload)[0] if seq(payload) else payload)
    error = top.get("error")
    if isinstance(error, str):
        return (), error
    body = obj(error) or top
    fields = [body.get(name) for name in ("code", "type", "status")]
    fields += [obj(detail).get("reason") for detail in seq(body.get("details"))]
    message = string(body.get("message")) or string(body.get("detail"))
    raw = string(obj(body.get("metadata")).get("raw"))  # OpenRouter: the provider's own words
    return tuple(string(f) for f in fields if f), f"{message}: {raw}" if raw else message


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return max(value, 0.0) if math.isfinite(value) else None


def _until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - datetime.now(UTC)).total_seconds(), 0.0)


def _delay_in(payload: Any) -> float | None:
    """Gemini's `retryDelay: "34s"` in the details of its error."""
    top = obj(seq(payload)[0] if seq(payload) else payload)
    for detail in seq(obj(top.get("error")).get("details")):
        delay = string(obj(detail).get("retryDelay"))
        if delay.endswith("s"):
            return _number(delay[:-1])
    return None
