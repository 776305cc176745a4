"""A failing store is said as such, wherever in a request it failed."""

import pytest

from batuta.errors import StoreError
from batuta.gateway.app import _explain_error

FAILED = StoreError("the database cannot be reached")


@pytest.mark.parametrize(
    "error",
    [FAILED, ExceptionGroup("of a task group", [FAILED]), ExceptionGroup("", [ExceptionGroup("", [FAILED])])],
    ids=["alone", "of tasks", "of nested tasks"],
)  # fmt: skip
def test_a_failing_store_is_overload(error):
    said = _explain_error({}, error)
    assert said is not None
    assert (said.status, said.code, said.headers) == (503, "overloaded", {"retry-after": "1"})


def test_another_error_beside_it_is_a_fault_of_ours():
    assert _explain_error({}, ExceptionGroup("", [FAILED, ValueError()])) is None
