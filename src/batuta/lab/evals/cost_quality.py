"""Curves of quality over cost, and the figures AIQ, APGR and CPT.

AIQ, the average improvement in quality, is that of RouterBench (arXiv 2403.12031, section 3): the
mean height of the non-decreasing convex hull of a method's points, over a range of cost. APGR and
CPT are those of RouteLLM (arXiv 2406.18665, section 3.2): the share of the gap between a weak and a
strong worker that is recovered, on average over the share of the strong worker's calls; and the
least share of its calls with which a given share of the gap is recovered.

Qualities are shares of right answers; costs may have any unit that all points share.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
CostQuality = tuple[float, float]
"""The cost of a question, and its share right."""


def quality_hull(points: Sequence[CostQuality]) -> tuple[CostQuality, ...]:
    """Return the corners of the non-decreasing convex hull above the points, the cheapest first.

    A random choice between two corners reaches the points between them. A point that costs more
    without being right more often is no corner.

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
    """Return AIQ, the mean height of the hull between two costs; None if it begins after `high`.

    Beyond its last corner the hull is level; the mean begins at its first corner.
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
    """Return PGR after each number of calls of the strong worker; None if there is no gap.

    Args:
        strong_first: the questions' places, in the order in which they go to the strong worker.
        weak_q: the weak worker's score on each question.
        strong_q: the strong worker's score.
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
    """Return CPT, the least share of strong calls that recovers that share of the gap, or None."""
    reached = np.flatnonzero(recovered >= share - 1e-12)
    return float(reached[0]) / (len(recovered) - 1) if len(reached) else None


def _turns_up(one: CostQuality, other: CostQuality, third: CostQuality) -> bool:
    """Tell whether the middle point is on or below the line between the outer ones."""
    rise = (other[1] - one[1]) * (third[0] - one[0])
    return rise <= (third[1] - one[1]) * (other[0] - one[0])


def _hull_height(corners: Sequence[CostQuality], cost: float) -> float:
    costs, qualities = zip(*corners, strict=True)
    return float(np.interp(cost, costs, qualities))
