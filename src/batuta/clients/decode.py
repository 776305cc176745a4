"""Careful reading of decoded JSON: a value of another type reads as empty."""

from __future__ import annotations

from typing import Any, cast


def obj(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def seq(value: Any) -> list[Any]:
    """`value` if it is an array, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def string(value: Any) -> str:
    """`value` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def count(value: Any) -> int:
    """`value` if it is a number of at least 0, else 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0
    return max(int(value), 0) if value == value and abs(value) < 1e15 else 0  # noqa: PLR0124, PLR2004 - NaN
