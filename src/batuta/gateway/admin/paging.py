"""Lists a page at a time: `limit` rows, then those after the `next_cursor` of the page before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from batuta.gateway.errors import APIError
from batuta.gateway.http.body import query_number

MAX_PAGE = 100
"""Rows of the longest page."""

Row = TypeVar("Row")


def check_query(query: Mapping[str, str], *known: str) -> None:
    """Raise APIError unless the address has these parameters and no others.

    Raises:
        APIError: it has another one, which would have looked as if it were obeyed.
    """
    for name in query:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none here"
            message = f"Unknown parameter: '{name[:80]}'; {there}."
            raise APIError(400, "unknown_parameter", message, param=name[:80])


def parse_limit(query: Mapping[str, str], default: int) -> int:
    """Return how many rows a page shall have.

    Raises:
        APIError: it is no whole number from 1 to `MAX_PAGE`.
    """
    given = query.get("limit")
    return default if given is None else query_number(given, "limit", 1, MAX_PAGE)


def list_page(
    rows: Sequence[Row],
    limit: int,
    entry: Callable[[Row], dict[str, Any]],
    cursor: Callable[[Row], str],
) -> dict[str, Any]:
    """Return a page as the API sends it.

    Args:
        rows: those that were found, one more than `limit` if there are more.
        limit: how many the page has at most.
        entry: a row as an object of the API.
        cursor: where the list goes on after a row.
    """
    page, more = rows[:limit], len(rows) > limit
    return {
        "object": "list",
        "data": [entry(row) for row in page],
        "has_more": more,
        "next_cursor": cursor(page[-1]) if more else None,
    }
