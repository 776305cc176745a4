"""The activity on the usage screen: runs, times, failures, cached input and refused requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batuta.store import Store
from batuta.store.activity import Activity, report_activity
from batuta.store.hours import DAY_SECONDS, HOUR_SECONDS, day_start, utc_hour
from batuta.store.ledger import utc_day

DAY_HOURS = 24
LONGEST_LIST = 20
"""Maximum number of rows of a table."""
REFUSAL_WORDS = {
    "budget_exceeded": "The budget was spent, or the rest was reserved by running requests",
    "rate_limit_exceeded": "The key exceeded its limit of requests, tokens or concurrent requests",
}
"""Explanations of the error codes of refused requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSpan:
    """The time span that is shown, which ends now."""

    days: int
    marks: Sequence[str]
    """The days of the span, or its 24 hours if `days` is 1, in UTC, oldest first."""
    since: float
    """The start of the span in seconds since the epoch."""

    @staticmethod
    def of(days: int, now: float) -> UsageSpan:
        """Return the span of the latest days, or of the latest 24 hours if `days` is 1."""
        if days == 1:
            start = now - now % HOUR_SECONDS - (DAY_HOURS - 1) * HOUR_SECONDS
            marks = [utc_hour(start + at * HOUR_SECONDS) for at in range(DAY_HOURS)]
            return UsageSpan(days=days, marks=marks, since=start)
        marks = latest_days(now, days)
        return UsageSpan(days=days, marks=marks, since=day_start(marks[0]))

    @property
    def unit(self) -> str:
        """The unit of `marks`: `hour` or `day`."""
        return "hour" if self.days == 1 else "day"

    @property
    def first_day(self) -> str:
        """The day in UTC on which the span begins."""
        return self.marks[0][:10]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBar:
    """The runs of an hour or day; the heights are in per cent of the highest bar."""

    mark: str
    runs: int
    unanswered: int
    height: float
    failed_height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The requests of one key that were refused with one error code."""

    key: str
    """The key's name; its id if the key does not exist."""
    code: str
    meaning: str
    """The explanation of the code in `REFUSAL_WORDS`; empty if there is none."""
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageActivity:
    """The runs of a span with their times and failures, and its refused requests."""

    bars: Sequence[RunBar]
    total: Activity | None
    """None if there was no run."""
    by_time: Sequence[Activity]
    """Newest first; hours and days without a run are left out."""
    by_system: Sequence[Activity]
    errors: Sequence[Activity]
    """Runs without an answer by error code, the most frequent first."""
    refused: Sequence[Refused]


def latest_days(now: float, count: int) -> list[str]:
    """Return the latest `count` days in UTC, including today, oldest first."""
    return [utc_day(now - DAY_SECONDS * back) for back in reversed(range(count))]


async def read_activity(
    store: Store, span: UsageSpan, tenant: str | None, *, models: Sequence[str] = ()
) -> UsageActivity:
    """Return the activity of a tenant, or of all tenants if `tenant` is None.

    `models` restricts the runs, but not the refusals, to these systems; empty means all.
    """

    async def report(*by: str) -> list[Activity]:
        return await report_activity(
            store.database, by, tenant=tenant, since=span.since, models=models
        )

    by_time, by_system = await report(span.unit), await report("model")
    errors, total = await report("error"), await report()
    return UsageActivity(
        bars=_draw_bars(span.marks, by_time),
        total=total[0] if total and total[0].runs else None,
        by_time=by_time[::-1],
        by_system=sorted(by_system, key=lambda each: -each.runs)[:LONGEST_LIST],
        errors=sorted((each for each in errors if each.group[0]), key=lambda each: -each.runs)[
            :LONGEST_LIST
        ],
        refused=await _list_refused(store, span, tenant),
    )


def _draw_bars(marks: Sequence[str], found: Sequence[Activity]) -> list[RunBar]:
    known = {each.group[0]: each for each in found}
    most = max((each.runs for each in found), default=0) or 1
    bars: list[RunBar] = []
    for mark in marks:
        each = known.get(mark)
        runs, unanswered = (each.runs, each.unanswered) if each else (0, 0)
        bars.append(
            RunBar(
                mark=mark,
                runs=runs,
                unanswered=unanswered,
                height=100 * runs / most,
                failed_height=100 * unanswered / most,
            )
        )
    return bars


async def _list_refused(store: Store, span: UsageSpan, tenant: str | None) -> list[Refused]:
    found = await store.refusals.report(("key", "code"), tenant=tenant, since=span.since)
    ordered = sorted(found, key=lambda each: -each.requests)[:LONGEST_LIST]
    rows: list[Refused] = []
    for each in ordered:
        name, code = each.group
        key = await store.keys.find(name)
        rows.append(
            Refused(
                key=key.name if key else name,
                code=code,
                meaning=REFUSAL_WORDS.get(code, ""),
                requests=each.requests,
            )
        )
    return rows
