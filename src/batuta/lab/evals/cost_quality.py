"""Computes AIQ, APGR and CPT of an evaluation's methods.

AIQ is the mean accuracy over a range of cost (RouterBench, arXiv 2403.12031, section 3). Systems
that differ only in a number (`cascade@0.001`, `self-consistency@5`, `moa-8`) are points of one
curve, as are the single workers. The range of cost is that of all systems but reference lines, and
each curve begins with the cheapest of them. A random choice between two systems interpolates
between their points.

APGR and CPT (RouteLLM, arXiv 2406.18665) measure a router that sends more or fewer questions to the
stronger of two workers. PGR is the part of the gap between both workers that the router recovers.

Axis: q questions.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from batuta.core import WorkerId
from batuta.lab.evals.fitted_methods import FittedMethod
from batuta.lab.evals.systems import BEST_SINGLE

Floats = NDArray[np.floating]
CostQuality = tuple[float, float]
"""The mean cost of a question, and the accuracy."""


def quality_hull(points: Sequence[CostQuality]) -> tuple[CostQuality, ...]:
    """Return the corners of the non-decreasing convex hull above the points, the cheapest first.

    A random choice between two corners reaches the points between them. A point that costs more
    without being more accurate is not a corner.

    Raises:
        ValueError: there are no points, or a cost is negative.
    """
    if not points or min(cost for cost, _ in points) < 0:
        raise ValueError("a curve needs at least one point, and costs that are not negative")
    hull: list[CostQuality] = []
    for cost, quality in sorted(points, key=lambda point: (point[0], -point[1])):
        if hull and quality <= hull[-1][1]:
            continue
        while len(hull) > 1 and _turns_up(hull[-2], hull[-1], (cost, quality)):
            hull.pop()
        hull.append((cost, quality))
    return tuple(hull)


def average_improvement(points: Sequence[CostQuality], low: float, high: float) -> float | None:
    """Return AIQ, the mean height of the points' `quality_hull` between two costs.

    Beyond its last corner the hull is level. If the hull begins after `low`, the mean begins there;
    if it begins after `high`, the result is None.
    """
    hull = quality_hull(points)
    start = max(low, hull[0][0])
    if start > high:
        return None
    level = (*hull, (max(high, hull[-1][0]), hull[-1][1]))
    if start == high:
        return _hull_height(level, high)
    corners = [start, *(cost for cost, _ in level if start < cost < high), high]
    area = sum(
        (right - left) * (_hull_height(level, left) + _hull_height(level, right)) / 2
        for left, right in pairwise(corners)
    )
    return area / (high - start)


def recovered_gap(
    strong_first: Sequence[int], weak_q: Sequence[float], strong_q: Sequence[float]
) -> Floats | None:
    """Return PGR after each number of calls of the strong worker, (q + 1,).

    None if the strong worker is not better than the weak worker. `strong_first` has the questions'
    indices, in the order in which they go to the strong worker.
    """
    weak, strong = np.asarray(weak_q, np.float64), np.asarray(strong_q, np.float64)
    gap = strong.mean() - weak.mean()
    if gap <= 0:
        return None
    gains = (strong - weak)[np.asarray(strong_first, int)]
    return np.concatenate([[0.0], np.cumsum(gains)]) / (gap * len(weak))


def average_recovered_gap(recovered: Floats) -> float:
    """Return APGR, the mean of `recovered_gap` over the share of calls; 0.5 for a random choice."""
    return float(((recovered[1:] + recovered[:-1]) / 2).mean())


def calls_for_gap(recovered: Floats, share: float) -> float | None:
    """Return CPT, the minimum share of strong calls that recovers `share` of the gap, or None."""
    reached = np.flatnonzero(recovered >= share - 1e-12)
    return float(reached[0]) / (len(recovered) - 1) if len(reached) else None


def _turns_up(one: CostQuality, other: CostQuality, third: CostQuality) -> bool:
    """Return whether the middle point is on or below the line between the outer points."""
    rise = (other[1] - one[1]) * (third[0] - one[0])
    return rise <= (third[1] - one[1]) * (other[0] - one[0])


def _hull_height(corners: Sequence[CostQuality], cost: float) -> float:
    costs, qualities = zip(*corners, strict=True)
    return float(np.interp(cost, costs, qualities))


Json = dict[str, Any]

ALONE = "a worker alone"
"""The curve of the single workers and of the best of them."""
CURVE_POINTS = 101
"""Maximum number of points of a recovered-gap curve in a report."""
_UNITS = ("usd", "tokens", "calls")
_NUMBER_PATTERN = re.compile(r"[@-][\d.]+$")


class CreditTable(Protocol):
    """The scores of single workers on the questions of a part."""

    def __call__(
        self, part: int, worker: str, tasks: Sequence[str]
    ) -> Sequence[float | None] | None:
        """Return the worker's score on each task, None where unknown; None if it was not asked."""
        ...


