"""Permissions of a key, as values."""

from dataclasses import replace
from decimal import Decimal

import pytest

from batuta.store.key_permissions import KeyPermissions


@pytest.mark.parametrize("name", ["max_cost", "per_day", "per_month", "session_max_cost"])
@pytest.mark.parametrize("value", ["1e309", "Infinity", "NaN", "sNaN", "-0.01"])
def test_a_limit_that_no_request_could_be_held_to_is_no_limit(name, value):
    with pytest.raises(ValueError, match=f"{name} is not a number of dollars"):
        replace(KeyPermissions(), **{name: Decimal(value)})
    replace(KeyPermissions(), **{name: Decimal("1e15")})
