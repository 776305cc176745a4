"""Lists of runs by any filter and order, and totals of a filter, with bounded work.

A search reads a bounded number of candidates from an index. If a condition matches few runs, the
candidates are all of these, however old. Otherwise the candidates are the newest runs of a tenant
or of all tenants (in a list with the oldest run first: the oldest). If further runs exist,
`searched_to` is the time of the last candidate; the next page of a list by time continues there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import ceil
from typing import Any

import orjson
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Float,
    FromClause,
    Select,
    and_,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    true,
    tuple_,
)
from sqlalchemy.exc import DBAPIError

from batuta.core import Cost, Outcome
from batuta.store.codec import format_cursor, is_sql_number, parse_cursor, sql_text
from batuta.store.database import Database
from batuta.store.models import FIGURES, RUNS
from batuta.store.rows import RunSummary, summary_from_row
from batuta.store.run_filter import (
    RunFilter,
    RunSort,
    build_conditions,
    equal_filter,
    known_cost,
    range_filter,
    sort_columns,
)
from batuta.store.run_search import (
    SEARCHED,
    is_id,
    label_index_filter,
    words_filter,
)

PROBE_MS = 100
"""Milliseconds that PostgreSQL may take to determine whether a condition matches few runs."""
PERCENTILES = (0.5, 0.95)
"""The percentiles of durations that totals contain."""
UNANSWERED = (Outcome.FAILED, Outcome.CANCELLED, Outcome.REFUSED)
"""The outcomes that count as unanswered; runs that a limit ended do not."""
MOST_MODELS = 200
"""Maximum number of systems that are listed."""
_NANO = 1_000_000_000
_PLAN_SETTINGS = (
    "SET LOCAL plan_cache_mode = force_custom_plan",  # plans for the actual values
    "SET LOCAL jit = off",  # compiling would take longer than the query
    "SET LOCAL work_mem = '64MB'",
    "SET LOCAL max_parallel_workers_per_gather = 0",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBounds:
    """Maximum numbers of candidates of a search."""

    window: int = 200_000
    """The newest runs, without a text search."""
    words_window: int = 100_000
    """The newest runs, for a text search in SQLite, which has no index for it."""
    common_words_window: int = 50_000
    """The newest runs, for a text search in PostgreSQL for words that many runs contain."""
    few: int = 4_000
    """If a condition matches at most this many runs, these are the candidates, however old."""

    def newest(self, wanted: RunFilter, dialect: str) -> int:
        """Return the maximum number of newest runs that the search reads."""
        if not wanted.search:
            return self.window
        return self.words_window if dialect == "sqlite" else self.common_words_window


_BOUNDS = SearchBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """A page of a list of runs."""

    rows: list[RunSummary]
    next_cursor: str | None
    """The cursor of the next page; None: no more runs were found."""
    searched_to: float | None
    """Start time of the last run that was searched; None: all runs were searched, or the page is a
    full page of a list by time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """The totals of the runs that a filter finds."""

    runs: int
    unanswered: int
    """Runs that failed, were cancelled or were refused."""
    cost: Cost
    input_tokens: int
    output_tokens: int
    median_seconds: float | None
    """Median duration of the runs; None: there is no run."""
    p95_seconds: float | None
    """95th percentile of the runs' durations; None: there is no run."""
    judged: int
    """Runs with a score."""
    mean_score: float | None
    """None: no run has a score."""
    searched_to: float | None
    """Start time of the last run that was counted; None: all runs were counted."""


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The rows that a search reads."""

    rows: FromClause
    """The table of runs, or a subquery of the candidates."""
    within: tuple[ColumnElement[bool], ...] = ()
    """Conditions that restrict `rows` to the candidates."""
    last: tuple[float, str] | None = None
    """Time and id of the last candidate; None: no runs are left out."""


async def find_runs(
    database: Database,
    wanted: RunFilter,
    limit: int,
    after: str | None = None,
    *,
    bounds: SearchBounds = _BOUNDS,
) -> RunPage:
    """Return a page of the runs that a filter finds, in its order.

    Args:
        database: the store's database.
        wanted: the filter.
        limit: maximum number of runs.
        after: the `next_cursor` of the previous page; None: the first page.
        bounds: maximum numbers of candidates.

    Raises:
        ValueError: `after` is not a cursor of a list in this order.
    """
    position = None if after is None else _parse_position(wanted, after)
    return await database.run_read(
        lambda connection: _find_page(connection, wanted, limit, position=position, bounds=bounds)
    )


async def sum_runs(
    database: Database, wanted: RunFilter, *, bounds: SearchBounds = _BOUNDS
) -> RunTotals:
    """Return the totals of the runs that a filter finds."""
    return await database.run_read(lambda connection: _sum_runs(connection, wanted, bounds))


def list_models(connection: Connection) -> list[str]:
    """Return the first `MOST_MODELS` names of the systems of all runs, by one index lookup each."""
    names: list[str] = []
    while len(names) < MOST_MODELS:
        further = RUNS.c.model > (names[-1] if names else "")
        name = connection.execute(select(func.min(RUNS.c.model)).where(further)).scalar()
        if name is None:
            break
        names.append(name)
    return names


def _find_page(
    connection: Connection,
    wanted: RunFilter,
    limit: int,
    *,
    position: tuple[Any, ...] | None,
    bounds: SearchBounds,
) -> RunPage:
    _set_planning(connection)
    dialect = connection.dialect.name
    narrowed = _narrow_time(wanted, position)
    if _is_in_order(narrowed, dialect):
        candidates = _Candidates(RUNS, tuple(range_filter(RUNS.c, narrowed)))
    else:
        candidates = _find_candidates(connection, narrowed, bounds)
    if wanted.sort is not RunSort.CREATED:
        candidates = _fence_window(candidates, wanted, bounds, dialect)
    chosen = [*candidates.within, *build_conditions(candidates.rows.c, wanted, dialect)]
    order = sort_columns(candidates.rows.c, wanted, dialect)
    if position is not None:
        chosen.append(_is_after(order, position, ascending=wanted.ascending))
    keys = select(candidates.rows.c.id, candidates.rows.c.created).where(*chosen)
    keys = keys.order_by(*_order_columns(order, ascending=wanted.ascending)).limit(limit + 1)
    names = [tuple(row) for row in connection.execute(keys)]
    rows = read_summaries(connection, names[:limit])
    if len(names) > limit:
        further, last = _format_position(wanted, rows[-1]), candidates.last
        is_by_time = wanted.sort is RunSort.CREATED
        searched = None if last is None or is_by_time else last[0]
        return RunPage(rows=rows, next_cursor=further, searched_to=searched)
    if (last := candidates.last) is None:
        return RunPage(rows=rows, next_cursor=None, searched_to=None)
    further = format_cursor(*last) if wanted.sort is RunSort.CREATED else None
    return RunPage(rows=rows, next_cursor=further, searched_to=last[0])


def _set_planning(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        for setting in _PLAN_SETTINGS:
            connection.execute(text(setting))


def _is_oldest_first(wanted: RunFilter) -> bool:
    """Return True for a list by time that starts with the oldest run."""
    return wanted.ascending and wanted.sort is RunSort.CREATED


def _is_in_order(wanted: RunFilter, dialect: str) -> bool:
    """Return True if one index has exactly the wanted runs in order, so only a page is read.

    There are indexes for the runs of a tenant, of a system, of an outcome and of a session.
    """
    if wanted.sort is not RunSort.CREATED:
        return False
    conditions = len(build_conditions(RUNS.c, wanted, dialect))
    alone = len(equal_filter(RUNS.c, wanted, alone=True))
    return conditions == 0 or (conditions == alone == 1 and wanted.tenant is None)


def _narrow_time(wanted: RunFilter, position: tuple[Any, ...] | None) -> RunFilter:
    """Restrict a list by time to the runs after the previous page; other lists are unchanged."""
    if position is None or wanted.sort is not RunSort.CREATED:
        return wanted
    at = position[0]
    if wanted.ascending:
        return replace(wanted, since=max(at, wanted.since or at))
    until = at + max(1e-6, abs(at) * 1e-15)
    return replace(wanted, until=until if wanted.until is None else min(until, wanted.until))


def _find_candidates(
    connection: Connection, wanted: RunFilter, bounds: SearchBounds
) -> _Candidates:
    """Choose the candidates: all runs of a rare condition, else the first runs by time."""
    within = range_filter(RUNS.c, wanted)
    for condition in _rare_conditions(connection, wanted):
        few = select(*FIGURES, *_shown_columns(wanted)).where(condition, *within)
        if _are_few(connection, few, bounds.few):
            return _Candidates(few.limit(bounds.few + 1).subquery("few"))
    within += _start_filter(connection, wanted)
    window = select(RUNS.c.created, RUNS.c.id).where(*within).order_by(*_time_order(wanted))
    ends = connection.execute(
        window.offset(bounds.newest(wanted, connection.dialect.name) - 1).limit(2)
    ).all()
    last = (ends[0][0], ends[0][1]) if len(ends) > 1 else None
    if last is not None:
        within.append(_up_to(last, wanted))
    return _Candidates(RUNS, tuple(within), last)


def _time_order(wanted: RunFilter) -> list[ColumnElement[Any]]:
    return _order_columns([RUNS.c.created, RUNS.c.id], ascending=_is_oldest_first(wanted))


def _up_to(last: tuple[float, str], wanted: RunFilter) -> ColumnElement[bool]:
    """Return the condition for the runs of the window up to the run `last`.

    The separate condition on the time lets PostgreSQL skip the partitions of other days.
    """
    here, there = tuple_(RUNS.c.created, RUNS.c.id), tuple_(*last)
    if _is_oldest_first(wanted):
        return and_(RUNS.c.created <= last[0], here <= there)
    return and_(RUNS.c.created >= last[0], here >= there)


def _fence_window(
    candidates: _Candidates, wanted: RunFilter, bounds: SearchBounds, dialect: str
) -> _Candidates:
    """Return the candidates as a subquery that is read from one covering index in order of time.

    Otherwise the planner would choose an index per condition and read the table row by row.
    """
    if candidates.rows is not RUNS:
        return candidates
    columns = (*FIGURES, *_shown_columns(wanted))
    if dialect == "sqlite":
        window = select(*map(_hide_index, columns)).select_from(RUNS).where(*candidates.within)
    else:
        newest = select(*columns).where(*candidates.within).order_by(*_time_order(wanted))
        window = newest.limit(bounds.newest(wanted, dialect))
    return replace(candidates, rows=window.subquery("newest"), within=())


def _hide_index(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return SQLite's column with a unary `+`, for which no index on that column is used.

    Ordering and limiting a subquery instead would copy every row, which takes as long as the sums.
    """
    return literal_column(f"+runs.{column.key}", column.type).label(column.key)


