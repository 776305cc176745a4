"""How sure a share is that was measured on a number of questions. Pure."""

from __future__ import annotations

import math

Z95 = 1.959963984540054
Z99 = 2.5758293035489004


def wilson_interval(right: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Return Wilson's interval of a share (Wilson 1927, without continuity correction).

    Args:
        right: how many were right; a sum of scores in [0, 1] may stand for it.
        n: of how many.
        z: the normal quantile of the confidence; by default that of 95 %.

    Raises:
        ValueError: n is not positive, or `right` is not in [0, n].
    """
    if not 0 <= right <= n or n < 1:
        raise ValueError(f"{right} of {n} is no share")
    share, z2 = right / n, z**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low = 0.0 if right == 0 else max(0.0, centre - half)
    high = 1.0 if right == n else min(1.0, centre + half)
    return low, high
