"""An error is short, however long what it repeats of a request."""

import pytest

from batuta.gateway.errors import LONGEST_MESSAGE, invalid_value, missing_parameter, model_not_found


@pytest.mark.parametrize(
    "error",
    [
        model_not_found("m" * 100_000),
        invalid_value("f" * 100_000, "it is wrong."),
        missing_parameter("f" * 100_000),
    ],
)
def test_what_a_request_says_is_repeated_in_part(error):
    assert len(error.message) == LONGEST_MESSAGE and "…" in error.message
    assert error.param is None or len(error.param) <= 300
    assert error.message[:12] == str(error)[:12] and error.message.endswith(".")


def test_a_short_error_is_whole():
    assert model_not_found("gpt").message.startswith("The model 'gpt' does not exist")