def _shown_columns(wanted: RunFilter) -> Sequence[ColumnElement[Any]]:
    return SEARCHED if wanted.search else ()


def _rare_conditions(connection: Connection, wanted: RunFilter) -> list[ColumnElement[bool]]:
    """Return the conditions that have an index, the presumably rarest condition first."""
    conditions: list[ColumnElement[bool]] = []
    if wanted.session is not None:
        conditions.append(RUNS.c.session == sql_text(wanted.session))
    is_postgres = connection.dialect.name == "postgresql"
    if wanted.search and (is_postgres or is_id(wanted.search)):
        conditions.append(words_filter(connection, sql_text(wanted.search)))
    if is_postgres:
        conditions += [label_index_filter(label) for label in wanted.labels]
    return conditions + equal_filter(RUNS.c, wanted)


def _are_few(connection: Connection, query: Select[Any], most: int) -> bool:
    """Return True if the query finds at most that many runs, within `PROBE_MS` in PostgreSQL."""
    keys = query.with_only_columns(RUNS.c.id).limit(most + 1).subquery()
    query_count = select(func.count()).select_from(keys)
    if connection.dialect.name != "postgresql":
        return connection.execute(query_count).scalar_one() <= most
    nested = connection.begin_nested()
    try:
        connection.execute(text(f"SET LOCAL statement_timeout = {PROBE_MS}"))
        count = connection.execute(query_count).scalar_one()
    except DBAPIError as error:
        nested.rollback()
        if "statement timeout" not in str(error.orig):
            raise
        return False
    nested.commit()
    connection.execute(text("SET LOCAL statement_timeout = DEFAULT"))
    return count <= most


