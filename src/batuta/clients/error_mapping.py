"""Turns a provider's error response (HTTP status, headers and body) into a ClientError."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson

from batuta.clients.decoding import as_array, as_object, as_string, join_halves
from batuta.clients.http_target import NO_KEY, Secret, redact_secrets
from batuta.clients.retry_after import find_wait
from batuta.core import Sampling
from batuta.core.redaction import first_words, hide_addresses
from batuta.errors import (
    BadRequestError,
    ClientError,
    ContextLengthError,
    InsufficientCreditError,
    ModelNotFoundError,
    ProviderAuthError,
    ProviderOverloadedError,
    ProviderTimeoutError,
    RateLimitError,
    UnsupportedFieldError,
)

MESSAGE_CHARACTERS = 300
"""A provider's message is truncated to this length."""
_READ_CHARACTERS = 4 * MESSAGE_CHARACTERS
"""Maximum number of a message's characters that are read before secrets are removed."""
WORDS_CHARACTERS = 4_000
"""Maximum number of an error body's characters in which the patterns below are searched."""
MAX_STATUS = 599

_NO_CREDIT = re.compile(
    r"insufficient_quota|insufficient[_ ](?:account[_ ])?(?:balance|credits?|funds|quota)"
    r"|billing_error|billing_(?:hard_)?limit|arrearage|payment required|out of credits?"
    r"|(?:\bno|\bany|available) credits|purchase (?:more )?credits|spending limit"
    r"|balance (?:is )?(?:insufficient|not enough|too low)"
    r"|credit balance is too low|余额不足|欠费",
    re.IGNORECASE,
)
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context[ _-](?:length|window|size|limit)"
    r"|request_too_large|max_prompt_tokens_exceeded|prompt token count|range of input length"
    r"|prompt(?: is)? too long|prompt exceeds|prompt length|input length|\binput is too large"
    r"|(?:maximum|max) (?:allowed|prompt|input|model|sequence)[ _](?:prompt )?(?:length|tokens)"
    r"|longer than the (?:maximum )?model|\btoken limit|reduce the length of"
    r"|\btokens?\b[^.]{0,60}(?:exceed|more than|greater than|must be (?:<|less)|than max)"
    r"|must have less than \d{1,9} tokens|context the overflow|超长|长度超|超出.{0,8}长度"
    r"|prompt is too long|input is too long|input token count|too many (?:input )?tokens"
    r"|maximum number of tokens allowed|at most [\d,]{1,12} (?:input|prompt) tokens"
    r"|(?:exceeds?|larger than) (?:the |this )?(?:model'?s? )?(?:max(?:imum)? )?(?:context|length)"
    r"|conversation is too long|request (?:is )?too large"
    r"|(?:输入|上下文|提示).{0,8}(?:过长|太长|超过)",
    re.IGNORECASE,
)
_PAGE = re.compile(r"\s*<[a-z!?]", re.IGNORECASE)
_BAD_KEY = re.compile(
    r"api_key_invalid|invalid_api_key|api key (?:not valid|not found|expired)", re.IGNORECASE
)
_NO_MODEL = re.compile(r"model_not_(?:found|available|exist)|deploymentnotfound", re.IGNORECASE)
_THROTTLED = re.compile(r"throttl|rate_?limit", re.IGNORECASE)
"""Matches the codes of a rate limit, which Bedrock sends with status 400."""
_TOO_OFTEN = re.compile(r"rate[ _-]?limit|too many requests|requests per minute", re.IGNORECASE)
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
_CONTEXT_STATUSES = {400, 413, 422, 500}
"""Statuses of a context overflow; llama.cpp sends 500."""
_RATE_LIMITED = re.compile(
    r"per (?:minute|second|hour|day)|\btpm\b|rate_limit|rate limit", re.IGNORECASE
)
"""Matches a rate limit, which Groq also sends with status 413."""
_ERROR_BY_STATUS: Mapping[int, type[ClientError]] = {
    401: ProviderAuthError,
    402: InsufficientCreditError,
    403: ProviderAuthError,
    404: ModelNotFoundError,
    408: ProviderTimeoutError,
    409: ProviderOverloadedError,
    424: ProviderOverloadedError,
    425: ProviderOverloadedError,
    429: RateLimitError,
    498: ProviderOverloadedError,
}
"""Errors by status. 409: a lock, or a model that is loading; 424: an upstream failure; 498: no
capacity."""
# The gateway reads token counts and limits out of a message (`stated_sizes`): no sentence here may
# have a word such as "limit" or "context window" before the status.
_ERROR_SENTENCES: Mapping[type[ClientError], str] = {
    ProviderAuthError: "refused the key",
    ModelNotFoundError: "does not have this model",
    ContextLengthError: "says that the prompt does not fit",
    InsufficientCreditError: "says that the account is out of credit",
    RateLimitError: "asks to slow down",
    ProviderOverloadedError: "failed",
    ProviderTimeoutError: "timed out",
    BadRequestError: "refused the request",
}


