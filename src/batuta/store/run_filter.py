"""Filters and sort orders of lists of runs, parsed from query parameters. Pure.

The API, the command line and the page have the same parameters and pass them to
`parse_run_filter`; the store searches only by the `RunFilter` that it returns.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from math import isfinite
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Float, Numeric, cast, func

from batuta.core import Outcome
from batuta.store.codec import is_sql_number, sql_text
from batuta.store.rows import ERROR, TAG, USER, WORKER, format_label
from batuta.store.run_search import contains_label, search_filter


def equal_filter(
    columns: Any, wanted: RunFilter, *, alone: bool = False
) -> list[ColumnElement[bool]]:
    """Return the equality conditions on columns that have an index together with the time.

    Args:
        columns: the columns of the table of runs, or of a query on it.
        wanted: the filter.
        alone: whether to return only conditions for which one index has the runs in the order of
            time; the session is then included, and several outcomes are left out.
    """
    conditions: list[ColumnElement[bool]] = []
    if wanted.session is not None and alone:
        conditions.append(columns.session == sql_text(wanted.session))
    if len(wanted.outcomes) == 1 or (wanted.outcomes and not alone):
        conditions.append(columns.outcome.in_([outcome.value for outcome in wanted.outcomes]))
    if wanted.model is not None:
        conditions.append(columns.model == sql_text(wanted.model))
    return conditions


def range_filter(columns: Any, wanted: RunFilter) -> list[ColumnElement[bool]]:
    """Return the conditions on the tenant and the time."""
    conditions: list[ColumnElement[bool]] = []
    if wanted.tenant is not None:
        conditions.append(columns.tenant == sql_text(wanted.tenant))
    if wanted.since is not None:
        conditions.append(columns.created >= wanted.since)
    if wanted.until is not None:
        conditions.append(columns.created < wanted.until)
    return conditions


def build_conditions(columns: Any, wanted: RunFilter, dialect: str) -> list[ColumnElement[bool]]:
    """Return all conditions but those of `range_filter`, which candidates already meet."""
    conditions = equal_filter(columns, wanted)
    if wanted.session is not None:
        conditions.append(columns.session == sql_text(wanted.session))
    if wanted.search:
        conditions.append(search_filter(sql_text(wanted.search), dialect, columns))
    conditions += [contains_label(columns.labels, label, dialect) for label in wanted.labels]
    if wanted.is_judged is not None:
        conditions.append(
            columns.score.is_not(None) if wanted.is_judged else columns.score.is_(None)
        )
    for value, least, most in (
        (known_cost(columns, dialect), wanted.min_cost, wanted.max_cost),
        (columns.seconds, wanted.min_seconds, wanted.max_seconds),
        (_sum_tokens(columns), wanted.min_tokens, wanted.max_tokens),
        (columns.score, wanted.min_score, wanted.max_score),
    ):
        conditions += [] if least is None else [value >= _adapt_number(least, dialect)]
        conditions += [] if most is None else [value <= _adapt_number(most, dialect)]
    return conditions


def _adapt_number(value: Decimal | float, dialect: str) -> Any:
    return float(value) if dialect == "sqlite" else value


def known_cost(columns: Any, dialect: str) -> ColumnElement[Any]:
    """Return the known part of the cost as a number; SQLite stores it as text."""
    return cast(columns.usd, Float) if dialect == "sqlite" else cast(columns.usd, Numeric)


def _sum_tokens(columns: Any) -> ColumnElement[Any]:
    return cast(columns.input_tokens, Float) + cast(columns.output_tokens, Float)


def sort_columns(columns: Any, wanted: RunFilter, dialect: str) -> list[ColumnElement[Any]]:
    """Return the columns that the list is sorted by; time and id come last."""
    first = {
        RunSort.CREATED: None,
        RunSort.COST: known_cost(columns, dialect),
        RunSort.SECONDS: columns.seconds,
        RunSort.TOKENS: _sum_tokens(columns),
        RunSort.SCORE: func.coalesce(columns.score, -1.0),
    }[wanted.sort]
    return [columns.created, columns.id] if first is None else [first, columns.created, columns.id]


LONGEST_VALUE = 500
"""Maximum characters of a parameter's value."""
MOST_TAGS = 8
"""Maximum number of `tag` parameters."""
_MOST_NUMBER = 1e15
_LATEST = 253_402_300_799.0
_AGE = re.compile(r"(\d{1,6})(m|h|d|w)")
_AGE_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_EPOCH = re.compile(r"\d{9,12}(\.\d{1,9})?")


