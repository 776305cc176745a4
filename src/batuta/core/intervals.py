"""Confidence intervals of a proportion, such as an accuracy on a number of questions. Pure."""

from __future__ import annotations

import math

Z95 = 1.959963984540054
Z99 = 2.5758293035489004
"""Quantiles of the normal distribution for two-sided intervals at 95 % and 99 %."""


def wilson_interval(right: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Return Wilson's interval of a proportion (Wilson 1927, without continuity correction).

    Args:
        right: number of correct answers, or a sum of scores in [0, 1].
        n: number of answers.
        z: the normal quantile of the confidence level; by default that of 95 %.

    Raises:
        ValueError: n is not positive, or `right` is not in [0, n].
    """
    if not 0 <= right <= n or n < 1:
        raise ValueError(f"{right} of {n} is not a proportion")
    share, z2 = right / n, z**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low = 0.0 if right == 0 else max(0.0, centre - half)
    high = 1.0 if right == n else min(1.0, centre + half)
    return low, high
