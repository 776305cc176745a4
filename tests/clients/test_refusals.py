"""What providers say when they refuse, and what must not be passed on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta import errors
from batuta.clients import Secret, redact_secrets
from batuta.clients.error_mapping import error_from_reply, error_from_response
from batuta.clients.http_target import HttpTarget, url_host

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("status", "payload", "kind"),
    [
        (
            400,
            {"error": {"message": "Your credit balance is too low to access the API"}},
            errors.InsufficientCreditError,
        ),
        (402, {"error": {"message": "Insufficient Balance"}}, errors.InsufficientCreditError),
        (
            429,
            {"error": {"code": "insufficient_quota", "message": "You exceeded"}},
            errors.InsufficientCreditError,
        ),
        (429, [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}], errors.RateLimitError),
        (
            400,
            {"object": "error", "message": "This model's maximum context length is 4096 tokens."},
            errors.ContextLengthError,
        ),
        (
            400,
            {"error": {"type": "exceed_context_size_error", "message": "no"}},
            errors.ContextLengthError,
        ),
        (
            400,
            {"type": "error", "error": {"message": "prompt is too long: 210000 tokens > 200000"}},
            errors.ContextLengthError,
        ),
        (
            400,
            {
                "error": {
                    "message": "The input token count (9) exceeds the maximum number of tokens allowed (8)"
                }
            },
            errors.ContextLengthError,
        ),
        (
            400,
            {
                "error": {
                    "message": "API key not valid.",
                    "details": [{"reason": "API_KEY_INVALID"}],
                }
            },
            errors.ProviderAuthError,
        ),
        (404, {"error": "model 'x' not found"}, errors.ModelNotFoundError),
        (408, "", errors.ProviderTimeoutError),
        (422, {"detail": [{"loc": "x"}]}, errors.BadRequestError),
        (413, {}, errors.BadRequestError),
        (502, "<html>Bad gateway</html>", errors.ProviderOverloadedError),
        (503, None, errors.ProviderOverloadedError),
        (302, "", errors.ModelNotFoundError),
    ],
)
def test_every_provider_s_words(status, payload, kind):
    error = error_from_response(status, payload)
    assert type(error) is kind
    assert error.status == status
    assert str(error).startswith("the provider ")
    assert "<html>" not in str(error)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error"}, errors.ProviderOverloadedError),
        ({"type": "rate_limit_error"}, errors.RateLimitError),
        ({"code": 429, "message": "slow"}, errors.RateLimitError),
        ({"code": "400", "message": "maximum context length"}, errors.ContextLengthError),
        ({"code": None, "type": "BadRequestError"}, errors.BadRequestError),
        ({"message": "who knows"}, errors.ProviderOverloadedError),
        ("a string", errors.ProviderOverloadedError),
    ],
)
def test_errors_inside_a_reply(error, kind):
    assert type(error_from_reply({"error": error})) is kind


def test_gemini_s_delay_is_honoured():
    details = [{"@type": "RetryInfo", "retryDelay": "34.5s"}]
    error = error_from_response(429, {"error": {"message": "x", "details": details}})
    assert error.retry_after == 34.5


def test_a_long_message_is_one_short_line_without_keys_and_paths():
    message = (
        f"bad key {KEY}\nsee https://u:p@example.org/a/b?key={KEY} or AIzaSyA1234567890abcdef "
        + "x" * 900
    )
    error = error_from_response(401, {"error": {"message": message}}, key=Secret(KEY))
    assert len(str(error)) < 400
    assert "\n" not in str(error)
    assert "see [address] or" in str(error)
    for secret in (KEY, "u:p", "/a/b", "AIza"):
        assert secret not in str(error)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda i: (
            st.lists(i)
            | st.dictionaries(
                st.sampled_from(
                    ["error", "message", "code", "type", "details", "metadata", "retryDelay"]
                ),
                i,
            )
        ),
    ),
    st.integers(300, 599),
)
def test_any_body_gives_an_error(payload, status):
    assert isinstance(error_from_response(status, payload), errors.ClientError)
    assert isinstance(error_from_reply({"error": payload}), errors.ClientError)


def test_a_secret_does_not_show():
    secret = Secret(f"  {KEY}\n")
    assert secret.reveal() == KEY
    assert {str(secret), repr(secret), f"{secret}", repr([secret])} == {
        "***",
        "[***]",
    }
    assert KEY not in repr(
        HttpTarget(url="https://u:p@example.org/x?y", headers={"a": KEY}, key=secret)
    )
    assert secret == Secret(KEY)
    assert not Secret("")
    assert redact_secrets("nothing here") == "nothing here"
    assert (
        redact_secrets("https://bob:p@ss@host:1/v1?k=2 HTTP://a:b@c/d") == "https://host:1 HTTP://c"
    )
    assert redact_secrets(f"Bearer {KEY}") == "***"


@pytest.mark.parametrize("bad", ["a b", "a\nb", "ключ", "a\x00"])
def test_what_cannot_be_a_key_is_refused_unnamed(bad):
    with pytest.raises(errors.ConfigError) as caught:
        Secret(bad)
    assert bad not in str(caught.value)


def test_a_host_is_a_host():
    assert url_host("https://user:pass@api.example.org:8443/v1?x=1") == "api.example.org:8443"
    for bad in ("", "ftp://x", "api.openai.com/v1", "http://"):
        with pytest.raises(errors.ConfigError):
            url_host(bad)
