"""Line charts of training metrics and sessions, as SVG paths. Pure."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, isfinite, log10
from statistics import fmean
from typing import Any

from batuta.core.formatting import format_count, format_short, format_usd

WIDTH, HEIGHT = 300, 100
_POINTS = 240
"""Maximum number of points of a curve; if there are more values, neighbours are averaged."""
CURVES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("Reward", (("reward", ""),)),
    ("Right answers", (("right", ""),)),
    ("Valid workflows", (("valid", ""),)),
    ("Steps a workflow", (("steps", "all"), ("steps_easy", "easy"), ("steps_hard", "hard"))),
    ("Worker tokens", (("worker_tokens", ""),)),
    ("Conductor tokens", (("completions/mean_length", ""),)),
    ("Entropy, nats a token", (("entropy", ""),)),
    ("Groups without spread", (("no_spread", ""),)),
    ("Left out for outages", (("outages", ""),)),
    ("Ended by a limit", (("limited", ""),)),
    ("Second rounds: right", (("second/right", ""),)),
    ("Dollars a workflow", (("usd", ""),)),
    ("Seconds a step", (("step_time", ""),)),
)
"""The charts of a training: each title, with the metric and label of each curve."""
_UNITS = {
    "Right answers": "%",
    "Valid workflows": "%",
    "Groups without spread": "%",
    "Left out for outages": "%",
    "Ended by a limit": "%",
    "Second rounds: right": "%",
    "Dollars a workflow": "$",
    "Seconds a step": "s",
    "Dollars so far": "$",
    "Read from a cache": "%",
}
"""The units of the charts; the other charts show plain numbers."""
_MOST_PARTS = 4
"""Maximum number of intervals between the ticks of an axis."""
_SIZES = (1, 2, 5, 10, 20)
"""The interval between ticks is one of these numbers times a power of ten."""
_NEAR_END = 0.18
"""Fraction of the axis at each end that is kept free of other labels."""
_DRAWN_IF_ANY = ("Left out for outages", "Ended by a limit", "Dollars a workflow")
"""Charts that are drawn only if a value is not zero. Earlier versions logged 0 dollars for workers
without a price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a chart."""

    name: str
    path: str
    """The SVG path."""
    last: float
    """The last value that is not missing."""
    values: tuple[float | None, ...]
    """The value at each of the chart's points; None if it is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves over one pair of axes."""

    title: str
    curves: tuple[Curve, ...]
    low: float
    """The lowest value."""
    high: float
    """The highest value."""
    steps: tuple[int, ...]
    """The number of the step, or request, of each point."""
    joins_gaps: bool
    """Whether curves are drawn through steps without a value."""
    axis: str = "step"
    """The unit of the horizontal axis, in the singular."""

    @property
    def unit(self) -> str:
        """The unit of the values: `%`, `$`, `s`, or an empty string."""
        return _UNITS.get(self.title, "")

    @property
    def heights(self) -> list[str]:
        """The labels of the vertical axis's evenly spaced ticks, from top to bottom."""
        ticks = find_ticks(self.low, self.high)
        scale = _find_scale(self.unit)
        digits = (
            max(0, -floor(log10((ticks[1] - ticks[0]) * scale) + 1e-9))
            if ticks[1] > ticks[0]
            else 0
        )
        return [_add_unit(f"{tick * scale:,.{min(digits, 9)}f}", self.unit) for tick in ticks[::-1]]

    @property
    def grid(self) -> str:
        """The SVG path of the horizontal grid lines at the ticks."""
        last = len(find_ticks(self.low, self.high)) - 1
        return "".join(f"M0 {HEIGHT * at / last:.1f}H{WIDTH}" for at in range(last + 1))

    @property
    def step_labels(self) -> list[tuple[float, str]]:
        """The labels below the chart, as pairs of horizontal position (in per cent) and text."""
        return [(round(100 * x, 1), format_count(step)) for x, step in mark_steps(self.steps)]

    def format_value(self, value: float) -> str:
        """Return a value with its unit."""
        if self.unit == "$":
            return format_usd(value)
        return _add_unit(format_short(value * _find_scale(self.unit)), self.unit)

    @property
    def data(self) -> str:
        """The chart as JSON, for the script, which shows values, zooms and smooths."""
        curves = [
            {"name": curve.name, "values": [v and float(f"{v:.5g}") for v in curve.values]}
            for curve in self.curves
        ]
        chart = {"steps": self.steps, "curves": curves, "joins": self.joins_gaps}
        return json.dumps({**chart, "unit": self.unit, "axis": self.axis})