def error_from_response(
    status: int,
    payload: Any,
    headers: Mapping[str, str] | None = None,
    key: Secret = NO_KEY,
    *,
    address: Sequence[str] = (),
) -> ClientError:
    """Return the error for a response whose status is not a success.

    Args:
        status: the HTTP status.
        payload: the decoded body, or its text.
        headers: the response headers; the mapping must ignore case.
        key: removed from the message.
        address: parts of the called URL, also removed from the message.
    """
    codes, message = _error_codes_and_message(payload)
    kind = _error_class(status, " ".join(codes), message)
    beginning = " ".join(join_halves(first_words(message, _READ_CHARACTERS)).split())
    short = hide_addresses(redact_secrets(beginning, key), address)
    if len(short) > MESSAGE_CHARACTERS:
        short = short[: MESSAGE_CHARACTERS - 1].rstrip() + "…"
    fallback = _ERROR_SENTENCES[kind]
    if status < HTTPStatus.BAD_REQUEST:
        fallback = "sent a redirect, which is not followed: set base_url to the final URL"
    elif kind is ModelNotFoundError and isinstance(payload, str):
        fallback = "has no such API at this URL, so its base_url may be wrong"
    sentence = f"the provider {fallback} ({status})" + (f": {short}" if short else "")
    wait = None
    if kind in {RateLimitError, ProviderOverloadedError}:
        limited = kind is RateLimitError
        wait = find_wait(headers or {}, payload, message, resets=limited)
    error = kind(sentence, status=status, retry_after=wait)
    error.words = _body_text(payload)
    return error


def error_from_reply(
    payload: Any, key: Secret = NO_KEY, address: Sequence[str] = ()
) -> ClientError:
    """Return the error for an error object in a reply with status 200."""
    error = as_object(as_object(payload).get("error"))
    codes, message = _error_codes_and_message(payload)
    status = _status_of_words(" ".join((*codes, message)))
    for field in ("code", "type", "status") if status is None else ():
        value = error.get(field)
        if isinstance(value, str):
            short = value[: len(str(MAX_STATUS)) + 1]  # a number with more digits is not a status
            value = int(short) if value.isdecimal() else _STATUS_OF_TYPE.get(value)
        if isinstance(value, int) and HTTPStatus.BAD_REQUEST <= value <= MAX_STATUS:
            status = value
            break
    return error_from_response(status or 500, payload, headers=None, key=key, address=address)


def _status_of_words(words: str) -> int | None:
    """Return the HTTP status that an error's text implies; None if it implies none."""
    if _NO_CREDIT.search(words):
        return HTTPStatus.PAYMENT_REQUIRED
    if _BAD_KEY.search(words):
        return HTTPStatus.UNAUTHORIZED
    if _TOO_LONG.search(words):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.TOO_MANY_REQUESTS if _TOO_OFTEN.search(words) else None


