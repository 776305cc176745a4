"""Avengers-Pro: clusters of questions, and a ranking of the workers in each cluster.

The method is that of Zhang et al., "Beyond GPT-5: Making LLMs Cheaper and Better via
Performance-Efficiency Optimized Routing" (arXiv 2508.12631), section 2; with alpha = 1 it ranks as
the Avengers of arXiv 2505.19797, but does not vote. The training questions are embedded and divided
into 25 clusters by k-means. In each cluster the workers are ranked by
alpha * accuracy + (1 - alpha) * (1 - cost), with accuracy and cost scaled to [0, 1] within the
cluster. For a new question the 3 nearest clusters have the weights softmax(-9 * distance), and each
worker's score is the sum of weight / (rank + 1), where the best worker has rank 0.

Deviations
- The paper has 60 clusters, and adds up the workers' scores in the nearest ones. The numbers 25, 3
  and 9 and the ranks are those of the authors' code.
- The distance is Euclidean; in the authors' code it is 1 - the inner product with the centre.
- The embedding is `HashedNgrams`, not a pretrained encoder of 4,096 dimensions.
- By default alpha is 1, so that only accuracy counts, as for the other routers.
- A worker without a score in a cluster is ranked there by its accuracy on all questions.
- alpha < 1 needs known dollars of every worker in every cluster.

Axes: c clusters, q or n questions, m workers, k nearest clusters, d dimensions of the embedding.
"""

from __future__ import annotations

import numpy as np

from batuta.conductors.features import Features
from batuta.errors import ConfigError
from batuta.lab.baselines.routing.arrays import Floats, Indices
from batuta.lab.baselines.routing.router import Router, fit_embedding
from batuta.lab.learners.clustering import k_means_centres, nearest_centre, squared_distances
from batuta.lab.learners.history import History

CLUSTERS = 25
NEAREST_CLUSTERS = 3
BETA = 9.0


def fit_avengers(
    history: History,
    *,
    seed: int = 0,
    alpha: float = 1.0,
    clusters: int = CLUSTERS,
    features: Features | None = None,
) -> Router:
    """Fit the router, with at most `clusters` clusters; `alpha` is the weight of accuracy.

    Raises:
        ConfigError: alpha is not in [0, 1], a needed cost is unknown, or there are no questions.
    """
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha is the weight of accuracy, in [0, 1], not {alpha}")
    scores_qm = history.scores_qm.astype(np.float64)
    embed, points_qd = fit_embedding(history, features)
    centres_cd = k_means_centres(points_qd, clusters, np.random.default_rng(seed))
    labels_q = nearest_centre(points_qd, centres_cd)
    merit_cm = _scale_per_cluster(cluster_means(scores_qm, labels_q, len(centres_cd)))
    if alpha < 1:
        costs_cm = _cluster_costs(history, labels_q, len(centres_cd))
        merit_cm = alpha * merit_cm + (1 - alpha) * (1 - _scale_per_cluster(costs_cm))
    ranked_cm = rank_merits(merit_cm)

    def score(text: str) -> Floats:
        away_c = np.sqrt(squared_distances(embed([text]), centres_cd))[0]
        near_k = np.argsort(away_c, kind="stable")[:NEAREST_CLUSTERS]
        weight_k = np.exp(-BETA * (away_c[near_k] - away_c[near_k[0]]))
        return weight_k @ ranked_cm[near_k] / weight_k.sum()

    return Router(f"avengers-pro/{alpha:g}", history.workers, score)


def _cluster_costs(history: History, labels_q: Indices, clusters: int) -> Floats:
    inside_cq = (labels_q == np.arange(clusters)[:, None]).astype(np.float64)
    if not (inside_cq @ ~np.isnan(history.usd_qm) > 0).all():
        raise ConfigError("the history lacks the cost of some workers: leave alpha at 1")
    return cluster_means(history.usd_qm, labels_q, clusters)


def _scale_per_cluster(values_cm: Floats) -> Floats:
    """Scale each cluster's values to [0, 1], from least to greatest; if all are equal, to 0."""
    least_c1 = values_cm.min(axis=1, keepdims=True)
    range_c1 = values_cm.max(axis=1, keepdims=True) - least_c1
    return (values_cm - least_c1) / np.where(range_c1 > 0, range_c1, 1)


def cluster_means(values_nm: Floats, labels_n: Indices, clusters: int) -> Floats:
    """Return each worker's mean in each cluster, (c, m); if unknown its overall mean, else 0."""
    known_nm = ~np.isnan(values_nm)
    inside_cn = (labels_n == np.arange(clusters)[:, None]).astype(np.float64)
    count_cm: Floats = inside_cn @ known_nm
    total_cm: Floats = inside_cn @ np.where(known_nm, values_nm, 0)
    overall_m = total_cm.sum(axis=0) / np.maximum(count_cm.sum(axis=0), 1)
    return np.where(count_cm > 0, total_cm / np.maximum(count_cm, 1), overall_m)


def rank_merits(merit_cm: Floats) -> Floats:
    """Return 1 / (rank + 1) of each worker in each cluster, (c, m); the best has rank 0."""
    order_cm = np.argsort(-merit_cm, axis=1, kind="stable")
    return 1 / (np.argsort(order_cm, axis=1, kind="stable") + 1)
