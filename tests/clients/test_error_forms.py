"""Errors in the forms in which providers, proxies and web frameworks write them."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from multidict import CIMultiDict

from batuta import errors
from batuta.clients.error_mapping import error_from_response

SAID = "no such field"
BODIES = {
    "nested twice": {"error": {"error": {"message": SAID}}},
    "a message that is an error": {"error": {"message": {"error": SAID}}},
    "FastAPI": {"detail": [{"loc": ["body", "x"], "msg": SAID, "type": "value_error.missing"}]},
    "a detail with fields": {"detail": {"message": SAID, "code": "x"}},
    "a detail with an error": {"detail": {"error": {"message": SAID}}},
    "NestJS": {"statusCode": 400, "message": [SAID, "nor that"], "error": "Bad Request"},
    "Cloudflare": {"success": False, "errors": [{"code": 7003, "message": SAID}], "messages": []},
    "texts": {"errors": [SAID]},
    "a list in the error": {"error": [{"message": SAID}]},
    "Alibaba": {"code": 400, "msg": SAID},
    "Baidu": {"error_code": 336003, "error_msg": SAID},
    "AWS": {"Message": SAID},
    "RFC 9457": {"title": "Bad", "detail": SAID, "status": 400},
    "OAuth": {"error": "invalid_request", "error_description": SAID},
    "xAI": {"code": "Client specified an invalid argument", "error": SAID},
    "Spring": {"status": 400, "error": "Bad Request", "message": SAID},
    "OpenRouter": {"error": {"message": "Provider returned error",
                             "metadata": {"raw": {"error": {"message": SAID}}}}},
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_words_are_found_wherever_they_stand(body):
    error = error_from_response(400, body)
    assert type(error) is errors.BadRequestError
    assert SAID in str(error)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (409, {"error": {"message": "The model is loading"}}, errors.ProviderOverloadedError),
        (424, {"error": "the model is not ready"}, errors.ProviderOverloadedError),
        (425, "", errors.ProviderOverloadedError),
        (498, {"error": {"code": "capacity_exceeded"}}, errors.ProviderOverloadedError),
        (400, {"__type": "x#ThrottlingException", "message": "Too many tokens per day, please wait."}, errors.RateLimitError),
        (400, {"error": {"code": "model_not_found", "message": "No"}}, errors.ModelNotFoundError),
        (403, {"code": "denied", "error": "Your team has no credits yet."}, errors.InsufficientCreditError),
        (403, {"error": "reached its monthly spending limit; please purchase more credits"}, errors.InsufficientCreditError),
    ],
)  # fmt: skip
def test_what_an_error_means(status, body, kind):
    assert type(error_from_response(status, body)) is kind


def moment(seconds):
    return datetime.now(UTC) + timedelta(seconds=seconds)


def wait_of(body=None, status=429, **headers):
    told = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    return error_from_response(status, body or {"error": {"message": "no"}}, told).retry_after


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (
            "Rate limit reached on tokens per minute (TPM). Please try again in 7.66s. Visit us",
            7.66,
        ),
        ("Please try again in 500ms.", 0.5),
        ("Please try again in 1m30s.", 90),
        ("Please try again in 12m3.5s.", 723.5),
        ("Please retry after 26 seconds.", 26),
        ("Please wait for 2 minutes, then go on.", 120),
        ("Try again later.", None),
        ("Try again in the morning.", None),
    ],
)
def test_a_wait_in_words(words, seconds):
    assert wait_of({"error": {"message": words}}) == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "3.5"}, 3.5),
        ({"retry_after": "5s"}, 5),
        ({"retry_after": "1m30s"}, 90),
        (lambda: {"Retry_After": format_datetime(moment(3600), usegmt=True)}, 3600),
        ({"retry_after_ms": "1200", "retry_after": "2"}, 1.2),
        ({"x_ms_retry_after_ms": "1500"}, 1.5),
        ({"x_ratelimit_reset_tokens": "6m0s"}, 360),
        ({"x_ratelimit_reset_requests": "12ms", "x_ratelimit_remaining_requests": "9",
          "x_ratelimit_reset_tokens": "1m30s", "x_ratelimit_remaining_tokens": "0"}, 90),
        ({"x_ratelimit_reset_requests": "12ms", "x_ratelimit_remaining_requests": "0",
          "x_ratelimit_reset_tokens": "1m30s", "x_ratelimit_remaining_tokens": "9"}, 0.012),
        ({"x_ratelimit_reset_tokens": "6s", "x_ratelimit_remaining_tokens": "100"}, None),
        (lambda: {"X_RateLimit_Reset": str(int((time.time() + 3600) * 1000))}, 3600),
        (lambda: {"X_RateLimit_Reset": str(int(time.time() + 3600))}, 3600),
        (lambda: {"anthropic_ratelimit_tokens_remaining": "0",
          "anthropic_ratelimit_tokens_reset": moment(3600).strftime("%Y-%m-%dT%H:%M:%SZ")}, 3600),
        (lambda: {"anthropic_ratelimit_input_tokens_remaining": "0",
          "anthropic_ratelimit_input_tokens_reset": moment(3600).strftime("%Y-%m-%dT%H:%M:%SZ"),
          "anthropic_ratelimit_requests_remaining": "9",
          "anthropic_ratelimit_requests_reset": moment(9).strftime("%Y-%m-%dT%H:%M:%SZ")}, 3600),
        ({"x_ratelimit_reset_tokens_minute": "11.5", "x_ratelimit_remaining_tokens_minute": "0",
          "x_ratelimit_reset_requests_day": "33011.3", "x_ratelimit_remaining_requests_day": "7"}, 11.5),
        ({"x_ratelimit_reset_tokens": "soon", "retry_after": "later"}, None),
    ],
)  # fmt: skip
def test_a_wait_in_headers(headers, seconds):
    told: Any = headers() if callable(headers) else headers
    wait = wait_of(**told)
    if seconds is None or seconds < 3600:
        assert wait == seconds
    else:
        assert wait is not None
        assert seconds - 240 < wait <= seconds + 1


def test_a_wait_in_the_body():
    reset = str(int((time.time() + 3600) * 1000))
    limits = {"headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}}
    assert wait_of({"error": {"message": "no", "metadata": limits}}) == pytest.approx(3600, abs=240)
    assert wait_of({"error": {"message": "no", "retry_after": 11}}) == 11
    assert wait_of({"detail": "no", "retry_after": "11"}) == 11


def test_a_limit_that_was_not_reached_delays_nobody():
    assert wait_of(status=503, x_ratelimit_reset_tokens="6s") is None
    assert wait_of(status=503, retry_after="4") == 4
