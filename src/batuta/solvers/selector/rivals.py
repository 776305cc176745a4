"""Other readings of a question, which the selector takes where they win on held-out questions.

Two published routers are tried beside the selector's own estimate: who is ahead of the best single
worker on the most similar questions (Li, arXiv 2505.12601), and who ranks first in the nearest
clusters of questions (Avengers-Pro, arXiv 2508.12631). `batuta.baselines.routing` has both as
methods of their own, by the same functions.

Axes: n training questions, q questions, k neighbours, c clusters, d features, m workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from batuta.solvers.clustering import k_means_centres, nearest_centre, squared_distances

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.signedinteger[Any]]

NEIGHBOURS = 50
CONFIDENCE = 1.645
"""Standard errors: 5 % of a normal distribution are above."""
CLUSTERS = 25
NEAREST_CLUSTERS = 3
BETA = 9.0
_BLOCK = 512
"""Questions that are looked at together, for memory's sake."""


@dataclass(frozen=True, slots=True, eq=False)
class ClusterRanking:
    """The workers' ranks in the nearest clusters."""

    kind: ClassVar = "clusters"
    centres_cd: Floats
    merit_cm: Floats
    """1 / (rank + 1), where the first has rank 0."""

    @classmethod
    def fit(cls, features_nd: Floats, reward_nm: Floats, seed: int) -> Self:
        """Clusters of questions, and who earns most in each."""
        rng = np.random.default_rng(seed)
        centres_cd = k_means_centres(features_nd, CLUSTERS, rng)
        labels_n = nearest_centre(features_nd, centres_cd)
        merit_cm = rank_merits(cluster_means(reward_nm, labels_n, len(centres_cd)))
        return cls(centres_cd.astype(np.float32), merit_cm.astype(np.float32))

    def __call__(self, features_qd: Floats) -> Floats:
        """The mean merit in the nearest clusters, weighted by their closeness."""
        away_qc = np.sqrt(squared_distances(features_qd, self.centres_cd))
        near_qk = np.argsort(away_qc, axis=1, kind="stable")[:, :NEAREST_CLUSTERS]
        closest_qk = np.take_along_axis(away_qc, near_qk, axis=1)
        weight_qk = np.exp(-BETA * (closest_qk - closest_qk[:, :1]))
        merit_qkm = self.merit_cm[near_qk]
        return np.einsum("qk,qkm->qm", weight_qk / weight_qk.sum(1, keepdims=True), merit_qkm)


@dataclass(frozen=True, slots=True, eq=False)
class NeighbourLead:
    """Who is surely ahead of the best single worker on the most similar questions."""

    kind: ClassVar = "neighbours"
    memory_nd: Floats
    reward_nm: Floats
    """NaN: unknown."""

    @classmethod
    def fit(cls, features_nd: Floats, reward_nm: Floats, seed: int) -> Self:  # noqa: ARG003
        """Nothing in it is left to chance."""
        return cls(features_nd, reward_nm)

    def __call__(self, features_qd: Floats) -> Floats:
        """As `lead_scores` gives them."""
        count = min(NEIGHBOURS, len(self.memory_nd))
        mean_m = np.nan_to_num(np.nanmean(self.reward_nm, axis=0))
        best, found = int(mean_m.argmax()), np.empty((len(features_qd), len(mean_m)))
        for start in range(0, len(features_qd), _BLOCK):
            rows = slice(start, start + _BLOCK)
            close_qn = features_qd[rows] @ self.memory_nd.T
            near_qk = np.argpartition(-close_qn, count - 1, axis=1)[:, :count]
            found[rows] = lead_scores(self.reward_nm[near_qk], best, CONFIDENCE, mean_m)
        return found


RIVALS: tuple[type[ClusterRanking | NeighbourLead], ...] = (ClusterRanking, NeighbourLead)


def lead_scores(scores_qkm: Floats, best: int, confidence: float, mean_m: Floats) -> Floats:
    """The advantage over the best single worker of whoever surely has one; 0 for the best.

    Whoever has none is below 0, in the order of the overall means: (…, m).

    Args:
        scores_qkm: of the neighbours, (…, k, m); NaN: unknown.
        best: the best single worker's place.
        confidence: standard errors by which an advantage must be above 0.
        mean_m: each worker's credit on all questions, in [0, 1].
    """
    ahead_qkm = scores_qkm - scores_qkm[..., [best]]
    known_qkm = ~np.isnan(ahead_qkm)
    count_qm = np.maximum(known_qkm.sum(axis=-2), 1)
    lead_qm = np.where(known_qkm, ahead_qkm, 0).sum(axis=-2) / count_qm
    square_qkm = np.where(known_qkm, (ahead_qkm - lead_qm[..., None, :]) ** 2, 0)
    # The second term is for neighbours that agree: three of them alone prove little.
    error_qm = np.sqrt((square_qkm.sum(axis=-2) / count_qm + 1 / count_qm) / count_qm)
    scores_qm: Floats = np.where(lead_qm > confidence * error_qm, lead_qm, mean_m - 2)
    scores_qm[..., best] = 0
    return scores_qm


def cluster_means(values_nm: Floats, labels_n: Indices, clusters: int) -> Floats:
    """The mean of what is known in each cluster; where nothing is, the mean over all: (c, m)."""
    known_nm = ~np.isnan(values_nm)
    inside_cn = (labels_n == np.arange(clusters)[:, None]).astype(np.float64)
    count_cm: Floats = inside_cn @ known_nm
    total_cm: Floats = inside_cn @ np.where(known_nm, values_nm, 0)
    overall_m = total_cm.sum(axis=0) / np.maximum(count_cm.sum(axis=0), 1)
    return np.where(count_cm > 0, total_cm / np.maximum(count_cm, 1), overall_m)


def rank_merits(merit_cm: Floats) -> Floats:
    """1 / (rank + 1) of each worker in each cluster, the greatest first: (c, m)."""
    order_cm = np.argsort(-merit_cm, axis=1, kind="stable")
    return 1 / (np.argsort(order_cm, axis=1, kind="stable") + 1)