def cost_unit(systems: Mapping[str, Json]) -> str:
    """Return the first of `usd` and `tokens` that all scored systems have above 0, else `calls`."""
    scored = [figures for figures in systems.values() if figures["accuracy"] is not None]
    known = (unit for unit in _UNITS if scored and all(figures[unit] for figures in scored))
    return next(known, "calls")


def build_curves(
    systems: Mapping[str, Json], references: Sequence[str], workers: Sequence[str]
) -> Json | None:
    """Return the curves and their AIQ as JSON values; None if there are fewer than two costs.

    `references` are the reference lines, which are left out.
    """
    methods = {
        name: figures
        for name, figures in systems.items()
        if name not in references and figures["accuracy"] is not None
    }
    unit = cost_unit(methods)
    points = {n: (float(f[unit]), float(f["accuracy"])) for n, f in methods.items() if f[unit]}
    if len({cost for cost, _ in points.values()}) < 2:  # noqa: PLR2004 - there is no range
        return None
    low, high = (pick(cost for cost, _ in points.values()) for pick in (min, max))
    cheapest = max((p for p in points.values() if p[0] == low), key=lambda p: p[1])
    grouped: dict[str, dict[str, CostQuality]] = defaultdict(dict)
    for name, point in points.items():
        grouped[_curve_name(name, workers)][name] = point
    curves = {
        name: {
            "systems": list(own),
            "hull": [list(corner) for corner in quality_hull([cheapest, *own.values()])],
            "aiq": average_improvement([cheapest, *own.values()], low, high),
        }
        for name, own in grouped.items()
    }
    return {"unit": unit, "low": low, "high": high, "curves": curves}


def _curve_name(system: str, workers: Sequence[str]) -> str:
    if system in workers or system == BEST_SINGLE:
        return ALONE
    return _NUMBER_PATTERN.sub("", system)


def build_recovered(
    fitted: Mapping[str, Sequence[FittedMethod | None]], credit: CreditTable
) -> Json:
    """Return APGR, CPT(50 %) and CPT(80 %) of the routers whose two workers were measured.

    Routers whose strong worker is not better are left out. `missing` lists the workers that were
    not measured.
    """
    found: Json = {}
    missing: set[WorkerId] = set()
    for name, parts in fitted.items():
        ratings = [one for one in parts if one is not None and one.pair is not None]
        if not ratings or len(ratings) < len(parts):
            continue
        joined = _join_parts(ratings, credit, missing)
        recovered = None if joined is None else recovered_gap(*joined)
        if recovered is None:
            continue
        indices = np.linspace(0, len(recovered) - 1, min(CURVE_POINTS, len(recovered)))
        found[name] = {
            "weak": sorted({str(one.pair.weak) for one in ratings if one.pair}),
            "strong": sorted({str(one.pair.strong) for one in ratings if one.pair}),
            "apgr": average_recovered_gap(recovered),
            "cpt50": calls_for_gap(recovered, 0.5),
            "cpt80": calls_for_gap(recovered, 0.8),
            "curve": recovered[indices.round().astype(int)].tolist(),
        }
    return {"systems": found, "missing": sorted(missing)}


def _join_parts(
    ratings: Sequence[FittedMethod], credit: CreditTable, missing: set[WorkerId]
) -> tuple[list[int], list[float], list[float]] | None:
    """Return the order of all questions, and the weak and the strong worker's score on each.

    None if a worker was not asked on some part; that worker is added to `missing`.
    """
    leads: list[float] = []
    weak: list[float] = []
    strong: list[float] = []
    is_whole = True
    for part, one in enumerate(ratings):
        assert one.pair is not None  # noqa: S101 - the caller has left these out
        tasks = list(one.ahead)
        its_weak, its_strong = (
            credit(part, worker, tasks) for worker in (one.pair.weak, one.pair.strong)
        )
        missing |= {one.pair.weak} if its_weak is None else set()
        missing |= {one.pair.strong} if its_strong is None else set()
        if its_weak is None or its_strong is None:
            is_whole = False
            continue
        for more, low, high in zip(one.ahead.values(), its_weak, its_strong, strict=True):
            if low is not None and high is not None:  # skip outages of either worker
                leads.append(more)
                weak.append(low)
                strong.append(high)
    if not is_whole or not leads:
        return None
    order = np.argsort(-np.asarray(leads), kind="stable")
    return [int(index) for index in order], weak, strong
