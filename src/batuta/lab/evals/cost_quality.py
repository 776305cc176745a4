"""Curves of quality against cost, and what is read off them: AIQ, APGR and CPT.

AIQ, the average improvement in quality, is that of RouterBench (arXiv 2403.12031, section 3): the
mean height of the non-decreasing convex hull of a method's points, over a range of cost. APGR and
CPT are those of RouteLLM (arXiv 2406.18665, section 3.2): the share of the gap between a weak and a
strong worker that is recovered, on average over the share of the strong worker's calls; and the
least share of its calls with which a given share of the gap is recovered.

Qualities are shares of right answers; costs are of any unit that is the same for all points.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
CostQuality = tuple[float, float]
"""What a question costs, and how often it is right."""


def quality_hull(points: Sequence[CostQuality]) -> tuple[CostQuality, ...]:
    """The corners of the non-decreasing convex hull above the points, from the cheapest.

    Between two corners lies what a lot between both earns. A point that costs more and is right
    no more often is no corner.

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
    """AIQ: the mean height of the hull between two costs; None where it does not begin by then.

    Beyond its last corner the hull goes on level; before its first there is nothing, so the mean
    begins there.
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
    """PGR after each number of calls of the strong worker, from none to all; None without a gap.

    Args:
        strong_first: the questions' places, those first that are first given to the strong worker.
        weak_q: what the weak worker earns on each question.
        strong_q: what the strong one earns.
    """
    weak, strong = np.asarray(weak_q, np.float64), np.asarray(strong_q, np.float64)
    gap = strong.mean() - weak.mean()
    if gap <= 0:
        return None
    gains = (strong - weak)[np.asarray(strong_first, int)]
    return np.concatenate([[0.0], np.cumsum(gains)]) / (gap * len(weak))


def average_recovered_gap(recovered: Floats) -> float:
    """APGR: the mean of `recovered_gap` over the share of calls; 0.5 for a lot."""
    return float(((recovered[1:] + recovered[:-1]) / 2).mean())


def calls_for_gap(recovered: Floats, share: float) -> float | None:
    """CPT: the least share of strong calls that recovers so much of the gap; None: none does."""
    reached = np.flatnonzero(recovered >= share - 1e-12)
    return float(reached[0]) / (len(recovered) - 1) if len(reached) else None


def _turns_up(one: CostQuality, other: CostQuality, third: CostQuality) -> bool:
    """Whether the middle point lies on or below the line between the outer ones."""
    rise = (other[1] - one[1]) * (third[0] - one[0])
    return rise <= (third[1] - one[1]) * (other[0] - one[0])


def _hull_height(corners: Sequence[CostQuality], cost: float) -> float:
    costs, qualities = zip(*corners, strict=True)
    return float(np.interp(cost, costs, qualities))
