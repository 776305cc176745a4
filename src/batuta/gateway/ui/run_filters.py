"""The filters, the order and the totals of the list of runs, as its screen shows them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final
from urllib.parse import urlencode

from batuta.core.formatting import format_cost, format_count, format_seconds
from batuta.store.run_filter import (
    EVERY_RUN,
    RUN_PARAMETERS,
    RunFilter,
    RunFilterError,
    RunSort,
    parse_run_filter,
)
from batuta.store.run_list import RunTotals

RUNS_PATH = "/ui/runs"
FILTER_FIELDS = (
    ("since", "Since", "24h, 7d, today, 2026-11-21"),
    ("until", "Until", "now"),
    ("worker", "Worker", "any"),
    ("error", "Error", "any; timed_out"),
    ("session", "Session", "any"),
    ("user", "User", "any"),
    ("tag", "Tag", "any; app=web"),
    ("min_cost", "$ at least", "0"),
    ("max_cost", "$ at most", "any"),
    ("min_seconds", "Seconds at least", "0"),
    ("max_seconds", "Seconds at most", "any"),
    ("min_tokens", "Tokens at least", "0"),
    ("max_tokens", "Tokens at most", "any"),
    ("min_score", "Score at least", "any"),
    ("max_score", "Score at most", "any"),
)
"""The fields that are folded away: each one's parameter, label and placeholder."""
SORTS = {
    RunSort.CREATED: "Newest",
    RunSort.COST: "Cost",
    RunSort.SECONDS: "Time",
    RunSort.TOKENS: "Tokens",
    RunSort.SCORE: "Score",
}
_LABELS = {
    "q": "Search",
    "model": "System",
    "outcome": "Outcome",
    "tenant": "Tenant",
    "judged": "Judged",
    **{name: label for name, label, _ in FILTER_FIELDS},
}
_ORDER = ("sort", "order")


@dataclass(frozen=True, slots=True)
class ActiveFilter:
    """A filter that is set, and the address of the list without it."""

    label: str
    value: str
    address: str


@final
class ShownFilter:
    """The filter in an address: what it finds, and the addresses of the lists beside it."""

    def __init__(self, given: Iterable[tuple[str, str]], tenant: str | None) -> None:
        """Reads the filter; one that cannot be used finds nothing and says why.

        Args:
            given: the parameters of the address, of which those of filters are read.
            tenant: the only tenant whose runs may be shown; None: everybody's.
        """
        self.given = [
            (name, text.strip())
            for name, text in given
            if name in RUN_PARAMETERS and text.strip() and not (name == "tenant" and tenant)
        ]
        self.problem = ""
        """The sentence that says why the filter cannot be used; empty if it can."""
        self.wanted: RunFilter = EVERY_RUN
        try:
            self.wanted = parse_run_filter(self.given)
        except RunFilterError as error:
            self.problem = f"{_LABELS.get(error.name, error.name)}: {error}"
        if tenant is not None:
            self.wanted = replace(self.wanted, tenant=tenant)

    def value(self, name: str) -> str:
        """The value of a parameter as it was given; empty if it was not."""
        return next((text for given, text in self.given if given == name), "")

    @property
    def further_tags(self) -> list[str]:
        """The tags beside the first, which has the field."""
        return [text for name, text in self.given if name == "tag"][1:]

    @property
    def active(self) -> list[ActiveFilter]:
        """The filters that are set, without the order."""
        return [
            ActiveFilter(_LABELS[name], text, self._address(self._without(at)))
            for at, (name, text) in enumerate(self.given)
            if name not in _ORDER
        ]

    @property
    def is_folded_out(self) -> bool:
        """Whether one of the fields is set that are folded away."""
        hidden = {name for name, _, _ in FILTER_FIELDS} | {"judged"}
        return any(name in hidden for name, _ in self.given)

    @property
    def finds_going_on(self) -> bool:
        """Whether runs that go on may be shown: they have no cost, length or score yet."""
        return all(name in {"q", "model", "tenant"} for name, _ in self.given)

    def sorted_by(self, name: str) -> str:
        """The address of the list in that order; in the other direction if it has it already."""
        sort = RunSort(name)
        is_first = self.wanted.sort is not sort
        order = [] if sort is RunSort.CREATED else [("sort", sort.value)]
        order += [] if is_first or self.wanted.ascending else [("order", "asc")]
        return self._address([pair for pair in self.given if pair[0] not in _ORDER] + order)

    def direction(self, name: str) -> str:
        """The order of a column, in ARIA's words; empty: the list is not ordered by it."""
        if self.wanted.sort is not RunSort(name):
            return ""
        return "ascending" if self.wanted.ascending else "descending"

    def page_after(self, cursor: str | None) -> str:
        """The address of the page behind that position; None: of the first one."""
        return self._address([*self.given, *([("after", cursor)] if cursor else [])])

    def _without(self, position: int) -> list[tuple[str, str]]:
        return [pair for at, pair in enumerate(self.given) if at != position]

    def _address(self, pairs: Sequence[tuple[str, str]]) -> str:
        return f"{RUNS_PATH}?{urlencode(pairs)}" if pairs else RUNS_PATH


def describe_totals(totals: RunTotals) -> Iterator[tuple[str, str]]:
    """Yield the figures above the list: each one's name and value."""
    yield "Runs", format_count(totals.runs)
    if totals.unanswered:
        yield "Without an answer", format_count(totals.unanswered)
    yield "Cost", format_cost(totals.cost)
    yield "Tokens", format_count(totals.input_tokens + totals.output_tokens)
    if totals.median_seconds is not None and totals.p95_seconds is not None:
        yield "Median time", format_seconds(totals.median_seconds)
        yield "95th percentile", format_seconds(totals.p95_seconds)
    if totals.mean_score is not None:
        yield "Mean score", f"{totals.mean_score:.2f} of {format_count(totals.judged)}"