def _start_filter(connection: Connection, wanted: RunFilter) -> list[ColumnElement[bool]]:
    """Return the condition, if any, that starts the window at the first run that may match.

    So the runs of a system that was not used for months are still in the window.
    """
    oldest_first = _is_oldest_first(wanted)
    within, starts = range_filter(RUNS.c, replace(wanted, tenant=None)), list[float]()
    for condition in equal_filter(RUNS.c, wanted, alone=True):
        order = RUNS.c.created if oldest_first else RUNS.c.created.desc()
        first = select(RUNS.c.created).where(condition, *within).order_by(order).limit(1)
        start = connection.execute(first).scalar()
        starts.append((float("inf") if oldest_first else float("-inf")) if start is None else start)
    if not starts:
        return []
    return [RUNS.c.created >= max(starts) if oldest_first else RUNS.c.created <= min(starts)]


def _order_columns(order: list[ColumnElement[Any]], *, ascending: bool) -> list[ColumnElement[Any]]:
    return order if ascending else [column.desc() for column in order]


def _is_after(
    order: list[ColumnElement[Any]], position: tuple[Any, ...], *, ascending: bool
) -> ColumnElement[bool]:
    here, there = tuple_(*order), tuple_(*position)
    return here > there if ascending else here < there


def _parse_position(wanted: RunFilter, cursor: str) -> tuple[Any, ...]:
    """Read the sort columns of the previous page's last row from its cursor."""
    if wanted.sort is RunSort.CREATED:
        return parse_cursor(cursor)
    first, mark, rest = cursor.partition("_")
    if not mark:
        raise ValueError(f"not a cursor of a list: {cursor!r}")
    return (_parse_first(wanted.sort, first), *parse_cursor(rest))


