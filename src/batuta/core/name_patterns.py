"""Names that stand in a table as they are or as patterns with `*` and `?`."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

V = TypeVar("V")


def find_by_name(table: Mapping[str, V], name: str) -> V | None:
    """Return the table's value for the name: of just that name, else of the longest pattern."""
    if name in table:
        return table[name]
    fitting = [pattern for pattern in table if _fits_pattern(name, pattern)]
    return table[max(fitting, key=len)] if fitting else None


def _fits_pattern(name: str, pattern: str) -> bool:
    """Tell whether the name fits the pattern; a bracket is itself, as names of models have some."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))