def decode_body(body: bytes) -> Any:
    """Return `body` as JSON if it is JSON, else as text."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")


def _error_class(status: int, codes: str, message: str) -> type[ClientError]:
    words, of_request = f"{codes} {message}", status == HTTPStatus.BAD_REQUEST
    if status >= HTTPStatus.BAD_REQUEST and _NO_CREDIT.search(words):
        return InsufficientCreditError
    by_words = (
        (of_request and _THROTTLED.search(codes), RateLimitError),
        (
            status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and _RATE_LIMITED.search(words),
            RateLimitError,
        ),
        (status in _CONTEXT_STATUSES and _TOO_LONG.search(words), ContextLengthError),
        (of_request and _BAD_KEY.search(words), ProviderAuthError),
        (of_request and _NO_MODEL.search(codes), ModelNotFoundError),
    )
    if (by_word := next((kind for says, kind in by_words if says), None)) is not None:
        return by_word
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return _ERROR_BY_STATUS.get(status, BadRequestError)
    # A redirect is not worth a retry: the next attempt would be redirected, too.
    return ModelNotFoundError if status < HTTPStatus.BAD_REQUEST else ProviderOverloadedError


def _error_codes_and_message(payload: Any) -> tuple[tuple[str, ...], str]:
    """Return the codes and the message of an error body, in any provider's form.

    The middle of a long message is dropped: a provider may repeat a whole request in it, and many
    patterns are searched in it.
    """
    codes, message = _stated_codes_and_message(payload)
    if len(message) > WORDS_CHARACTERS:
        half = WORDS_CHARACTERS // 2
        message = f"{message[:half]} … {message[-half:]}"
    return tuple(code[:MESSAGE_CHARACTERS] for code in codes), message


def _stated_codes_and_message(payload: Any) -> tuple[tuple[str, ...], str]:
    if isinstance(payload, str):
        # A proxy's HTML page is not a useful message.
        return (), "" if _PAGE.match(payload) else payload
    top = as_object(as_array(payload)[0] if as_array(payload) else payload)
    body = as_object(top.get("error")) or top
    body = as_object(body.get("error")) or body
    fields = [body.get(name) for name in ("code", "type", "status", "__type")]
    fields += [as_object(detail).get("reason") for detail in as_array(body.get("details"))]
    message = _find_words(body)
    raw = _find_words(as_object(body.get("metadata")).get("raw"))  # OpenRouter: the provider's own
    return tuple(as_string(f) for f in fields if f), f"{message}: {raw}" if raw else message


_MAX_NESTING = 4


def _find_words(value: Any, nested: int = _MAX_NESTING) -> str:
    """Return the first message in an error body, searched to a depth of `nested` levels."""
    if isinstance(value, str) or not nested:
        return as_string(value)
    fields = as_object(value)
    places = [*as_array(value), *(fields[name] for name in _ALL_MESSAGE_FIELDS if fields.get(name))]
    return next((message for place in places if (message := _find_words(place, nested - 1))), "")


def _body_text(payload: Any) -> str:
    """Return the error body as text, truncated; empty if it is nested too deep."""
    try:
        words = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    except RecursionError:
        return ""
    return words[:WORDS_CHARACTERS]


_MESSAGE_FIELDS = (
    "message",
    "msg",
    "error_msg",
    "errorMessage",
    "detail",
    "status_msg",
    "error_message",
)
_ALL_MESSAGE_FIELDS = (*_MESSAGE_FIELDS, "Message", "error_description", "error", "errors", "title")
"""Fields with an error's human-readable message, the most informative first."""
_CODE_FIELDS = ("code", "error_code", "errorCode", "status_code", "type", "status")
_REPLY_FIELDS = ("choices", "candidates", "output", "content", "promptFeedback", "data")
"""A reply that is not an error has one of these fields."""


def find_stated_error(payload: Any) -> dict[str, Any] | None:
    """Return the error in a reply, in OpenAI's form; None if the reply has none."""
    top = as_object(as_array(payload)[0] if as_array(payload) else payload)
    if top.get("error"):
        return {"error": top["error"]}
    status = as_object(top.get("base_resp"))  # MiniMax
    if status.get("status_code"):
        return _error_of_fields(status)
    if any(top.get(name) for name in _REPLY_FIELDS):
        return None
    for further in as_array(top.get("errors")):
        if error := _error_of_fields(as_object(further)):
            return error
    return _error_of_fields(top)


def _error_of_fields(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    words = next((as_string(fields[name]) for name in _MESSAGE_FIELDS if fields.get(name)), "")
    if not words:
        return None
    code = next((fields[name] for name in _CODE_FIELDS if fields.get(name)), None)
    return {"error": {"message": words, "code": code}}


PENALTIES = ("frequency_penalty", "presence_penalty", "top_k")
"""Fields of `Sampling` that some providers do not support; they affect the choice of tokens."""
CHOICES = ("choices", "logprobs")
"""Fields of `Sampling` that some providers do not support; they affect what is returned."""
_CLIENT_NAMES = {"choices": "n"}
"""Fields of `Sampling` whose API name differs."""


def describe_wrong_format(payload: Any) -> str:
    """Return the end of a sentence about a payload in a wrong format, with a remedy if known."""
    fields = as_object(payload)
    if isinstance(fields.get("done"), bool) and ("message" in fields or "response" in fields):
        return "in the format of Ollama's native API (/api): let `base_url` end with /v1"
    return "that is not in the expected format"


def refuse_fields(model: str, sampling: Sampling, names: Iterable[str]) -> None:
    """Refuse unsupported sampling fields instead of silently dropping them.

    Raises:
        UnsupportedFieldError: one of these fields is set.
    """
    for name in names:
        if getattr(sampling, name) is not None:
            field = _CLIENT_NAMES.get(name, name)
            raise UnsupportedFieldError(f"{model} does not accept {field}")