def draw_charts(lines: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return the charts of `CURVES` for which the lines have something to show."""
    found = (draw_chart(title, series, lines) for title, series in CURVES)
    return [chart for chart in found if chart]


def draw_chart(
    title: str,
    series: Sequence[tuple[str, str]],
    lines: Sequence[Mapping[str, Any]],
    *,
    joins_gaps: bool = False,
    axis: str = "step",
) -> Chart | None:
    """Return a chart of metrics over the steps of the lines; None if there is nothing to show.

    Some charts are shown only if a value is not zero.

    Args:
        title: the chart's title.
        series: each curve's key in the lines and its label.
        lines: the logged values, one mapping per step.
        joins_gaps: whether curves are drawn through steps without a value.
        axis: the unit of the horizontal axis, in the singular.
    """
    columns = {name or title: _curve_values(key, lines) for key, name in series}
    known = {name: values for name, values in columns.items() if any(v is not None for v in values)}
    every = [value for values in known.values() for value in values if value is not None]
    if not every or (title in _DRAWN_IF_ANY and not any(every)):
        return None
    low, high = min(every), max(every)
    bottom, *_, top = find_ticks(low, high)
    curves = tuple(
        Curve(
            name=name,
            path=_curve_path(values, bottom, top, joins_gaps=joins_gaps),
            last=next(v for v in reversed(values) if v is not None),
            values=tuple(values),
        )
        for name, values in known.items()
    )
    return Chart(
        title=title,
        curves=curves,
        low=low,
        high=high,
        steps=_curve_steps(lines),
        joins_gaps=joins_gaps,
        axis=axis,
    )


def find_ticks(low: float, high: float) -> list[float]:
    """Return a few evenly spaced round numbers that enclose the values.

    If all values are equal, the range is extended to zero, or to 1 if they are zero. If the range
    is too small or too large for floats, its two ends are returned.
    """
    if low == high:
        low, high = min(low, 0.0), max(high, 0.0)
        high = high if high > low else 1.0
    part = (high - low) / _MOST_PARTS
    if not 1e-300 < part < 1e300:  # noqa: PLR2004 - what a float can still divide
        return [low, high]
    power = 10.0 ** floor(log10(part))
    found: list[float] = []
    for size in _SIZES:
        step = size * power
        first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
        found = [at * step for at in range(first, last + 1)]
        if last - first <= _MOST_PARTS:
            break
    return found


def mark_steps(steps: Sequence[int]) -> list[tuple[float, int]]:
    """Return the labelled steps, each after its position as a fraction of the width.

    These are the first and the last step, and round numbers between them that have room. Only the
    first and the last are labelled if the training was resumed from an earlier step.
    """
    first, end = steps[0], steps[-1]
    if end <= first:
        return [(0.0, first)]
    marks = [(0.0, first)]
    if list(steps) != sorted(steps):  # resumed from an earlier step
        return [*marks, (1.0, end)]
    for tick in find_ticks(first, end):
        step = round(tick)
        if not (first < step < end and step == tick):
            continue
        at = bisect_left(steps, step)
        within = (step - steps[at - 1]) / (steps[at] - steps[at - 1])
        position = (at - 1 + within) / (len(steps) - 1)
        if _NEAR_END < position < 1 - _NEAR_END:
            marks.append((position, step))
    return [*marks, (1.0, end)]


def _find_scale(unit: str) -> float:
    return 100.0 if unit == "%" else 1.0


def _add_unit(number: str, unit: str) -> str:
    if unit == "$":
        return f"${number}"
    return f"{number}\u00a0{unit}" if unit else number


def step_of(line: Mapping[str, Any]) -> int:
    """Return the step of a logged line; 0 if the line has none."""
    value = line.get("step")
    return value if isinstance(value, int) else 0


def _curve_values(key: str, lines: Sequence[Mapping[str, Any]]) -> list[float | None]:
    found = [line.get(key) for line in lines]
    values = [float(v) if isinstance(v, int | float) and isfinite(v) else None for v in found]
    if len(values) <= _POINTS:
        return values
    return [_known_mean(values[start:end]) for start, end in pairwise(_find_edges(len(values)))]


def _curve_steps(lines: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the step of each point; a point of several lines has the last line's step."""
    steps = tuple(step_of(line) for line in lines)
    if len(steps) <= _POINTS:
        return steps
    return tuple(steps[end - 1] for _, end in pairwise(_find_edges(len(steps))))


def _find_edges(count: int) -> list[int]:
    """Return the index at which each point's lines begin, and the end of the last point."""
    return [round(at * count / _POINTS) for at in range(_POINTS + 1)]


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _curve_path(
    values: Sequence[float | None], low: float, high: float, *, joins_gaps: bool = False
) -> str:
    """Return the SVG path of a curve, with gaps at missing values unless `joins_gaps`."""
    spread, across = high - low or 1.0, max(len(values) - 1, 1)
    parts: list[str] = []
    broken = True
    for at, value in enumerate(values):
        if value is not None:
            x, y = WIDTH * at / across, HEIGHT * (1 - (value - low) / spread)
            parts.append(f"{'M' if broken else 'L'}{x:.1f} {y:.1f}")
        broken = value is None and not (joins_gaps and parts)
    return "".join(parts) if len(parts) > 1 else f"{parts[0]}h{WIDTH}" if parts else ""