def _parse_first(sort: RunSort, first: str) -> Decimal | float:
    try:
        value = Decimal(first)
    except ArithmeticError:
        value = Decimal("NaN")
    if not is_sql_number(value):
        raise ValueError(f"not a cursor of a list: {first!r}")
    return value if sort is RunSort.COST else float(value)


def _format_position(wanted: RunFilter, row: RunSummary) -> str:
    """Return the cursor of the position after that row."""
    first = {
        RunSort.CREATED: "",
        RunSort.COST: f"{row.cost.usd}_",
        RunSort.SECONDS: f"{row.seconds!r}_",
        RunSort.TOKENS: f"{float(row.input_tokens) + float(row.output_tokens)!r}_",
        RunSort.SCORE: f"{-1.0 if row.score is None else row.score!r}_",
    }[wanted.sort]
    return first + row.cursor


def read_summaries(connection: Connection, keys: Sequence[tuple[Any, ...]]) -> list[RunSummary]:
    """Return the summaries of these runs, in this order, without runs that do not exist.

    Args:
        connection: a transaction.
        keys: the id and the start time, in seconds since the epoch, of each run.
    """
    if not keys:
        return []
    ids, times = zip(*keys, strict=True)  # the condition on time lets PostgreSQL skip partitions
    query = select(RUNS).where(
        RUNS.c.id.in_(ids), RUNS.c.created >= min(times), RUNS.c.created <= max(times)
    )
    rows = connection.execute(query).mappings()
    summaries = {row["id"]: summary_from_row({**row}) for row in rows}
    return [summaries[key[0]] for key in keys if key[0] in summaries]


def _sum_runs(connection: Connection, wanted: RunFilter, bounds: SearchBounds) -> RunTotals:
    _set_planning(connection)
    dialect = connection.dialect.name
    candidates = _fence_window(
        _find_candidates(connection, wanted, bounds), wanted, bounds, dialect
    )
    chosen = and_(true(), *build_conditions(candidates.rows.c, wanted, dialect))
    sums = select(*_sum_columns(candidates.rows.c, dialect)).where(chosen)
    sums_row = connection.execute(sums).one()
    durations = read_percentiles(sums_row.percentiles, dialect)
    return RunTotals(
        runs=sums_row.runs,
        unanswered=int(sums_row.unanswered or 0),
        cost=Cost(read_dollars(sums_row.usd, dialect), int(sums_row.unpriced or 0)),
        input_tokens=int(sums_row.input or 0),
        output_tokens=int(sums_row.output or 0),
        median_seconds=durations[0],
        p95_seconds=durations[1],
        judged=sums_row.judged,
        mean_score=sums_row.score,
        searched_to=None if candidates.last is None else candidates.last[0],
    )


def read_percentiles(value: Any, dialect: str) -> list[float] | list[None]:
    """Return the `PERCENTILES` of the runs' durations in seconds, each None if there is no run.

    Args:
        value: the value of `percentile_column`: PostgreSQL's percentiles, or a JSON list of all
            durations from SQLite.
        dialect: the dialect of the database.
    """
    if dialect != "sqlite":
        return value or [None, None]
    times = sorted(orjson.loads(value))
    if not times:
        return [None, None]
    return [times[max(0, ceil(part * len(times)) - 1)] for part in PERCENTILES]


def _sum_columns(rows: Any, dialect: str) -> list[ColumnElement[Any]]:
    """Return the sums; dollars are summed as decimals, in SQLite as rounded integer billionths."""
    cost = known_cost(rows, dialect)
    failed = or_(*(rows.outcome == outcome.value for outcome in UNANSWERED))
    return [
        func.count().label("runs"),
        func.count().filter(failed).label("unanswered"),
        func.sum(func.round(cost * float(_NANO)) if dialect == "sqlite" else cost).label("usd"),
        func.sum(cast(rows.unpriced_calls, Float)).label("unpriced"),
        func.sum(cast(rows.input_tokens, Float)).label("input"),
        func.sum(cast(rows.output_tokens, Float)).label("output"),
        func.count(rows.score).label("judged"),
        func.avg(rows.score).label("score"),
        percentile_column(rows, dialect).label("percentiles"),
    ]


def percentile_column(rows: Any, dialect: str) -> ColumnElement[Any]:
    """Return the column that `read_percentiles` reads."""
    if dialect == "sqlite":  # it has no percentile functions
        return func.json_group_array(rows.seconds)
    parts = literal(list(PERCENTILES), ARRAY(Float))
    return func.percentile_disc(parts).within_group(rows.seconds)


def read_dollars(total: Any, dialect: str) -> Decimal:
    """Return a sum of dollars, in SQLite of integer billionths; 0 if nothing was summed."""
    if total is None:
        return Decimal(0)
    return Decimal(int(total)) / _NANO if dialect == "sqlite" else Decimal(total)