class RunSort(StrEnum):
    """The values by which a list can be sorted."""

    CREATED = "created"
    COST = "cost"
    """Calls of unknown price count as 0."""
    SECONDS = "seconds"
    TOKENS = "tokens"
    """Input and output tokens together."""
    SCORE = "score"
    """A run without a score counts as -1."""


class RunFilterError(ValueError):
    """A parameter of a filter is invalid; the message is the reason, without the name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name
        """The parameter's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Conditions that the runs of a list meet; a field without a value sets no condition."""

    search: str = ""
    """Text in the preview of question or answer, or a prefix of the id."""
    tenant: str | None = None
    model: str | None = None
    outcomes: tuple[Outcome, ...] = ()
    """Any of these outcomes."""
    session: str | None = None
    labels: tuple[str, ...] = ()
    """All of these labels; see `format_label`."""
    since: float | None = None
    """Start time at or after this, in seconds since the epoch."""
    until: float | None = None
    """Start time before this, in seconds since the epoch."""
    min_cost: Decimal | None = None
    """Dollars; calls of unknown price count as 0."""
    max_cost: Decimal | None = None
    """Dollars; calls of unknown price count as 0."""
    min_seconds: float | None = None
    max_seconds: float | None = None
    min_tokens: float | None = None
    """Input and output tokens together."""
    max_tokens: float | None = None
    """Input and output tokens together."""
    min_score: float | None = None
    max_score: float | None = None
    is_judged: bool | None = None
    """Whether the run has a score; None: either."""
    sort: RunSort = RunSort.CREATED
    ascending: bool = False
    """Whether the smallest value, or the oldest run, comes first."""


EVERY_RUN = RunFilter()


def parse_run_filter(given: Iterable[tuple[str, str]], now: float | None = None) -> RunFilter:
    """Return the filter that these parameters and their values describe.

    Args:
        given: names of `RUN_PARAMETERS` with their values; only `tag` may be repeated.
        now: seconds since the epoch, from which ages are counted; None: the current time.

    Raises:
        RunFilterError: a parameter is unknown, repeated, or has an invalid value.
    """
    values: dict[str, str] = {}
    tags: list[str] = []
    for name, text in given:
        _check_parameter(name, text, values)
        if name == "tag":
            tags.append(text)
        values[name] = text
    if len(tags) > MOST_TAGS:
        raise RunFilterError("tag", f"it may be given at most {MOST_TAGS} times.")
    clock = time.time() if now is None else now
    fields = {
        field: read(name, values[name], clock)
        for name, (field, read) in _PARAMETERS.items()
        if name in values and field
    }
    return RunFilter(**fields, labels=_parse_labels(values, tags))


def _check_parameter(name: str, text: str, known: Mapping[str, str]) -> None:
    if name not in _PARAMETERS:
        raise RunFilterError(
            name[:80], f"there is no such parameter: use {', '.join(RUN_PARAMETERS)}."
        )
    if name in known and name != "tag":
        raise RunFilterError(name, "it is given twice.")
    if not text.strip():
        raise RunFilterError(name, "it is empty: leave it out.")
    if len(text) > LONGEST_VALUE:
        raise RunFilterError(name, f"it is longer than {LONGEST_VALUE} characters.")


def _parse_labels(values: Mapping[str, str], tags: list[str]) -> tuple[str, ...]:
    named = [(kind, values[kind]) for kind in (USER, WORKER, ERROR) if kind in values]
    return tuple(format_label(kind, text) for kind, text in (*named, *((TAG, tag) for tag in tags)))


def _read_text(_name: str, text: str, _now: float) -> str:
    return text.strip()


def _read_outcomes(name: str, text: str, _now: float) -> tuple[Outcome, ...]:
    wanted = [part.strip() for part in text.split(",")]
    try:
        return tuple(dict.fromkeys(Outcome(part) for part in wanted))
    except ValueError:
        known = ", ".join(f"'{outcome.value}'" for outcome in Outcome)
        raise RunFilterError(name, f"it must be one or several of {known}.") from None


