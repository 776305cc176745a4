"""Conditions and orders of a search for runs, in the SQL of SQLite or PostgreSQL."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Float, Numeric, cast, func

from batuta.store.codec import sql_text
from batuta.store.run_filter import RunFilter, RunSort
from batuta.store.run_search import contains_label, search_filter


def equal_filter(
    columns: Any, wanted: RunFilter, *, alone: bool = False
) -> list[ColumnElement[bool]]:
    """Return the conditions on columns that have an index of their own with the time.

    Args:
        columns: of the runs, or of a query of them.
        wanted: the filter.
        alone: without those that have several values, whose runs no index has in order.
    """
    found: list[ColumnElement[bool]] = []
    if wanted.session is not None and alone:
        found.append(columns.session == sql_text(wanted.session))
    if len(wanted.outcomes) == 1 or (wanted.outcomes and not alone):
        found.append(columns.outcome.in_([outcome.value for outcome in wanted.outcomes]))
    if wanted.model is not None:
        found.append(columns.model == sql_text(wanted.model))
    return found


def range_filter(columns: Any, wanted: RunFilter) -> list[ColumnElement[bool]]:
    """Return the conditions on the tenant and the time."""
    found: list[ColumnElement[bool]] = []
    if wanted.tenant is not None:
        found.append(columns.tenant == sql_text(wanted.tenant))
    if wanted.since is not None:
        found.append(columns.created >= wanted.since)
    if wanted.until is not None:
        found.append(columns.created < wanted.until)
    return found


def build_conditions(columns: Any, wanted: RunFilter, dialect: str) -> list[ColumnElement[bool]]:
    """Return every condition but tenant and time, which candidates fulfil already."""
    found = equal_filter(columns, wanted)
    if wanted.session is not None:
        found.append(columns.session == sql_text(wanted.session))
    if wanted.search:
        found.append(search_filter(sql_text(wanted.search), dialect, columns))
    found += [contains_label(columns.labels, one, dialect) for one in wanted.labels]
    if wanted.is_judged is not None:
        found.append(columns.score.is_not(None) if wanted.is_judged else columns.score.is_(None))
    for value, least, most in (
        (known_cost(columns, dialect), wanted.min_cost, wanted.max_cost),
        (columns.seconds, wanted.min_seconds, wanted.max_seconds),
        (_sum_tokens(columns), wanted.min_tokens, wanted.max_tokens),
        (columns.score, wanted.min_score, wanted.max_score),
    ):
        found += [] if least is None else [value >= _adapt_number(least, dialect)]
        found += [] if most is None else [value <= _adapt_number(most, dialect)]
    return found


def _adapt_number(value: Decimal | float, dialect: str) -> Any:
    return float(value) if dialect == "sqlite" else value


def known_cost(columns: Any, dialect: str) -> ColumnElement[Any]:
    """Return the known part of the cost as a number; SQLite's is a text."""
    return cast(columns.usd, Float) if dialect == "sqlite" else cast(columns.usd, Numeric)


def _sum_tokens(columns: Any) -> ColumnElement[Any]:
    return cast(columns.input_tokens, Float) + cast(columns.output_tokens, Float)


def sort_columns(columns: Any, wanted: RunFilter, dialect: str) -> list[ColumnElement[Any]]:
    """Return what the list is ordered by, the time and the id last."""
    first = {
        RunSort.CREATED: None,
        RunSort.COST: known_cost(columns, dialect),
        RunSort.SECONDS: columns.seconds,
        RunSort.TOKENS: _sum_tokens(columns),
        RunSort.SCORE: func.coalesce(columns.score, -1.0),
    }[wanted.sort]
    return [columns.created, columns.id] if first is None else [first, columns.created, columns.id]
