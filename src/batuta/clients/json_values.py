"""Careful reading of decoded JSON: a value of another type reads as empty."""

from __future__ import annotations

from typing import Any, cast


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
    """`value` if it is a number of at least 0, else 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0
    return max(int(value), 0) if value == value and abs(value) < 1e15 else 0  # noqa: PLR0124, PLR2004 - NaN
