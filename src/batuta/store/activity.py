"""Runs, failures, durations and cached tokens, by hour, day, system, session and more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, or_, select

from batuta.store.codec import sql_text
from batuta.store.database import Database
from batuta.store.hours import day_of, hour_of
from batuta.store.models import RUNS
from batuta.store.run_list import UNANSWERED, percentile_column, read_percentiles

ACTIVITY_WINDOW = 200_000
"""Maximum number of runs that are read, the newest first."""
ACTIVITY_GROUPS = ("hour", "day", "tenant", "model", "session", "outcome", "error")
"""Names by which runs can be grouped; `model` is the served system, `error` the error's code.

Hours and days are in UTC."""
MOST_GROUPS = 5_000
"""Maximum number of groups that are returned: the first in the order of their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The runs of one group."""

    group: tuple[str | None, ...]
    """The values of the group, in the order of the requested names; None: the runs have no session
    or no error."""
    runs: int
    unanswered: int
    """Runs that failed, were refused or were cancelled."""
    input_tokens: int
    cached_tokens: int
    """Tokens of `input_tokens` that were read from a provider's cache."""
    output_tokens: int
    median_seconds: float | None
    """Median duration of the runs; None: there are no runs."""
    p95_seconds: float | None
    """95th percentile of the runs' durations; None: there are no runs."""

    @property
    def cached_share(self) -> float | None:
        """Share of the input tokens that were read from a cache; None: there were none."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else None


async def report_activity(
    database: Database,
    by: Sequence[str] = ("day",),
    *,
    tenant: str | None = None,
    since: float = 0.0,
    until: float | None = None,
    models: Collection[str] = (),
) -> list[Activity]:
    """Group the newest `ACTIVITY_WINDOW` runs that meet the conditions.

    Args:
        database: the store's database.
        by: names to group by; see `ACTIVITY_GROUPS`.
        tenant: only that tenant's runs; None: all.
        since: only runs that started then or later, in seconds since the epoch.
        until: only runs that started before that, in seconds since the epoch; None: all.
        models: only the runs of these systems; empty: of all.

    Returns:
        The first `MOST_GROUPS` groups, ordered by their values.

    Raises:
        ValueError: runs cannot be grouped by one of the names.
    """
    for name in by:
        if name not in ACTIVITY_GROUPS:
            raise ValueError(f"runs cannot be grouped by {name}: use {', '.join(ACTIVITY_GROUPS)}")
    conditions = [RUNS.c.created >= since]
    conditions += [] if until is None else [RUNS.c.created < until]
    conditions += [] if tenant is None else [RUNS.c.tenant == sql_text(tenant)]
    conditions += [RUNS.c.model.in_([sql_text(name) for name in models])] if models else []

    def report(connection: Connection) -> list[Activity]:
        dialect = connection.dialect.name
        rows = connection.execute(_group_query(by, conditions, dialect)).mappings()
        return _read_groups(rows, by, dialect)

    return await database.run_read(report)


def _group_query(
    by: Sequence[str], conditions: Sequence[ColumnElement[bool]], dialect: str
) -> Select[Any]:
    runs = select(RUNS).where(*conditions).order_by(RUNS.c.created.desc()).limit(ACTIVITY_WINDOW)
    rows = runs.subquery().c
    computed: dict[str, ColumnElement[Any]] = {
        "hour": hour_of(rows.created),
        "day": day_of(rows.created),
        "error": rows.error_code,
    }
    columns = [(computed[name] if name in computed else rows[name]).label(name) for name in by]
    failed = or_(*(rows.outcome == outcome.value for outcome in UNANSWERED))
    return (
        select(
            *columns,
            func.count().label("runs"),
            func.count().filter(failed).label("unanswered"),
            func.sum(rows.input_tokens).label("input_tokens"),
            func.sum(rows.cached_tokens).label("cached_tokens"),
            func.sum(rows.output_tokens).label("output_tokens"),
            percentile_column(rows, dialect).label("percentiles"),
        )
        .group_by(*columns)
        .order_by(*columns)
        .limit(MOST_GROUPS)
    )


def _read_groups(
    rows: Iterable[Mapping[Any, Any]], by: Sequence[str], dialect: str
) -> list[Activity]:
    groups: list[Activity] = []
    for row in rows:
        median, p95 = read_percentiles(row["percentiles"], dialect)
        groups.append(
            Activity(
                group=tuple(row[name] for name in by),
                runs=row["runs"],
                unanswered=row["unanswered"],
                input_tokens=int(row["input_tokens"] or 0),
                cached_tokens=int(row["cached_tokens"] or 0),
                output_tokens=int(row["output_tokens"] or 0),
                median_seconds=median,
                p95_seconds=p95,
            )
        )
    return groups


def activity_json(by: Sequence[str], group: Activity) -> dict[str, Any]:
    """Return the group as JSON values."""
    return {
        **dict(zip(by, group.group, strict=True)),
        "runs": group.runs,
        "unanswered": group.unanswered,
        "input_tokens": group.input_tokens,
        "cached_tokens": group.cached_tokens,
        "output_tokens": group.output_tokens,
        "median_seconds": group.median_seconds,
        "p95_seconds": group.p95_seconds,
    }
