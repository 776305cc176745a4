"""Positions in a list: the time and the id of the last row of the page before."""

from __future__ import annotations

from math import isfinite

from batuta.store.codec import sql_text


def format_cursor(created: float, row_id: str) -> str:
    """The cursor after that row."""
    return f"{created!r}_{row_id}"


def parse_cursor(cursor: str) -> tuple[float, str]:
    """The time and id that a cursor names, the id as any database takes it.

    Raises:
        ValueError: it is no cursor.
    """
    created, mark, row_id = cursor.partition("_")
    if not mark or not row_id or not isfinite(at := float(created)):
        raise ValueError(f"not a cursor of a list: {cursor!r}")
    return at, sql_text(row_id)
