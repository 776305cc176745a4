"""k-means by Lloyd's iterations from k-means++ seeds.

Arthur and Vassilvitskii, "k-means++: The Advantages of Careful Seeding" (SODA 2007), section 2.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.signedinteger[Any]]

_MAX_ITERATIONS = 100


def k_means_centres(points_nd: Floats, k: int, rng: np.random.Generator) -> Floats:
    """Return the centres, (k, d); fewer than k if there are fewer distinct points.

    There must be at least one point. `rng` chooses the points that are the first centres.
    """
    centres_kd = _seed_centres(points_nd, k, rng)
    labels_n = nearest_centre(points_nd, centres_kd)
    for _ in range(_MAX_ITERATIONS):
        centres_kd = _cluster_means(points_nd, labels_n, centres_kd)
        moved_n = nearest_centre(points_nd, centres_kd)
        if (moved_n == labels_n).all():
            break
        labels_n = moved_n
    return centres_kd


def nearest_centre(points_nd: Floats, centres_kd: Floats) -> Indices:
    """Return the index of each point's nearest centre: (n,)."""
    return squared_distances(points_nd, centres_kd).argmin(axis=1)


def squared_distances(points_nd: Floats, centres_kd: Floats) -> Floats:
    """Return the squared distance of every point from every centre: (n, k)."""
    lengths_n1 = (points_nd**2).sum(axis=1, keepdims=True)
    lengths_k = (centres_kd**2).sum(axis=1)
    return np.maximum(lengths_n1 - 2 * points_nd @ centres_kd.T + lengths_k, 0)


def _seed_centres(points_nd: Floats, k: int, rng: np.random.Generator) -> Floats:
    chosen = [int(rng.integers(len(points_nd)))]
    away_n = ((points_nd - points_nd[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < k and away_n.max() > 0:
        chosen.append(int(rng.choice(len(points_nd), p=away_n / away_n.sum())))
        away_n = np.minimum(away_n, ((points_nd - points_nd[chosen[-1]]) ** 2).sum(axis=1))
    return points_nd[chosen]


def _cluster_means(points_nd: Floats, labels_n: Indices, centres_kd: Floats) -> Floats:
    """Return the mean of each centre's points; a centre without points stays where it is."""
    sums_kd = np.zeros_like(centres_kd)
    np.add.at(sums_kd, labels_n, points_nd)
    counts_k = np.bincount(labels_n, minlength=len(centres_kd))[:, None]
    return np.where(counts_k > 0, sums_kd / np.maximum(counts_k, 1), centres_kd)
