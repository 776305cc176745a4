"""Careful reading of decoded JSON: a value of another type reads as empty."""

from __future__ import annotations

from typing import Any, cast

MOST_TOKENS = 100_000_000
"""Tokens of one call at most: ten times the largest window that there is. More is not believed."""


def as_object(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_array(value: Any) -> list[Any]:
    """`value` if it is an array, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_string(value: Any) -> str:
    """`value` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def as_count(value: Any) -> int:
    """`value` if it is a number of at least 0 that tokens could have, else 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0
    return max(int(value), 0) if value == value and abs(value) <= MOST_TOKENS else 0  # noqa: PLR0124 - NaN


def need_string(value: Any) -> str:
    """`value`, which must be a string.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"a string was expected, not {type(value).__name__}")
    return value


def is_wrong_count(value: Any) -> bool:
    """Whether something was told as a number of tokens that cannot be one."""
    return value is not None and (isinstance(value, bool) or as_count(value) != value)