def _read_sort(name: str, text: str, _now: float) -> RunSort:
    try:
        return RunSort(text)
    except ValueError:
        raise RunFilterError(name, f"it must be one of {', '.join(RunSort)}.") from None


def _read_order(name: str, text: str, _now: float) -> bool:
    if text not in {"asc", "desc"}:
        raise RunFilterError(name, "it must be asc or desc.")
    return text == "asc"


def _read_judged(name: str, text: str, _now: float) -> bool:
    if text not in {"yes", "no"}:
        raise RunFilterError(name, "it must be yes or no.")
    return text == "yes"


def _read_number(name: str, text: str, _now: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not (isfinite(number) and abs(number) <= _MOST_NUMBER):
        raise RunFilterError(name, f"it must be a number of at most {_MOST_NUMBER:g}.")
    return number


def _read_dollars(name: str, text: str, _now: float) -> Decimal:
    try:
        amount = Decimal(text.strip().removeprefix("$"))
    except InvalidOperation:
        amount = Decimal("NaN")
    if not (is_sql_number(amount) and 0 <= amount <= Decimal(_MOST_NUMBER)):
        raise RunFilterError(name, "it must be a number of dollars from 0, such as 0.05.")
    return amount


def _read_since(name: str, text: str, now: float) -> float:
    return _read_moment(name, text.strip(), now)[0]


def _read_until(name: str, text: str, now: float) -> float:
    return _read_moment(name, text.strip(), now)[1]


def _read_moment(name: str, text: str, now: float) -> tuple[float, float]:
    """Return the start and the end of the moment or day that the text names."""
    if matched := _AGE.fullmatch(text):
        moment = now - int(matched[1]) * _AGE_SECONDS[matched[2]]
        return moment, moment
    if _EPOCH.fullmatch(text):
        return float(text), float(text)
    try:
        return _read_date(text, now)
    except (ValueError, OverflowError, OSError):
        raise RunFilterError(
            name,
            "it must be an age such as 30m, 24h or 7d, today, yesterday, a day such as 2026-11-21, "
            "or a time such as 2026-11-21T14:30.",
        ) from None


def _read_date(text: str, now: float) -> tuple[float, float]:
    """Read a day or a time, in this machine's time zone unless the text names another."""
    back = {"today": 0, "yesterday": 1}.get(text)
    if back is None and not _DAY.fullmatch(text):
        moment = datetime.fromisoformat(text).timestamp()
        return _check_year(moment), moment
    if back is None:
        day = datetime.fromisoformat(text)
    else:
        today = datetime.fromtimestamp(now)  # noqa: DTZ006 - the day of this machine
        day = datetime(today.year, today.month, today.day) - timedelta(days=back)  # noqa: DTZ001 - same
    return _check_year(day.timestamp()), (day + timedelta(days=1)).timestamp()


def _check_year(moment: float) -> float:
    if not 0 <= moment <= _LATEST:
        raise ValueError(moment)
    return moment


_Reader = Callable[[str, str, float], Any]
_PARAMETERS: Mapping[str, tuple[str, _Reader]] = MappingProxyType(
    {
        "q": ("search", _read_text),
        "tenant": ("tenant", _read_text),
        "model": ("model", _read_text),
        "outcome": ("outcomes", _read_outcomes),
        "session": ("session", _read_text),
        "worker": ("", _read_text),
        "error": ("", _read_text),
        "user": ("", _read_text),
        "tag": ("", _read_text),
        "since": ("since", _read_since),
        "until": ("until", _read_until),
        "min_cost": ("min_cost", _read_dollars),
        "max_cost": ("max_cost", _read_dollars),
        "min_seconds": ("min_seconds", _read_number),
        "max_seconds": ("max_seconds", _read_number),
        "min_tokens": ("min_tokens", _read_number),
        "max_tokens": ("max_tokens", _read_number),
        "min_score": ("min_score", _read_number),
        "max_score": ("max_score", _read_number),
        "judged": ("is_judged", _read_judged),
        "sort": ("sort", _read_sort),
        "order": ("ascending", _read_order),
    }
)
RUN_PARAMETERS = tuple(_PARAMETERS)
"""The names of all parameters, in the order of error messages."""
