"""Pagination: a page has at most `limit` rows, those after the cursor in the parameter `after`.

The `next_cursor` of a page is the value of `after` for the next page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from batuta.gateway.errors import APIError
from batuta.gateway.http.body import query_number

MAX_PAGE = 100
"""Maximum number of rows of a page."""

Row = TypeVar("Row")


def check_query(query: Mapping[str, str], *known: str) -> None:
    """Refuse unknown query parameters, which would otherwise be silently ignored.

    Raises:
        APIError: the query has an unknown parameter.
    """
    for name in query:
        if name not in known:
            hint = f"use {', '.join(known)}" if known else "this endpoint has none"
            message = f"Unknown parameter: '{name[:80]}'; {hint}."
            raise APIError(400, "unknown_parameter", message, param=name[:80])


def parse_limit(query: Mapping[str, str], default: int) -> int:
    """Return the requested number of rows per page.

    Raises:
        APIError: `limit` is not an integer from 1 to `MAX_PAGE`.
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
        rows: the rows found; one more than `limit` if another page follows.
        limit: maximum number of rows of the page.
        entry: returns a row as an object of the API.
        cursor: returns the cursor of the rows after a row.
    """
    page, more = rows[:limit], len(rows) > limit
    return {
        "object": "list",
        "data": [entry(row) for row in page],
        "has_more": more,
        "next_cursor": cursor(page[-1]) if more else None,
    }
