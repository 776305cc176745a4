"""The address of a provider is in no sentence that a caller can read, whatever the provider says."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batuta.clients.error_mapping import error_from_reply, error_from_response
from batuta.clients.http_target import url_host
from batuta.core.redaction import address_parts, hide_addresses
from batuta.errors import ConfigError

URL = "https://canary-user:canary-pass@canary-host.corp.internal:48443/canary-path/v1/chat?canary=1"
FORMS = [
    URL,
    URL.upper(),
    "canary-host.corp.internal",
    "Canary-Host.Corp.Internal.",
    "canary-host.corp.internal:48443",
    "/canary-path/v1/chat",
    "//canary-host.corp.internal/x",
    "/canary-path",
    "canary-user",
    "canary-pass",
    "10.20.30.40:48443 (canary-host.corp.internal)",
]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="4Cc"), max_size=60)


@given(before=TEXT, form=st.sampled_from(FORMS), after=TEXT, quote=st.sampled_from("'\" (<>,;"))
@example("x" * 3990, URL, "", " ")
@example("x" * 290, URL, "", "(")
def test_a_known_address_is_hidden_wherever_it_stands(before, form, after, quote):
    said = f"{before}{quote}{form}{quote}{after}"
    for payload in ({"error": {"message": said}}, {"detail": said}, said, [{"error": said}]):
        for error in (
            error_from_response(400, payload, address=address_parts(URL)),
            error_from_reply({"error": {"message": said}}, address=address_parts(URL)),
        ):
            assert "canary" not in str(error).lower()
            assert "48443" not in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "see http://db.prod/x?y=1#z",
        "see redis://u:p@cache-1:6379/0",
        "connect ECONNREFUSED 10.1.2.3:8000",
        "connect to [fd00::1:2]:8000 failed",
        "fd00:1:2:3::9 is down",
        "::1 is down",
        "upstream vllm-7.models.svc.cluster.local:8000 timed out",
        "host gpu-3:8000 is gone",
        "no route to api.example.com.",
        "localhost:8080 refused",
        "it listens on port 8443",
    ],
)
def test_what_looks_like_an_address_is_hidden(text):
    told = hide_addresses(text)
    assert "[address]" in told
    for word in ("db", "cache", "10.1", "fd00", "::1", "svc", "gpu", "example", "localhost", "8"):
        assert word not in told


@pytest.mark.parametrize(
    "text",
    [
        "Unsupported value: 'messages[0].content' must be a string, at line 3:14",
        '$: {"age":3,"name":"Ada","of":[":1",":fade"]} is not of type "array"',
        "max_tokens: 4096 is more than 2048 (version 1.2.3)",
        "response_format.json_schema.strict is required for claude-3.5-sonnet",
        "This model's maximum context length is 8000 tokens.",
        "the ratio 3:4 at 12:30:45",
    ],
)
def test_and_other_words_are_left(text):
    assert hide_addresses(text, address_parts("http://vllm:8000/v1")) == text


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/v1", "http://", "http://[::1", "host:80", "http://host:99999/v1",
        "http://host:0", "http://host:x", " http://host/v1", "http://host/v1\n", "http://a b/v1",
    ],
)  # fmt: skip
def test_an_address_that_is_no_url_is_an_error_of_the_settings(url):
    with pytest.raises(ConfigError, match="must start with http:// or https:// and name a host"):
        url_host(url)
